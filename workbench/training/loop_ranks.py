"""Steps that a user's own loop asks for, under a schedule of several ranks: one in each of the
processes that torchrun started.

The first process measures, plans, and makes what all map: host memory, the board, and places for
the rows of a step, since a layer may need those of any process. So all are on one host. Layers that
stay on a device are written to the host where somebody asks for them.
"""

from __future__ import annotations

import copy
import math
import mmap
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core import methods
from workbench.core.reporter import Untold
from workbench.model import Made
from workbench.model.draws import Draws
from workbench.model.modules import Decomposed
from workbench.model.objective import Batch, Handed
from workbench.profile.profile import Limits
from workbench.profile.several import pinned_sizes, sizes_of
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.executor.board import Board
from workbench.runtime.executor.threads import use_rank_threads
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.rank import Rank, layouts_of
from workbench.runtime.transport.groups import as_one
from workbench.schedule.schedule import PAGE, Schedule
from workbench.schedule.serialize import from_json, to_json
from workbench.training.history import History
from workbench.training.loop import OutsideRate, Steps, Task, check_layers
from workbench.training.module_profile import profile_of
from workbench.training.rank_host import RankHost, check_runs, statistics
from workbench.training.ranks import up_to_room
from workbench.training.run import write_weights

NAP_S = 1e-4
"""Between two looks for all others to come."""


