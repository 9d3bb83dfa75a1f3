"""All ranks of a run on one machine: started, watched, reported, ended.

The process of the run (runs/worker.py) holds the memory of all ranks and their board, starts one
process a rank, and is the only one that reports, saves and resumes. A rank that fails or is killed
ends the run within seconds, with its own cause; one that hangs is named with what it was doing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.history import History
from workbench.methods.train import DTYPES, load_batches
from workbench.model import make_model
from workbench.ranks.causes import NOTICE_S, RankFailed, first_cause, raise_cause
from workbench.ranks.watch import LIMITS, Limits, Watch
from workbench.runtime.board import Board, Stage
from workbench.runtime.checkpoint import MemoryHolder
from workbench.runtime.match import check_ranks_match
from workbench.runtime.rank import host_updates, layouts_of
from workbench.runtime.shared import SharedHost, host_layout, make_shared
from workbench.runtime.shells import write_initial
from workbench.runtime.statistics import merged, statistics_file
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import Schedule
from workbench.schedule.serialize import to_json
from workbench.schedule.validate import validate

POLL_S = 0.005
END_S = 2.0
"""How long ranks may take to end after one has failed, before they are killed."""
LED = 2
"""Exit status of a rank that ends because another one failed."""
TIMELINE_STEPS = 3
PROCESS = (sys.executable, "-m", "workbench.methods.harmony.rank_process")


class Crew:
    """The ranks of one run under one schedule."""

    def __init__(
        self,
        spec: RunSpec,
        schedule: Schedule,
        folder: Path,
        *,
        device: str,
        process: Sequence[str] = PROCESS,
        limits: Limits = LIMITS,
    ) -> None:
        """`folder` is the run's own. Raises ValueError for a schedule of another model or batch,
        or one that breaks a rule, and OutOfMemory where the host has no room."""
        self.spec, self.schedule, self.folder = spec, schedule, folder / "ranks"
        self._process, self._limits, self._device = process, limits, device
        self.model = make_model(spec.model, spec.seed)
        self.layouts = layouts_of(self.model)
        check_ranks_match(schedule, self.layouts, DTYPES[spec.dtype], spec)
        _check_rules(schedule)
        self.flats = [layout.flat for layout in self.layouts]
        self.batches = load_batches(spec, self.model, folder / "cache")
        self.history = History(spec, folder, self.batches)
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():  # of an attempt before
            old.unlink()
        self._ranks: list[subprocess.Popen] = []
        # Both are memory without a name: gone with its last user, and fit to be page-locked.
        self._descriptors: list[int] = []
        try:
            self._descriptors += make_shared(host_layout(schedule)[1])
            self._descriptors += make_shared(0, "the board")
            *host, board = self._paths = [
                Path(f"/proc/{os.getpid()}/fd/{descriptor}") for descriptor in self._descriptors
            ]
            Board.make(board, **Board.sizes(schedule))
            self.board = Board(board, rank=0, **Board.sizes(schedule))
            self._host = SharedHost(host, schedule, 0, pin=False)
            self.states = host_updates(
                spec, schedule, self._host, self.board, self.layouts,
                dtype=DTYPES[spec.dtype], device=torch.device(device),
            )  # fmt: skip
        except BaseException:
            self._close_memory()
            raise

    def run(self, report: Reporter) -> None:
        """All steps that are left. Raises what made a rank fail."""
        holder = MemoryHolder(self.model, self.states, self.flats)
        first = self.history.resume(holder, report)
        if self.history.statistics:
            save_file(self.history.statistics, self.folder / statistics_file("all"))
        norms = self.history.grad_norms
        self.board.start_at(first, self.history.updates_done, norms[-1] if norms else None)
        total, every = self.spec.steps, self.spec.save_every or self.spec.steps
        ends = [*range(first + every - first % every, total, every), total]
        segments = [pair for pair in zip([first, *ends], ends, strict=False) if pair[0] < pair[1]]
        report.phase(f"starting {self.schedule.num_ranks} ranks")
        self._start(segments)
        if first == 0:  # nothing was taken up; ranks start meanwhile, and wait to be allowed to go
            write_initial(
                self.model, self.states, self.flats, self.spec.seed, watch=self._check_ends
            )
        report.phase("waiting for the ranks")
        self._await_ready(first)
        report.phase("training")
        seen = first
        for _, end in segments:
            self.board.allow(end)
            last = time.monotonic()  # neither starting nor saving is a step's time
            while self.board.drained < end or seen < end:
                running = self._check(end)
                if seen < min(self.board.steps, end) and self._known(seen):
                    last = self._report(seen, last, report)
                    seen += 1
                    self.board.report(seen)
                    continue
                if not running:
                    raise RankFailed(f"all ranks have ended, and step {seen} of {total} has not")
                time.sleep(POLL_S)
            if self.spec.save_every:
                done = int(self.board.total[1]) if self.spec.clip is not None else end
                self.history.save(end, done, holder, report, self.statistics())
        report.phase("ending")
        while running := [r for r, process in enumerate(self._ranks) if process.poll() is None]:
            self._check(total)
            if late := self._watch.still_there(running):
                raise RankFailed(late)
            time.sleep(POLL_S)
        self._check(total)

    def _await_ready(self, step: int) -> None:
        """Until all ranks may begin a step. Raises what made one fail, or who does not start."""
        while any(self.board.stage(rank) is not Stage.READY for rank in range(len(self._ranks))):
            if not self._check(step + 1):
                raise RankFailed("all ranks have ended before they were ready")
            time.sleep(POLL_S)

    def statistics(self) -> dict[str, torch.Tensor]:
        """BatchNorm's running statistics at the end of the last segment, by their names."""
        return merged(
            path
            for rank in range(self.schedule.num_ranks)
            if (path := self.folder / statistics_file(rank)).exists()
        )

    def results(self) -> list[dict[str, Any]]:
        """What each rank measured."""
        paths = [self.folder / f"result-{rank}.json" for rank in range(self.schedule.num_ranks)]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def _start(self, segments: list[tuple[int, int]]) -> None:
        (self.folder / "schedule.json").write_text(to_json(self.schedule))
        order = {
            "spec": self.spec.to_dict(),
            "device": self._device,
            "host": [*map(str, self._paths[:-1])],
            "board": str(self._paths[-1]),
            "segments": segments,
            "record_from": self.spec.steps - TIMELINE_STEPS,
            "origin": time.perf_counter(),
        }
        (self.folder / "order.json").write_text(json.dumps(order))
        first = self.board.steps
        self._watch = Watch(self.schedule, self.board, self._limits, first, self._ranks)
        for rank in range(self.schedule.num_ranks if segments else 0):
            command = [*self._process, str(self.folder), str(rank)]
            self._ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def _known(self, step: int) -> bool:
        """Whether a step's norm is, if it has one: it is decided after the last backward pass."""
        return self.spec.clip is None or self.board.norm_of(step) is not None

    def _report(self, step: int, last: float, report: Reporter) -> float:
        loss, ended = self.board.ended(step)
        norm = self.board.norm_of(step) if self.spec.clip is not None else None
        skipped = norm is not None and not abs(norm) < float("inf")
        self.history.ended(step, loss, ended - last, norm, skipped=skipped, report=report)
        return ended

    def _check(self, until: int) -> bool:
        """Raise the cause where a rank has failed, was killed, or hangs on its way to the end of a
        step; whether any is still running."""
        running = self._check_ends()
        if running and (late := self._watch.late(until)):
            raise RankFailed(late)
        return running

    def _check_ends(self) -> bool:
        """Raise the cause where a rank has failed or was killed; whether any is still running."""
        running = any(process.poll() is None for process in self._ranks)
        failed = self._failed()
        until = time.monotonic() + NOTICE_S
        while failed and -signal.SIGKILL not in failed.values() and time.monotonic() < until:
            if all(process.poll() is not None for process in self._ranks):
                break
            time.sleep(POLL_S)  # others may fail yet, and theirs may be the cause
            failed = self._failed()
        if not running:
            failed = failed or self._failed(led=True)
        if failed:
            raise_cause(*first_cause(self.folder, failed))
        return running

    def _failed(self, *, led: bool = False) -> dict[int, int]:
        """Exit statuses of ranks that failed; `led` with those that say another one did."""
        statuses = {rank: process.poll() for rank, process in enumerate(self._ranks)}
        return {r: status for r, status in statuses.items() if status and (led or status != LED)}

    def close(self) -> None:
        """End what is left, and give the memory back."""
        self.board.stop()
        deadline = time.monotonic() + END_S
        for process in self._ranks:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ranks.clear()
        self._host.close()
        self._close_memory()

    def _close_memory(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _check_rules(schedule: Schedule) -> None:
    """Raise ValueError for what would hang or compute something else. The planner has proved its
    own schedules; to prove one of a hundred layers again takes 0.2 to 0.5 s, and a rank 3 s to
    start."""
    try:
        validate(schedule)
    except ScheduleError as error:
        raise ValueError(f"the schedule {schedule.name!r} cannot run: {error}") from error
