"""Host memory and board of a schedule on several ranks, in the process that made them.

That is a run's own process (rank_processes.py), or the first of those in which a user's loop runs
(loop_ranks.py). It writes first weights, saves and resumes for all ranks, which map the memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.runtime.checkpoint.checkpoint import MemoryHolder
from workbench.runtime.executor.board import Board
from workbench.runtime.executor.match import check_empty, check_ranks_match
from workbench.runtime.memory.shared import SharedHost, host_layout, make_shared
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.memory.visits import VisitLayout
from workbench.runtime.passes.statistics import merged, statistics_file
from workbench.runtime.updates.host_updates import HostUpdates
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import Schedule
from workbench.schedule.validate import validate
from workbench.training.history import History


def check_runs(
    spec: RunSpec, schedule: Schedule, model: LayeredModel, layouts: list[VisitLayout]
) -> None:
    """Raise ValueError for a schedule of another model or batch, and for what would hang or compute
    something else. The planner has proved its own schedules; to prove one of a hundred layers again
    takes 0.2 to 0.5 s, and a rank 3 s to start."""
    check_ranks_match(schedule, layouts, DTYPES[spec.dtype], spec)
    check_empty(model, schedule, spec.batch)
    try:
        validate(schedule)
    except ScheduleError as error:
        raise ValueError(f"the schedule {schedule.name!r} cannot run: {error}") from error


class RankHost:
    """Memory of all ranks, and their steps in a run's history."""

    def __init__(
        self,
        spec: RunSpec,
        schedule: Schedule,
        model: LayeredModel,
        layouts: list[VisitLayout],
        board: Board,
        *,
        device: str,
    ) -> None:
        """Raises OutOfMemory where the host has no room."""
        self._spec, self._ranks, self._board = spec, schedule.mesh.processes, board
        # Memory without a name: gone with its last user, and fit to be page-locked.
        self._descriptors = make_shared(host_layout(schedule)[1])
        self.paths = [f"/proc/{os.getpid()}/fd/{file}" for file in self._descriptors]
        try:
            self._host = SharedHost([*map(Path, self.paths)], schedule, 0, pin=False)
            self.states = HostUpdates(
                spec, schedule, self._host, board, layouts,
                dtype=DTYPES[spec.dtype], device=torch.device(device),
            )  # fmt: skip
        except BaseException:
            self.close()
            raise
        self.flats = [layout.flat for layout in layouts]
        self._holder = MemoryHolder(model, self.states, self.flats)

    def resume(self, history: History, folder: Path, report: Reporter) -> int:
        """Take up a checkpoint, where there is one; returns the first step to do. In `folder` ranks
        find statistics."""
        first, norms = history.resume(self._holder, report), history.grad_norms
        if history.statistics:
            save_file(history.statistics, folder / statistics_file("all"))
        if first:
            self._board.start_at(first, history.updates_done, norms[-1] if norms else None)
        return first

    def norm(self, step: int) -> float | None:
        """Of a step's gradients, where that is taken."""
        return self._board.norm_of(step) if self._spec.clip is not None else None

    def ended(self, history: History, step: int, last: float, report: Reporter) -> float:
        """Enter a step that all are done with, and began `last`; returns when it ended."""
        loss, ended = self._board.ended(step)
        norm = self.norm(step)
        skipped = norm is not None and not abs(norm) < float("inf")
        history.ended(step, loss, ended - last, norm, skipped=skipped, report=report)
        self._board.report(step + 1)
        return ended

    def save(self, history: History, steps: int, folder: Path, report: Reporter) -> None:
        """Write a checkpoint; the host has all weights and states, ranks' statistics are in
        `folder`."""
        history.save(steps, self._done(steps), self._holder, report, self._statistics(folder))

    def _done(self, steps: int) -> int:
        return int(self._board.total[1]) if self._spec.clip is not None else steps

    def _statistics(self, folder: Path) -> dict[str, torch.Tensor]:
        return statistics(folder, self._ranks)

    def close(self) -> None:
        """Give the memory back; it goes with its last user."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def statistics(folder: Path, ranks: int) -> dict[str, torch.Tensor]:
    """BatchNorm's running statistics at the end of the last segment, by their names."""
    paths = (folder / statistics_file(rank) for rank in range(ranks))
    return merged(path for path in paths if path.exists())
