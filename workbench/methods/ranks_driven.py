"""Steps that a user's own loop asks for, under a schedule of several ranks: one in each of the
processes that torchrun started.

The first process measures, plans, and makes what all map: host memory, the board, and places for
the rows of a step, since a layer may need those of any process. So all are on one host. Between
steps nobody waits inside a library: a process that has failed says so on the board, and why in a
folder, and one that has ended, or stays stopped, is seen by all others. One that is late is waited
for: its user's loop may do anything between two steps. Layers that stay on a device are written to
the host where somebody asks for them.
"""

from __future__ import annotations

import copy
import mmap
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from workbench.core import methods
from workbench.core.parents import is_stopped
from workbench.core.reporter import Untold
from workbench.methods.driven import OutsideRate, Steps, Task, check_layers, profile_of
from workbench.methods.history import History
from workbench.methods.rank_host import RankHost, check_runs, statistics
from workbench.methods.train import resolve_device
from workbench.methods.train_ranks import up_to_room
from workbench.model import Made
from workbench.model.draws import Draws
from workbench.model.modules import Decomposed
from workbench.model.objective import Batch, Handed
from workbench.profile.profile import Limits
from workbench.profile.several import pinned_sizes, sizes_of
from workbench.ranks import failures
from workbench.runtime import checkpoint
from workbench.runtime.board import Board, Failed
from workbench.runtime.groups import PATIENCE, as_one, device_of, join
from workbench.runtime.manifest import step_name
from workbench.runtime.notes import leave
from workbench.runtime.rank import Rank, layouts_of
from workbench.runtime.storage import DTYPES
from workbench.runtime.threads import use_rank_threads
from workbench.runtime.unit_modules import write_initial
from workbench.schedule.action import Kind
from workbench.schedule.schedule import PAGE, Schedule
from workbench.schedule.serialize import from_json, to_json