class Ranked(Steps):
    """Steps of one process of those that train."""

    steps = 0

    def __init__(self, task: Task) -> None:
        """Raises ValueError for what cannot be trained so, or does not fit."""
        spec = task.spec
        if task.stages is not None:
            raise ValueError(
                f"stages is {task.stages}; leave it out, {spec.method} divides the model itself"
            )
        self._device, self._ends = task.peers.device, ExitStack()
        self._board: Board | None = None
        self._host: RankHost | None = None
        self._rank: Rank | None = None
        try:
            self._begin(task)
        except BaseException:
            self.close()
            raise

    def _begin(self, task: Task) -> None:
        peers = task.peers
        self._number, self._ranks = peers.rank, len(peers.folders)
        self._control = sums = peers.group
        if self._device.type == "cuda":
            sums = peers.new_group("nccl")
        use_rank_threads(self._device.type, self._ranks)
        self._first, made = task.first, []
        whole = self._ranks == 1 and pinned_sizes(task.spec) == {task.first.rows}
        self._divided = not whole
        task.report.phase("cutting the module into layers")

        def introduce() -> int:
            made.extend(task.objective.layered())
            if self._divided:
                made[0].divide()
            return task.first.rows

        if not peers.one_host:
            raise ValueError(
                "the processes run on different hosts; start all of them on one, since they share "
                "its memory"
            )
        rows = as_one(introduce, self._control)
        self._model, weights = made
        model = self._model
        if len({*rows}) > 1:
            raise ValueError("the processes have different numbers of rows; give each as many rows")
        shape, batch = replace(task.spec.model, layers=max(1, model.layers)), sum(rows)
        spec = replace(task.spec, model=shape, batch=batch, ranks=self._ranks)
        self._spec, self._layouts = spec, layouts_of(model)
        lead = as_one(lambda: None if self._number else self._lead(task), self._control)[0]
        schedule, self._folder = from_json(lead["schedule"]), peers.folders[0]
        if self._number:
            self._board = Board(Path(lead["board"]), rank=self._number, **Board.sizes(schedule))
        peers.stops.append(self._stop)
        self._handed = Handed(self._places(lead["rows"]), model)
        batches = Draws(self._handed, spec.batch)
        if self._host is not None:
            self._history = History(spec, self._folder, batches, model=model)
        self._rank = Rank(
            spec, schedule, model, batches, folder=self._folder, board=self._board,
            host=[*map(Path, lead["host"])], device=self._device, dtype=DTYPES[spec.dtype],
            record_from=spec.steps, on_failure=peers.say, group=sums,
        )  # fmt: skip
        self._ends.callback(self._rank.close)
        if self._host is not None:
            write_weights(task.report, model, self._host.states, self._host.flats, spec.seed)
        weights.clear()
        self._meet()
        self._rank.bring()

    def _lead(self, task: Task) -> dict[str, Any]:
        """Plan and make all that is shared; what the others need to know of it."""
        batches = Draws(Handed(task.first, self._model), task.spec.batch)
        check_layers(
            task.report, task.spec, self._model, task.first, task.again, divided=self._divided
        )
        schedule = self._plan(self._spec, batches, task)
        task.report.phase("laying out memory")
        check_runs(self._spec, schedule, self._model, self._layouts)
        places = (*task.first.tensors, task.first.weights)
        nbytes = PAGE + sum(self._ranks * place.nbytes + PAGE for place in places)
        files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("board", "rows")]
        for file in files:
            self._ends.callback(os.close, file)
        board, rows = (f"/proc/{os.getpid()}/fd/{file}" for file in files)
        os.posix_fallocate(files[1], 0, nbytes)
        Board.make(Path(board), **Board.sizes(schedule))
        self._board = Board(Path(board), rank=0, **Board.sizes(schedule))
        self._host = RankHost(
            self._spec, schedule, self._model, self._layouts, self._board, device=self._device.type
        )
        self._ends.callback(self._host.close)
        return {
            "schedule": to_json(schedule), "board": board, "rows": rows, "host": self._host.paths,
        }  # fmt: skip

    def _plan(self, spec: OutsideRate, batches: Draws, task: Task) -> Schedule:
        """The schedule of the spec's method. A micro-batch has at most the rows of a process, and
        all of them where samples depend on each other and nobody asked for fewer."""
        model: Decomposed = self._model
        rows, parts = task.first.rows, task.microbatches
        if parts > 1 or (model.couples and not pinned_sizes(spec)):
            size = -(-rows // parts)
            if other := pinned_sizes(spec) - {size}:
                raise ValueError(
                    f"microbatches is {parts}, by which a micro-batch has {size} of the {rows} "
                    f"rows of a process, and forward_size or backward_size is {min(other)}; give "
                    "one of the two"
                )
            sizes = replace(spec.options, forward_size=size, backward_size=size)
            spec = replace(spec, options=sizes)
        spec = replace(spec, model=Made(**asdict(spec.model), model=lambda: model))
        limits = Limits(smallest=1, forward=rows, backward=rows)
        profiles = up_to_room(
            sizes_of(spec, limits),
            lambda size: replace(
                profile_of(spec, model, batches.rows(range(size)), task.results, task.report),
                limits=limits,
            ),
        )
        task.report.phase("planning")
        self.plan = methods.load(spec.method).plan_sizes(spec, profiles)
        if self.plan.fits:
            task.report.event("planned", text=self.plan.in_words())
        return self.plan.schedule

    def _places(self, path: str) -> Batch:
        """The step's whole batch, as views of memory in which each process writes its rows."""
        with open(path, "r+b") as file:
            whole = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self._here, at, places = whole[: 8 * self._ranks].view(np.int64), PAGE, []
        """How often each process has met the others."""
        for own in (*self._first.tensors, self._first.weights):
            part = torch.from_numpy(whole[at : at + own.nbytes * self._ranks])
            places.append(part.view(own.dtype).view(self._ranks * len(own), *own.shape[1:]))
            at += -(-part.nbytes // PAGE) * PAGE
        found = copy.copy(self._first)
        *found.tensors, found.weights = places
        found.rows = len(found.weights)
        return found

    @property
    def grad_norm(self) -> float | None:
        """The global norm of the last step's gradients, where they are clipped."""
        clipped = self._spec.clip is not None and self.steps
        return self._board.norm_of(self.steps - 1) if clipped else None

    def step(self, batch: Batch) -> float:
        step, began, whole = self.steps, time.monotonic(), self._handed.batch
        self._before = step
        self._rank.engine.statistics.keep()
        part = slice(self._number * batch.rows, (self._number + 1) * batch.rows)
        for place, own in zip(whole.tensors, batch.tensors, strict=True):
            place[part].copy_(own)
        whole.weights[part].copy_(batch.weights)
        self._meet()
        self._rank.advance(step)
        self._board.drain(step + 1)
        self._until(lambda: self._board.drained > step)
        self.steps += 1
        loss, _ = self._board.ended(step)
        if not math.isfinite(self.grad_norm or 0.0):  # no weight was changed
            self._rank.engine.statistics.forget()
        if self._host is not None:
            self._host.ended(self._history, step, began, Untold())
        return loss

    def forget(self) -> bool:
        self._rank.engine.forget()
        self._board.again(self._before)
        return not self._rank.executor.half_updated and self.steps == self._before

    def tensors(self) -> dict[str, Tensor]:
        self._give_back()
        flats = [layout.flat for layout in self._layouts]
        found = checkpoint.parameters(self._model, self._rank.updates, flats)
        return found | statistics(self._folder, self._ranks)

    def weights(self) -> checkpoint.ByUnit:
        self._give_back()
        flats = [layout.flat for layout in self._layouts]
        trained = checkpoint.by_unit(self._model, self._rank.updates, flats)
        return checkpoint.in_memory(statistics(self._folder, self._ranks), trained)

    def save(self, folder: Path) -> Path:
        path = folder / step_name(self.steps)
        self._give_back()

        def write() -> None:
            self._history.folder, self._history.settings = folder, self._spec.optimizer.told()
            self._host.save(self._history, self.steps, self._folder, Untold())
            if not path.exists():
                raise OSError(self._history.notes[-1])

        as_one(write if self._host is not None else lambda: None, self._control)
        return path

    def load(self, folder: Path) -> int | None:
        def take() -> int:
            self._history.folder = folder
            return self._host.resume(self._history, self._folder, Untold())

        found = as_one(take if self._host is not None else lambda: None, self._control)[0]
        if found:
            self.steps = found
            self._rank.bring()
        return found or None

    def close(self) -> None:
        """Raises nothing."""
        if self._board is not None:
            self._board.stop()
        self._ends.close()

    def _stop(self) -> None:
        self._board.stop()
        if self._rank is not None:
            self._rank.executor.stop()

    def _give_back(self) -> None:
        """Have all weights and states on the host, in every process."""
        if self.steps:
            self._rank.give_back(self.steps - 1)
        self._meet()

    def _meet(self) -> None:
        """Until all processes are here. Raises Failed where one never will be."""
        self._here[self._number] += 1
        met = int(self._here[self._number])
        self._until(lambda: self._here.min() >= met)

    def _until(self, seen: Callable[[], bool]) -> None:
        while not seen():
            self._board.check()
            time.sleep(NAP_S)
