"""Baselines on several ranks: one process a rank, started, watched and ended here.

The process of the run (runs/worker.py) starts the ranks in its own process group and holds no GPU
memory itself. It alone reports: rank 0 writes what happens to a file, which is followed here. The
ranks meet through a file and talk over the loopback interface (`rank_main`). When one fails or is
killed, its peers notice moments later and fail too, or wait for ever in a collective: so the causes
are gathered for a moment, the first one is raised, and whoever is left is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from baselines import stuck
from workbench.methods.harmony.causes import NOTICE_S, first_cause
from workbench.methods.harmony.crew import RankFailed
from workbench.methods.train import check_data, resolve_device
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec
from workbench.runtime.tiers import OutOfMemory
from workbench.units import format_bytes

PROCESS = (sys.executable, "-m", "baselines.rank_main")
ORDER, EVENTS, MEETING = "order.json", "events.jsonl", "meeting"
"""Files of the ranks' folder: what to do, what rank 0 tells, where all meet."""
POLL_S = 0.01
END_S = 10.0
"""How long a rank may take to end after the last step, before it is killed."""
START_S = 1800.0
"""Before the first step has ended, in which weights are drawn, memory is page-locked and layers and
operators are compiled, nothing may be said for so long."""
HANG_S, HANG_STEPS = 300.0, 20
"""After the first step nothing may take longer than that, nor than so many times as long as what
took longest before."""


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
        self._told = 0
        self._heard_s, self._longest_s = time.monotonic(), 0.0
        """When rank 0 told something last, and the longest that it was silent after a step."""
        self._stepped = False
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():  # of an attempt before
            old.unlink()
        (folder / ORDER).write_text(json.dumps({"work": work, "spec": spec.to_dict()}))

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
            self._heard(kind)
            say = {"phase": report.phase, "step": report.step}.get(kind)
            say(**event) if say else report.event(kind, **event)

    def _heard(self, kind: str) -> None:
        now = time.monotonic()
        if self._stepped:
            self._longest_s = max(self._longest_s, now - self._heard_s)
        self._stepped |= kind == "step"
        self._heard_s = now

    def _check(self) -> None:
        """Raise the first cause where a rank has failed, was killed, or hangs."""
        if not any(process.poll() for process in self._ranks):
            silent = time.monotonic() - self._heard_s
            later = max(HANG_S, HANG_STEPS * self._longest_s)
            if silent > (later if self._stepped else START_S):
                running = [process.pid for process in self._ranks if process.poll() is None]
                if len(running) == len(self._ranks):
                    where = stuck.where(self._folder, running)
                    raise RankFailed(f"no step has ended for {silent:.0f} s: {where}")
            return
        time.sleep(NOTICE_S)
        statuses = {rank: process.poll() for rank, process in enumerate(self._ranks)}
        failed = {rank: status for rank, status in statuses.items() if status}
        _raise(*first_cause(self._folder, failed))


def _raise(rank: int, told: dict[str, Any]) -> None:
    message = f"rank {rank}: {told['message'] or told['type']}"
    match told["type"]:
        case None:
            raise RankFailed(f"rank {rank} {told['message']}; see log.txt")
        case "OutOfMemory":
            raise OutOfMemory(
                tier=told["tier"], what=f"rank {rank}'s {told['what']}", asked=told["asked"],
                in_use=told["in_use"], budget=told["budget"], why=told["why"],
            )  # fmt: skip
        case "OutOfMemoryError":
            raise torch.OutOfMemoryError(message)
        case "ValueError":
            raise ValueError(message)
    if told.get("errno"):
        raise OSError(told["errno"], f"{message} ({os.strerror(told['errno'])})")
    raise RankFailed(f"{message} ({told['type']})")
