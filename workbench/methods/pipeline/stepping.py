"""Execution of a pipeline whose units are stages, by one process (schedules: stage_lines.py)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from workbench.core.bytesize import format_bytes
from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.orders import (
    ORDERS,
    F,
    Order,
    Pass,
    dealt,
    held,
    in_flight,
    lists,
)
from workbench.methods.pipeline.shares import Shares
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.profile.unit_costs import Sizes
from workbench.runtime.executor import stream_pool
from workbench.runtime.executor.executor import Executor, Perturb
from workbench.runtime.passes.stage_engine import StageEngine
from workbench.schedule.action import COMPUTE
from workbench.schedule.schedule import DEVICE, Schedule
from workbench.schedule.simulate import Event
from workbench.schedule.validate import validate

NEVER = 1 << 62
"""A step that does not come."""
ABANDON_S = 2.0
"""How long a lane may wait for another process after a failure in this one."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """How steps go through a pipeline. Raises ValueError for what cannot be."""

    map: StageMap
    """Ranks of each position."""
    order: str | Order
    """A name, or an order of the caller's own."""
    chunks: int | None = None
    """Stages of each position; two with orders that have several, where none are given."""
    positions: Sequence[int] = ()
    """Position of each stage; by default they are dealt to the positions in turn."""
    activations: str = "recompute"
    stash: int | None = None
    stash_on: str = "device"

    def __post_init__(self) -> None:
        able = [name for name, row in ORDERS.items() if not row.halved]
        if isinstance(self.order, str) and self.order not in able:
            known = self.order in ORDERS
            halves = "the backward pass of a stage is one call, without halves; " * known
            raise ValueError(f"order is {self.order!r}; {halves}give one of {', '.join(able)}")
        for name, known in (
            ("activations", ("keep", "recompute")),
            ("stash_on", ("device", "host")),
        ):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} is {value!r}; give {' or '.join(known)}")
        if self.activations == "keep" and (self.row.recomputes or self.stash_on == "host"):
            what = f"order {self.name}" if self.row.recomputes else "a stash on the host"
            raise ValueError(f"activations is 'keep'; with {what} they are computed again")
        dealt_out = dealt(self.map.stages * self._chunks, self.map.stages)
        object.__setattr__(self, "positions", self.positions or dealt_out)

    @property
    def row(self) -> Order:
        """The order."""
        return ORDERS[self.order] if isinstance(self.order, str) else self.order

    @property
    def name(self) -> str:
        """The order's name."""
        return self.order if isinstance(self.order, str) else self.order.label

    @property
    def _chunks(self) -> int:
        return self.chunks or 1 + self.row.chunked

    @property
    def one_each(self) -> bool:
        """Whether each position has one stage."""
        return len(self.positions) == self.map.stages

    @property
    def links(self) -> list[tuple[int, int]]:
        """Positions of a stage and of the one behind it, where these are two."""
        pairs = dict.fromkeys(pairwise(self.positions))
        return [(front, back) for front, back in pairs if front != back]

    def passes(self, micros: int) -> list[list[Pass]]:
        """Passes of each position in a step of so many micro-batches."""
        return lists(self.order, self.map.stages, micros, self._chunks)

    def shares(self, batch: int, micro_size: int) -> Shares:
        """A batch in micro-batches of so many rows at most. Raises ValueError where these would
        wait for each other for ever."""
        shares = Shares(
            batch=batch, replicas=self.map.replicas, micro_size=micro_size,
            multiple=self.map.stages if self.row.chunked else 1,
        )  # fmt: skip
        needs = max(
            in_flight(own, chunk)
            for own in self.passes(shares.micros)
            for chunk in {each.chunk for each in own}
        )
        if self.row.recomputes:  # whose forward passes let backward passes go first
            needs = 1
        if self.stash is not None and self.stash < needs:
            raise ValueError(
                f"stash is {self.stash}; with {self.name} a stage needs places for the inputs of "
                f"{needs} or more micro-batches"
            )
        return shares

    def schedule(self, micros: int, *, training: bool, **known: Any) -> Schedule:
        """A step of so many micro-batches, or forward passes alone; `known` are sizes."""
        shape = {"replicas": self.map.replicas, "positions": self.positions}
        if not training:
            return stage_schedule("forward", self._through(micros), **shape)
        again = "stash" if self.stash_on == "host" else self.row.again
        return stage_schedule(
            self.name, self.passes(micros), **shape, **known, stash=self.stash,
            activations=again if self.activations == "recompute" else "keep",
        )  # fmt: skip

    def _through(self, micros: int) -> list[list[Pass]]:
        """Forward passes alone. Micro-batches go through all stages of a position by turns: few
        wait between two."""
        most = self.map.stages
        return [
            [
                Pass(F, micro, chunk)
                for first in range(0, micros, most)
                for chunk in range(len(own))
                for micro in range(first, min(first + most, micros))
            ]
            for own in held(self.positions)
        ]


