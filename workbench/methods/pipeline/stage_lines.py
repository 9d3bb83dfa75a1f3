"""Schedules of a pipeline whose units are stages.

Where activations are computed again, they are of the stages that would keep those of several
micro-batches: in the backward action, from a checkpoint, or before it, where the order's list says
so or inputs come back from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workbench.core.division import packs_of
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.orders import Pass, positions_of
from workbench.methods.pipeline.program import Program
from workbench.profile.unit_costs import Sizes
from workbench.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class StageLine(Pipeline):
    """Units are stages."""

    @cached_property
    def treated(self) -> frozenset[int]:
        """Stages that would keep activations of several micro-batches."""
        every = range(len(self.stages))
        return self.listed or frozenset(stage for stage in every if self.in_flight(stage) > 1)


def stage_schedule(
    method: str, passes: list[list[Pass]], replicas: int = 1, *, positions: Sequence[int] = (),
    sizes: Sizes | None = None, samples: int = 0, clipped: bool = False, **treatment: Any,
) -> Schedule:  # fmt: skip
    """One step of any lists of passes, a unit a stage. `positions` of the stages are by default
    dealt in turn. `sizes` of the stages, where they are known, are those of micro-batches of so
    many `samples` in all. `treatment` of activations and inputs is a pipeline's."""
    positions = positions or positions_of(passes)
    line = StageLine(
        method=method, passes=passes, stages=packs_of([1] * len(positions)), positions=positions,
        micro_size=1, samples=samples, replicas=replicas, clipped=clipped,
        **treatment,
    )  # fmt: skip
    return Program(line, sizes or IdealSizes()).schedule()
