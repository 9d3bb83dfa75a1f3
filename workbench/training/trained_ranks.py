"""Trainings on several ranks that are no schedule of the run's own: what their processes do, and
what the run hears of it.

The process of the run holds no GPU memory itself, and it alone reports: one rank, the teller,
writes what happens to a file, which is followed here. The ranks, each a process of the launcher
(workbench/ranks/), tell its board of their steps alone, so one that hangs is asked where it is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist

from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.ranks import stack_probe
from workbench.ranks.launcher import RankLauncher
from workbench.ranks.process import RankContext
from workbench.ranks.watchdog import Limits, Watchdog
from workbench.runtime.executor.board import Board, Stage
from workbench.schedule.action import COMPUTE, Action, Kind
from workbench.schedule.schedule import Schedule
from workbench.training.run import check_data, resolve_device

EVENTS = "events.jsonl"
"""File of the ranks' folder: what the teller tells."""
POLL_S = 0.01
END_S = 10.0
"""How long a rank may take to end after the last step, before it is killed."""
LIMITS = Limits(start_s=1800.0)
"""Until the first step has ended weights are drawn, memory is page-locked, and layers and operators
are compiled, here in the ranks. To save a checkpoint may take as long."""
HANG_STEPS = 5
"""A step may take so many times as long as the longest before: ranks tell of nothing in between."""


def train(
    work: str, spec: RunSpec, report: Reporter, folder: Path, *, teller: int = 0,
    devices: Sequence[int] = (), budgets: Sequence[int | None] = (),
    places: Sequence[str] = (), limits: Limits | None = None, checked: bool = False,
) -> Outcome:  # fmt: skip
    """Train on the spec's ranks; what they measured, as one, with the losses of the `teller`.

    `devices`: number of each process's device, where processes share some; by default each rank is
    a process with a device of its own. `budgets`: bytes of its device that each process may take,
    by default the spec's. `places`: words for where in a step a rank may be, which it tells by
    their numbers from 1 on (`FileReporter.turn`). `limits` of its processes, by default `LIMITS`.
    `checked`: the caller has called `check_data`.

    `work` names a module whose ``training(spec, report, folder)`` is a context in every rank, with
    ``run()`` and ``outcome()``. Raises what made a rank fail: OutOfMemory, ValueError or RankFailed
    with the rank's number in the message.
    """
    device = resolve_device(spec.device).type
    if not checked:
        check_data(spec, report, folder)
    devices = devices or range(spec.ranks)
    order = {
        "spec": spec.with_(device=device).to_dict(), "trains": work, "teller": teller,
        "budgets": [*budgets] or [spec.device_memory] * len(devices),
    }  # fmt: skip
    run = _Run(
        spec.with_(device=device), folder / "ranks", order, devices, places, limits or LIMITS
    )
    with closing(run):
        return together(run.run(report), teller, devices)


def run_rank(context: RankContext) -> None:
    """Train in the process of one rank."""
    spec, board = RunSpec.from_dict(context.order["spec"]), context.board
    spec = spec.with_(device_memory=context.order["budgets"][context.rank])
    events = (
        context.folder / EVENTS if context.rank == context.order["teller"] else Path(os.devnull)
    )
    train_by = import_module(context.order["trains"]).training
    with train_by(spec, FileReporter(board, events), context.folder.parent) as training:
        board.come(Stage.READY)
        training.run()
        context.tell(asdict(training.outcome()))
    board.drain(spec.steps)
    with suppress(RuntimeError):  # all is told; a peer may have gone ahead
        dist.barrier()  # nobody leaves while another may still read from it