class Stepping:
    """Executes steps on one process, a schedule for each number of micro-batches."""

    def __init__(
        self, engine: StageEngine, device: torch.device, plan: StepPlan, *,
        position: int, proves: bool, records: bool, perturb: Perturb | None = None,
    ) -> None:  # fmt: skip
        """`position` of the process in the pipeline. One process `proves` schedules before they
        run."""
        self._engine, self._device, self._perturb = engine, device, perturb
        self._plan, self._position = plan, position
        self._proves, self._record_from = proves, 0 if records else NEVER
        self._executors: dict[tuple[int, bool], Executor] = {}
        self._stream = stream_pool.take(device) if device.type == "cuda" else None
        """Of all passes, since recordings are of one stream."""
        self._carries: tuple[int, bool] | None = None
        self._proved: set[tuple[int, bool]] = set()
        self.events: list[Event] = []
        """Measured events of the last step, in seconds from its beginning; empty where nobody
        `records` them."""

    def prove(self, micros: int, sizes: Sizes, samples: int, budget: int) -> None:
        """Prove a step of so many micro-batches, of so many samples in all, on stages of these
        sizes. Raises ValueError where a device needs more than a budget of bytes."""
        schedule = self._plan.schedule(micros, training=True, sizes=sizes, samples=samples)
        peaks = validate(schedule).peak_bytes
        position = max(peaks, key=lambda each: peaks[each][DEVICE])
        if (most := peaks[position][DEVICE]) > budget:
            raise ValueError(
                f"device_memory is {format_bytes(budget)}, and the stages of position {position} "
                f"need {format_bytes(most)}; use more stages, smaller micro-batches, or more memory"
            )
        self._proved.add((micros, True))

    def run(self, micros: int, step: int, *, training: bool) -> None:
        """One step, to its end. Raises what failed here."""
        key = micros, training
        if key not in self._executors:
            schedule = self._plan.schedule(micros, training=training)
            if self._proves and training and key not in self._proved:
                validate(schedule)
            self._executors[key] = Executor(
                schedule, self._engine.perform, self._device, rank=self._position,
                perturb=self._perturb, record_from=self._record_from, origin=0.0,
                announce=self._engine.transport.announce, together=self._device.type == "cuda",
                compute_stream=self._stream, abandon_s=ABANDON_S,
                on_failure=lambda _: self._engine.transport.stop(),
            )  # fmt: skip
        if self._carries != key:
            self._engine.transport.use(self._executors[key].schedule)
            self._carries = key
        executor, began = self._executors[key], time.perf_counter()
        executor.run(step, 1)
        self.events = [
            replace(event, start_s=event.start_s - began, end_s=event.end_s - began)
            for event in executor.events
        ]
        executor.events.clear()

    def forward_s(self) -> float | None:
        """The median forward pass of the last step; None where nobody records."""
        found = [event.end_s - event.start_s for event in self.events if event.kind == F.value]
        return median(found) if found else None

    def stop(self) -> None:
        """Have nothing wait any more (from any thread)."""
        for executor in [*self._executors.values()]:
            executor.stop()

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        for executor in self._executors.values():
            executor.close()
        self._engine.close()
        if self._stream is not None:
            stream_pool.give_back({COMPUTE: self._stream})
            self._stream = None
