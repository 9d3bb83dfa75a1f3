"""Baselines on several ranks: one process a rank, started, watched and ended here.

The process of the run (runs/worker.py) starts the ranks in its own process group and holds no GPU
memory itself. It alone reports: rank 0 writes what happens to a file, which is followed here. The
ranks meet through a file and talk over the loopback interface (`rank_main`). When one fails or is
killed, its peers notice moments later and fail too, or wait for ever in a collective: so the causes
are gathered for a moment, the first one is raised, and whoever is left is killed. All tell a board
of their steps, so that one that hangs is found as with all methods on ranks (workbench/ranks/).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from baselines import stuck
from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.train import check_data, resolve_device
from workbench.ranks.causes import NOTICE_S, RankFailed, first_cause, raise_cause
from workbench.ranks.watch import Limits, Watch
from workbench.runtime.board import Board
from workbench.runtime.shared import make_shared
from workbench.schedule.action import COMPUTE, Action, Kind
from workbench.schedule.schedule import Schedule

PROCESS = (sys.executable, "-m", "baselines.rank_main")
ORDER, EVENTS, MEETING = "order.json", "events.jsonl", "meeting"
"""Files of the ranks' folder: what to do, what rank 0 tells, where all meet."""
POLL_S = 0.01
END_S = 10.0
"""How long a rank may take to end after the last step, before it is killed."""
LIMITS = Limits(start_s=1800.0)
"""Until the first step has ended weights are drawn, memory is page-locked, and layers and operators
are compiled, here in the ranks. To save a checkpoint may take as long."""
HANG_STEPS = 5
"""A step may take so many times as long as the longest before: ranks tell of nothing in between."""


def train(work: str, spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks; what they measured, as one.

    `work` names a module whose ``training(spec, report, folder)`` is a context in every rank, with
    ``run()`` and ``outcome()``. Raises what made a rank fail: OutOfMemory, ValueError or RankFailed
    with the rank's number in the message.
    """
    device = resolve_device(spec.device).type
    check_data(spec, report, folder)
    crew = _Crew(work, spec.with_(device=device), folder / "ranks")
    try:
        crew.run(report)
        return together(crew.results())
    finally:
        crew.close()


def refuse_host_activations(spec: RunSpec, label: str) -> None:
    """Raise ValueError, before anything is started, for activations that would go to the host."""
    if spec.activations == "host":
        raise ValueError(
            f"{label} keeps everything on the devices; activations cannot be 'host', use "
            "'recompute' or 'keep'"
        )


def together(outcomes: list[Outcome]) -> Outcome:
    """One outcome of all ranks': the largest peaks, the sum of bytes moved, and otherwise rank 0's,
    whose clock and losses are everyone's. A peak of the host is all ranks' already."""
    first = asdict(outcomes[0])
    peaks = {
        tier: _all(max, [o.peak_bytes[tier] for o in outcomes]) for tier in first["peak_bytes"]
    }
    moved = {way: _all(sum, [o.moved_bytes[way] for o in outcomes]) for way in first["moved_bytes"]}
    notes, device = first["notes"], [o.peak_bytes["device"] for o in outcomes]
    if len(outcomes) > 1:
        notes = [*notes, "bytes moved: all ranks together, not those from device to device"]
    if len(outcomes) > 1 and None not in device:
        each = ", ".join(map(format_bytes, device))
        notes.append(f"device peak: the largest of {each}, without the network library's own")
    return Outcome(**{**first, "peak_bytes": peaks, "moved_bytes": moved, "notes": notes})


def _all(combine: Any, values: list[int | None]) -> int | None:
    return None if None in values else combine(values)


class _Crew:
    """The processes of one run."""

    def __init__(self, work: str, spec: RunSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._ranks: list[subprocess.Popen] = []
        self._told, self._saving = 0, False
        self._longest_s = 0.0
        """Duration of the longest step so far. The first counts too, although layers are compiled
        in it: the second may take as long where a disk or a slow link bounds both."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():  # of an attempt before
            old.unlink()
        steps = _steps_of(spec)
        (self._memory,) = make_shared(0, "the board")
        path = Path(f"/proc/{os.getpid()}/fd/{self._memory}")
        Board.make(path, **Board.sizes(steps))
        self._board = Board(path, rank=0, **Board.sizes(steps))
        ask = partial(stuck.where, folder, self._ranks)
        self._watch = Watch(steps, self._board, LIMITS, 0, self._ranks, ask)
        order = {"work": work, "spec": spec.to_dict(), "board": [str(path), Board.sizes(steps)]}
        (folder / ORDER).write_text(json.dumps(order))

    def run(self, report: Reporter) -> None:
        """Start all ranks and wait for them, telling what rank 0 tells."""
        for rank in range(self._spec.ranks):
            command = [*PROCESS, str(self._folder), str(rank)]
            self._ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        deadline = None
        while any(process.poll() is None for process in self._ranks):
            self._tell(report)
            self._check()
            if deadline is None and len(self._results()) == len(self._ranks):
                deadline = time.monotonic() + END_S
            if deadline is not None and time.monotonic() > deadline:
                break  # all is said and done; a library does not let its process go
            time.sleep(POLL_S)
        self._tell(report)
        self._check()

    def results(self) -> list[Outcome]:
        """What each rank measured, in their order."""
        return [Outcome(**json.loads(path.read_text())) for path in self._results()]

    def close(self) -> None:
        """End whoever is left: there is nothing that they still could do."""
        for process in self._ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
        os.close(self._memory)

    def _results(self) -> list[Path]:
        paths = [self._folder / f"result-{rank}.json" for rank in range(self._spec.ranks)]
        return [path for path in paths if path.exists()]

    def _tell(self, report: Reporter) -> None:
        """Pass on what rank 0 wrote since."""
        path = self._folder / EVENTS
        if not path.exists():
            return
        with path.open("rb") as file:
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
        self._saving = kind == "step" and every > 0 and (event["step"] + 1) % every == 0

    def _check(self) -> None:
        """Raise the first cause where a rank has failed, was killed, or hangs."""
        if not any(process.poll() for process in self._ranks):
            long_s = LIMITS.start_s if self._saving else HANG_STEPS * self._longest_s
            if late := self._watch.late(self._spec.steps, long_s):
                raise RankFailed(late)
            return
        time.sleep(NOTICE_S)
        statuses = {rank: process.poll() for rank, process in enumerate(self._ranks)}
        raise_cause(*first_cause(self._folder, {r: s for r, s in statuses.items() if s}))


def _steps_of(spec: RunSpec) -> Schedule:
    """A rank's step is all that it tells the board of: one action, whose number is the rank's."""
    step = {"kind": Kind.UPDATE, "unit": 0, "lane": COMPUTE}
    actions = tuple(Action(**step, rank=rank) for rank in range(spec.ranks))
    return Schedule(
        name=spec.method, num_units=1, num_microbatches=1, num_ranks=spec.ranks, actions=actions
    )