class FileReporter:
    """A rank's reporter: a line in a file for each event, and the board knows that it goes on."""

    def __init__(self, board: Board, path: Path) -> None:
        self._board = board
        self.turn = board.turn
        """Tells the number of the place in a step to which this rank turns."""
        self._file = path.open("a", buffering=1)

    def phase(self, text: str) -> None:
        self.event("phase", text=text)

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        self.event("step", step=step, loss=loss, seconds=seconds, grad_norm=grad_norm)
        self._board.end_step(step, loss)

    def event(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._board.begin(self._board.rank, self._board.steps)


def together(outcomes: list[Outcome], teller: int = 0, devices: Sequence[int] = ()) -> Outcome:
    """One outcome of all ranks': the largest peaks, the sum of bytes moved, and otherwise the
    teller's, whose clock and losses are everyone's. A peak of the host is all ranks' already; those
    of processes that share one of the `devices` are added."""
    first = asdict(outcomes[teller])
    peaks = {
        tier: _all(max, [o.peak_bytes[tier] for o in outcomes]) for tier in first["peak_bytes"]
    }
    of_device: dict[int, list[int | None]] = {}
    for number, outcome in zip(devices or range(len(outcomes)), outcomes, strict=True):
        of_device.setdefault(number, []).append(outcome.peak_bytes["device"])
    peaks["device"] = _all(max, [_all(sum, each) for each in of_device.values()])
    moved = {way: _all(sum, [o.moved_bytes[way] for o in outcomes]) for way in first["moved_bytes"]}
    notes, device = first["notes"], [o.peak_bytes["device"] for o in outcomes]
    if len(outcomes) > 1:
        notes = [*notes, "bytes moved: all ranks together, not those from device to device"]
    if len(outcomes) > 1 and None not in device:
        each = ", ".join(map(format_bytes, device))
        sums = " sum of one device" * (len(of_device) < len(devices))
        notes.append(f"device peak: the largest{sums} of {each}, without the network library's own")
    return Outcome(**{**first, "peak_bytes": peaks, "moved_bytes": moved, "notes": notes})


def _all(combine: Any, values: list[int | None]) -> int | None:
    return None if None in values else combine(values)


class _Run:
    """One run on its ranks, as its process sees it."""

    def __init__(
        self, spec: RunSpec, folder: Path, order: dict[str, Any], devices: Sequence[int],
        places: Sequence[str], limits: Limits,
    ) -> None:  # fmt: skip
        self._spec, self._order, self._events = spec, order, folder / EVENTS
        self._told, self._saving, self._places = 0, False, places
        self._longest_s = 0.0
        """Duration of the longest step so far. The first counts too, although layers are compiled
        in it: the second may take as long where a disk or a slow link bounds both."""
        steps = _steps_of(spec, len(devices))
        self._launcher = RankLauncher(
            folder, __name__, len(devices), device=spec.device, devices=devices
        )
        self._board = self._launcher.make_board(Board.sizes(steps))
        processes = self._launcher.processes
        ask = partial(stack_probe.where, folder, processes)
        self._watchdog = Watchdog(steps, self._board, limits, 0, processes, ask, self._place)

    def run(self, report: Reporter) -> list[Outcome]:
        """Start all ranks and wait for them, telling what the teller tells; what each measured."""
        self._launcher.start(self._order, meets=True)
        deadline = None
        while self._launcher.running():
            self._tell(report)
            self._launcher.check(self._late, self._place)
            if deadline is None and len(self._launcher.results()) == self._launcher.count:
                deadline = time.monotonic() + END_S
            if deadline is not None and time.monotonic() > deadline:
                break  # all is said and done; a library does not let its process go
            time.sleep(POLL_S)
        self._tell(report)
        self._launcher.check(place=self._place)
        return [Outcome(**result) for result in self._launcher.results()]

    def close(self) -> None:
        """End the ranks that are left: there is nothing that they still could do."""
        self._launcher.close()

    def _place(self, rank: int) -> str:
        """The end of a sentence on a rank: where in its step it is, if it has told."""
        number = self._board.place(rank)
        return f"; the last that it began is {self._places[number - 1]}" if number else ""

    def _late(self) -> str | None:
        long_s = LIMITS.start_s if self._saving else HANG_STEPS * self._longest_s
        return self._watchdog.late(self._spec.steps, long_s)

    def _tell(self, report: Reporter) -> None:
        """Pass on what the teller wrote since."""
        if not self._events.exists():
            return
        with self._events.open("rb") as file:
            file.seek(self._told)
            lines = file.readlines()
        for line in lines:
            if not line.endswith(b"\n"):  # still being written
                break
            self._told += len(line)
            event = json.loads(line)
            kind = event.pop("kind")
            self._heard(kind, event)
            say = {"phase": report.phase, "step": report.step}.get(kind)
            say(**event) if say else report.event(kind, **event)

    def _heard(self, kind: str, event: dict[str, Any]) -> None:
        every = self._spec.save_every
        if kind == "step":
            self._board.report(event["step"] + 1)
            self._longest_s = max(self._longest_s, event["seconds"])
            done = event["step"] + 1
            last = done == self._spec.steps
            self._saving = every > 0 and (last or done % every == 0)
        elif kind == "evaluating":
            self._saving = True


def _steps_of(spec: RunSpec, ranks: int) -> Schedule:
    """A rank's step is all that it tells the board of: one action, whose number is the rank's."""
    step = {"kind": Kind.UPDATE, "unit": 0, "lane": COMPUTE}
    actions = tuple(Action(**step, rank=rank) for rank in range(ranks))
    return Schedule(
        name=spec.method, num_units=1, num_microbatches=1, num_ranks=ranks, actions=actions
    )
