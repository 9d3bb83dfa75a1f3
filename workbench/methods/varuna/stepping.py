"""Schedules of a pipeline whose units are stages, and their execution by one process."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from statistics import median

import torch

from workbench.methods.pipeline.draft import Pipeline
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.orders import F, Pass, lists
from workbench.methods.pipeline.program import Program
from workbench.runtime.executor import Executor, Perturb
from workbench.runtime.stage_engine import StageEngine
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import Event
from workbench.schedule.validate import validate

FORWARD = "forward"
"""Instead of an order: forward passes alone, to evaluate."""
NEVER = 1 << 62
"""A step that does not come."""
ABANDON_S = 2.0
"""How long a lane may wait for another process after a failure in this one."""


@lru_cache(maxsize=8)
def stage_schedule(order: str, stages: int, micros: int, replicas: int) -> Schedule:
    """One step of an order, or forward passes alone."""
    if order == FORWARD:
        passes = [[Pass(F, micro) for micro in range(micros)] for _ in range(stages)]
    else:
        passes = lists(order, stages, micros)
    return schedule_of(order, passes, replicas)


def schedule_of(method: str, passes: list[list[Pass]], replicas: int = 1) -> Schedule:
    """One step of any lists of passes, a unit a stage."""
    line = Pipeline(
        method=method,
        passes=passes,
        stages=[range(stage, stage + 1) for stage in range(len(passes))],
        micro=1,
        replicas=replicas,
        clipped=False,
    )
    return Program(line, IdealSizes()).schedule()


class Stepping:
    """Executes steps on one process, a schedule for each number of micro-batches."""

    def __init__(
        self,
        engine: StageEngine,
        device: torch.device,
        *,
        place: tuple[int, int],
        shape: tuple[int, int],
        proves: bool,
        records: bool,
        perturb: Perturb | None = None,
    ) -> None:
        """`place`: (stage, replica) of the process; `shape`: stages and replicas. One process
        `proves` schedules before they run."""
        self._engine, self._device, self._perturb = engine, device, perturb
        (self._stage, _), (self._stages, self._replicas) = place, shape
        self._proves, self._record_from = proves, 0 if records else NEVER
        self._executors: dict[tuple[str, int], Executor] = {}
        self._carries: tuple[str, int] | None = None
        self.events: list[Event] = []
        """Measured events of the last step, in seconds from its beginning; empty where nobody
        `records` them."""

    def run(self, order: str, micros: int, step: int) -> None:
        """One step, to its end. Raises what failed here."""
        key = order, micros
        if key not in self._executors:
            schedule = stage_schedule(order, self._stages, micros, self._replicas)
            if self._proves and order != FORWARD:
                validate(schedule)
            self._executors[key] = Executor(
                schedule,
                self._engine.perform,
                self._device,
                rank=self._stage,
                perturb=self._perturb,
                record_from=self._record_from,
                origin=0.0,
                announce=self._engine.transport.announce,
                together=self._device.type == "cuda",
                on_failure=lambda _: self._engine.transport.stop(),
                abandon_s=ABANDON_S,
            )
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

    def close(self) -> None:
        """End what is left, and let go of all tensors."""
        for executor in self._executors.values():
            executor.close()
        self._engine.close()