NAP_S, LOOK_S = 1e-4, 0.02
"""Between two looks for all others to come, and for one that has failed."""
STOPPED_S = 30.0
"""Until a process that a signal has stopped (SIGSTOP) is given up."""
SAME_HOST = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid"))
"""Equal for processes that can open each other's files of memory."""


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
        kind, local = resolve_device(spec.device).type, int(os.environ.get("LOCAL_RANK", 0))
        self._device = device_of(kind if kind == "cpu" else -1, local)
        self._ends, self._failed, self._others = ExitStack(), False, {}
        self._board: Board | None = None
        self._host: RankHost | None = None
        self._rank: Rank | None = None
        try:
            self._begin(task)
        except BaseException:
            self.close()
            raise

    def _begin(self, task: Task) -> None:
        if join(self._device):
            self._ends.callback(dist.destroy_process_group)
        self._number, self._ranks = dist.get_rank(), dist.get_world_size()
        self._control = self._sums = self._group("gloo")
        if self._device.type == "cuda":
            self._sums = self._group("nccl")
        use_rank_threads(self._device.type, self._ranks)
        self._first, made = task.first, []

        def introduce() -> tuple[Any, ...]:
            made.extend(task.objective.layered())
            here = SAME_HOST[0].read_text(), os.readlink(SAME_HOST[1])
            return here, os.getpid(), task.first.rows, Handed(task.first, made[0]).digest

        hosts, pids, rows, digests = zip(*as_one(introduce, self._control), strict=True)
        self._model, weights = made
        model = self._model
        for what, found, why in (
            ("hosts", hosts, "start all of them on one, since they share its memory"),
            ("numbers of rows", rows, "give each as many rows"),
            ("modules", digests, "make one module in all of them"),
        ):
            if any(each != found[0] for each in found):
                raise ValueError(f"the processes have different {what}; {why}")
        for n, pid in enumerate(pids):
            if n != self._number:
                self._others[os.pidfd_open(pid)] = n, pid
        shape, batch = replace(task.spec.model, layers=max(1, model.layers)), sum(rows)
        spec = replace(task.spec, model=shape, batch=batch, ranks=self._ranks)
        self._spec, self._layouts = spec, layouts_of(model)
        lead = as_one(lambda: None if self._number else self._lead(task), self._control)[0]
        schedule, self._folder = from_json(lead["schedule"]), Path(lead["folder"])
        if self._number:
            self._board = Board(Path(lead["board"]), rank=self._number, **Board.sizes(schedule))
        self._handed = Handed(self._places(lead["rows"]), model)
        batches = Draws(self._handed, spec.batch)
        if self._host is not None:
            self._history = History(spec, self._folder, batches)
        own = (a for a in schedule.actions if a.kind is Kind.BACKWARD and a.unit == model.head)
        self._micros = sorted(action.span for action in own)
        with self._watched():
            self._rank = Rank(
                spec, schedule, model, batches, folder=self._folder, board=self._board,
                host=[*map(Path, lead["host"])], device=self._device, dtype=DTYPES[spec.dtype],
                record_from=spec.steps, on_failure=self._say, group=self._sums,
            )  # fmt: skip
            self._ends.callback(self._rank.close)
            if self._host is not None:
                write_initial(model, self._host.states, self._host.flats, spec.seed)
            weights.clear()
            self._meet()
            self._rank.bring()

    def _group(self, backend: str) -> dist.ProcessGroup:
        made = dist.new_group(backend=backend, timeout=PATIENCE)
        self._ends.callback(dist.destroy_process_group, made)
        return made

    def _lead(self, task: Task) -> dict[str, Any]:
        """Plan and make all that is shared; what the others need to know of it."""
        batches = Draws(Handed(task.first, self._model), task.spec.batch)
        check_layers(self._model, batches.data, task.spec)
        schedule = self._plan(self._spec, batches, task)
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
            "folder": str(task.folder),
        }  # fmt: skip

    def _plan(self, spec: OutsideRate, batches: Draws, task: Task) -> Schedule:
        """The schedule of the spec's method. A micro-batch has at most the rows of a process, and
        all of them where samples depend on each other and nobody asked for fewer."""
        model: Decomposed = self._model
        rows, parts = task.first.rows, task.microbatches
        if parts > 1 or (model.couples and not pinned_sizes(spec)):
            size = -(-rows // parts)
            sizes = replace(spec.options, forward_size=size, backward_size=size)
            spec = replace(spec, options=sizes)
        spec = replace(spec, model=Made(**asdict(spec.model), model=lambda: model))
        limits = Limits(smallest=1, forward=rows, backward=rows)
        profiles = up_to_room(
            sizes_of(spec, limits),
            lambda size: replace(
                profile_of(spec, model, batches.rows(range(size)), task.results), limits=limits
            ),
        )
        return methods.load(spec.method).plan_sizes(spec, profiles).schedule

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
        clipped = self._spec.clip is not None and self.steps
        return self._board.norm_of(self.steps - 1) if clipped else None

    def step(self, batch: Batch) -> float:
        step, began, whole = self.steps, time.monotonic(), self._handed.batch
        part = slice(self._number * batch.rows, (self._number + 1) * batch.rows)
        with self._watched():
            for place, own in zip(whole.tensors, batch.tensors, strict=True):
                place[part].copy_(own)
            whole.weights[part].copy_(batch.weights)
            self._meet()
            whole.check_parts(self._micros)
            self._rank.advance(step)
            self._board.drain(step + 1)
            self._until(lambda: self._board.drained > step)
        self.steps += 1
        loss, _ = self._board.ended(step)
        if self._host is not None:
            self._host.ended(self._history, step, began, Untold())
        return loss

    def tensors(self) -> dict[str, Tensor]:
        self._give_back()
        flats = [layout.flat for layout in self._layouts]
        found = checkpoint.parameters(self._model, self._rank.updates, flats)
        found |= statistics(self._folder, self._ranks)
        with self._watched():
            self._meet()  # the first may close, and remove the folder
        return found

    def save(self, folder: Path) -> Path:
        path = folder / step_name(self.steps)
        self._give_back()

        def write() -> None:
            self._history.folder = folder
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
        """Raises nothing. Where this process failed, the others are left time to read why."""
        if self._board is not None:
            self._board.stop()
        if self._failed:
            time.sleep(failures.NOTICE_S)
        self._ends.close()
        while self._others:
            os.close(self._others.popitem()[0])

    def _give_back(self) -> None:
        """Have all weights and states on the host, in every process."""
        with self._watched():
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

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Look after the other processes meanwhile. Raises what made one of them fail."""
        over, gone = threading.Event(), {}
        watch = threading.Thread(target=self._watch, args=(over, gone), daemon=True)
        watch.start()
        try:
            yield
        except BaseException as error:
            self._failed = True
            if isinstance(error, Failed) or failures.lost_peer(error):
                watch.join(failures.NOTICE_S)
                self._raise_cause(gone)
            self._say(error)
            self._board.fail()
            raise
        finally:
            over.set()
            watch.join()

    def _watch(self, over: threading.Event, gone: dict[int, str]) -> None:
        """Stop this rank's lanes where another process has failed, ended, or stays stopped. Looks
        are counted, not seconds: this process may have been stopped as well."""
        looks = dict.fromkeys(self._others, 0)
        while not over.wait(LOOK_S):
            ended = select.select(self._others, (), (), 0)[0]
            for each, (rank, pid) in self._others.items():
                looks[each] = looks[each] + 1 if is_stopped(pid) else 0
                if each in ended:
                    gone[rank] = "its process has ended"
                elif looks[each] * LOOK_S > STOPPED_S:
                    gone[rank] = f"it is stopped, and has not moved for {STOPPED_S:.0f} s"
                    self._say(failures.RankFailed(f"rank {rank}: {gone[rank]}"))
            if gone:
                self._board.stop()
            try:
                self._board.check()
            except Failed:
                if self._sums is not self._control:  # a device waits in it for ever
                    self._sums.abort()
                if self._rank is not None:
                    self._rank.executor.stop()
                return

    def _say(self, error: BaseException) -> None:
        """Leave the others a note why this rank fails; of several failures the first counts."""
        path = self._folder / f"failure-{self._number}.json"
        if not isinstance(error, Failed) and self._folder.exists() and not path.exists():
            leave(path, failures.failure_of(error))

    def _raise_cause(self, gone: dict[int, str]) -> None:
        """Raise what made a rank fail: as it says itself, or that it has ended, or closed."""
        told = {n for n in range(self._ranks) if (self._folder / f"failure-{n}.json").exists()}
        what = "another rank has closed its engine"
        if silent := {*gone} - told:
            what = f"rank {min(silent)}: {gone[min(silent)]}"
        elif told:
            failures.raise_cause(*failures.first_cause(self._folder, dict.fromkeys(told, 1)))
        raise failures.RankFailed(f"{what}, in step {self.steps}")
