"""One rank of a run on several: memory, engine and executor of one process.

Started by the process that made the shared memory and the board (training/rank_processes.py), which
also gives the layers their first weights, reports the steps, and saves what is in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from workbench.core.garbage import free_unreachable
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.text import Batches
from workbench.runtime.executor.board import Board
from workbench.runtime.executor.executor import Executor, Perturb
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.shared import SharedHost
from workbench.runtime.memory.storage import Flat
from workbench.runtime.memory.visits import VisitLayout
from workbench.runtime.passes.pack_engine import PackEngine
from workbench.runtime.passes.rank_context import RankContext
from workbench.runtime.passes.statistics import statistics_file
from workbench.runtime.transport.inbox import Inbox
from workbench.runtime.updates.host_updates import HostUpdates
from workbench.schedule.schedule import DEVICE, Schedule

ABANDON_S = 1.0
"""How long a lane may wait for a peer after a failure, where nobody ends its process."""


def layouts_of(model: LayeredModel) -> list[VisitLayout]:
    """How each unit lies on a device."""
    flats = [Flat.of(model, unit) for unit in range(model.num_units)]
    return [VisitLayout.of(model, unit, flats) for unit in range(model.num_units)]


class Rank:
    """A rank at work."""

    def __init__(
        self,
        spec: RunSpec,
        schedule: Schedule,
        model: LayeredModel,
        batches: Batches,
        *,
        folder: Path,
        board: Board,
        host: Sequence[Path],
        device: torch.device,
        dtype: torch.dtype,
        perturb: Perturb | None = None,
        record_from: int = 0,
        origin: float | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        part: Callable[[str], None] = lambda name: None,
        group: ProcessGroup | None = None,
    ) -> None:
        """`host` are files that all ranks map; in `folder` they tell each other of their inboxes.
        Events count from `origin`, of the clock that all processes of a machine share
        (time.perf_counter). `on_failure` is told at once why this rank fails, while its lanes may
        still wait for a message that never comes. `part` is told the end of each part of this.
        `group` adds up, of ranks that are processes of a user's loop: samples are there when a step
        begins, and no earlier, and a lane that waits for a peer that is gone is left behind."""
        self.board, self._folder, rank = board, folder, board.position
        schedule = schedule.of_replica(board.replica, spec.batch)
        if device.type == "cuda":
            free_unreachable()
        self.meter = device_meter(device, spec.device_memory)
        if device.type == "cuda":
            self.board.pin()
        self.host = SharedHost(
            host, schedule, rank, pin=device.type == "cuda", replica=board.replica
        )
        part("page-locking host memory")
        try:
            layouts = layouts_of(model)
            self.updates = HostUpdates(
                spec, schedule, self.host, board, layouts, dtype=dtype, device=device
            )
            nbytes = schedule.slot_bytes(DEVICE, rank).get("inbox", 0)
            inbox = Inbox(folder, board.rank, nbytes, self.meter, device, board.check)
            part("updates, places of messages")
            context = RankContext(
                model=model, schedule=schedule, spec=spec, batches=batches, host=self.host,
                board=board, meter=self.meter, layouts=layouts, device=device, dtype=dtype,
            )  # fmt: skip
            self.engine = PackEngine(context, self.updates, inbox, folder, group)
            part("device memory, passes")
            self.executor = Executor(
                schedule,
                self.engine.perform,
                device,
                perturb=perturb,
                on_step_end=lambda step, _: self.engine.end_step(step),
                record_from=record_from,
                origin=origin,
                board=self.board,
                compute_stream=self.engine.stream,
                announce=self.engine.transport.announce,
                together=device.type == "cuda",
                on_failure=on_failure,
                abandon_s=None if group is None else ABANDON_S,
            )
            self.meter.avoid_fragments()
            part("lanes")
        except BaseException:
            self.board.fail()
            self.host.close()
            raise

    def run(self, first: int, steps: int) -> None:
        """So many steps from one on, after which the host has all weights and states; raises the
        first failure of this rank."""
        if not self.executor.step_numbers:
            self.bring()
        self.advance(first, steps)
        self.give_back(first + steps - 1)

    def bring(self) -> None:
        """Take up all weights, states and statistics that stay here, as the host has them."""
        self.engine.bring()
        if (saved := self._folder / statistics_file("all")).exists():
            self.engine.statistics.read(saved)

    def advance(self, first: int, steps: int = 1) -> None:
        """So many steps from one on; raises the first failure of this rank."""
        with self.meter:
            self.executor.run(first, steps)

    def give_back(self, step: int) -> None:
        """After a step, let the host have them."""
        self.engine.give_back(step)
        self.engine.statistics.write(self._folder / statistics_file(self.board.rank))

    def close(self) -> None:
        """Give all memory back."""
        self.executor.close()
        self.engine.close()
        self.host.close()
