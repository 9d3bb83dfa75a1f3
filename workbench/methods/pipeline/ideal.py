"""Pipelines in theory: each stage takes one quantum forward and two backward, messages none.

What an order does by itself shows here, without a model or a machine: ``workbench schedule`` prints
and draws it, and textbooks' step times and bubbles come out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import replace

from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import B, F, I, Pass, R, W, held, lists, positions_of
from workbench.methods.pipeline.program import Program
from workbench.profile.profile import UnitCost
from workbench.schedule.action import COMPUTE, Action, lane_kind
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import Simulation, simulate

QUANTA = {F: 1.0, R: 1.0, B: 2.0, I: 1.0, W: 1.0}
"""Quanta that a pass takes over a position's share of the model."""


class IdealSizes:
    """`Sizes` of stages as units, behind a unit 0 that takes nothing (of a first unit there is no
    gradient of the input): a stage's activations of a micro-batch are one byte, all else nothing.
    """

    library_bytes = 0

    def cost(self, unit: int, samples: int) -> UnitCost:
        return UnitCost(
            kind="stage", parameters=0, forward_s=1, recompute_s=1, backward_s=2,
            kept_bytes=int(unit > 0),
        )  # fmt: skip

    def input_bytes(self, unit: int, samples: int) -> int:
        return 0

    def owner(self, unit: int) -> int:
        return unit

    weight_bytes = visit_bytes = fresh_bytes = state_bytes = lambda self, unit: 0

    def token_bytes(self, samples: int) -> int:
        return 0


class IdealCosts:
    """Costs in quanta: passes take `QUANTA` over the stages of a position, all else nothing."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks

    def seconds(self, action: Action) -> float:
        return QUANTA.get(action.kind, 0.0) / self._chunks if action.unit else 0.0

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        return 1.0


def schedule_of(
    order: str, depth: int, micros: int, *, chunks: int = 1, recompute: bool = False
) -> Schedule:
    """The schedule of a model with one unit a stage, and unit 0 in the first. Raises ValueError for
    what the order cannot divide."""
    passes = lists(order, depth, micros, chunks)
    stages = tuple(range(stage - (stage == 1), stage + 1) for stage in range(1, depth * chunks + 1))
    pipeline = Pipeline(
        method=order, passes=passes, stages=stages, micro_size=1, clipped=False,
        activations="recompute" if recompute else "keep",
    )  # fmt: skip
    return Program(pipeline, IdealSizes()).schedule()


def simulated(schedule: Schedule, chunks: int = 1) -> Simulation:
    """One step; the events of its passes, in quanta, called ``F0`` by kind and micro-batch."""
    found = simulate(schedule, IdealCosts(chunks), steps=1)
    events = [
        replace(event, unit=event.unit - 1, name=f"{event.kind}{event.microbatch}")
        for event in found.events
        if lane_kind(event.lane) == COMPUTE and event.unit
    ]
    return replace(found, events=events)


def bubble(step: Simulation, depth: int) -> float:
    """Share of the step in which a position waits, on the mean of all."""
    busy = sum(step.busy_seconds(COMPUTE, rank) for rank in range(depth))
    return 1 - busy / (depth * step.step_seconds)


def with_recomputation(
    passes: Sequence[Sequence[Pass]], positions: Sequence[int] = ()
) -> list[list[Pass]]:
    """The passes of all positions, each stage's forward pass repeated before its backward pass. The
    last stage keeps what it needs: its backward pass follows at once. `positions` of the stages are
    by default dealt in turn."""
    stages = held(positions or positions_of(passes))
    last = sum(map(len, stages)) - 1
    found: list[list[Pass]] = []
    for own, numbers in zip(passes, stages, strict=True):
        found.append([])
        for each in own:
            if each.kind in (B, I) and numbers[each.chunk] != last:
                found[-1].append(each._replace(kind=R))
            found[-1].append(each)
    return found


def without_recomputation(passes: Iterable[Pass]) -> list[Pass]:
    """The passes of a position that keeps its activations."""
    return [each for each in passes if each.kind is not R]


def torch_csv(passes: Sequence[Sequence[Pass]], positions: Sequence[int] = ()) -> str:
    """The passes as torch's pipeline runtime loads them: a row a position, a cell a pass, such as
    ``2F0`` for stage 2 and micro-batch 0. Recomputations, which it does not know, are left out.
    `positions` of the stages are by default dealt in turn."""
    rows = [
        [f"{stages[p.chunk]}{p.kind.value}{p.micro}" for p in without_recomputation(own)]
        for own, stages in zip(passes, held(positions or positions_of(passes)), strict=True)
    ]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
