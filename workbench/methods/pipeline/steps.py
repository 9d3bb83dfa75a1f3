"""How long a whole step takes: its passes (quick.py), and sums, norm and updates after them.

Copies of a pipeline, each with its own draws, do not wait for each other until their gradients are
added up. A stage's sum begins when the last copy has them, beside the backward passes of the stages
before, and takes the seconds of its bytes and of the ring of copies. The norm waits for all sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from workbench.methods.pipeline.orders import F, held
from workbench.methods.pipeline.quick import Timed


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Gradients of a unit, or of a stage, that are added up over copies."""

    unit: int
    before_s: float = 0.0
    """Seconds before the end of the stage's last pass at which they are complete."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Loan:
    """Weights that one stage borrows of another one."""

    unit: int
    owner: int
    stages: tuple[int, int]
    """Stages of the unit, and of its owner."""
    seconds: float
    """Time of the message that takes gradients to the owner, or weights back."""


def step_seconds(
    copies: Sequence[Sequence[Timed]], sums: Sequence[Sequence[Sum]], *, norm_s: float = 0.0,
    updates_s: Sequence[float] = (), loans: Sequence[Loan] = (),
) -> float:  # fmt: skip
    """Seconds from the first pass of a step to that of the next one; `copies` have equal passes.

    Stage by stage, `sums` are in the order in which it completes them, and `updates_s` are seconds
    after the norm by which the first pass of the next step may have to wait.
    """
    count = len(sums)
    starts, ends, positions = [float("inf")] * count, [0.0] * count, [0] * count
    for timed in chain(*copies):
        stage, positions[timed.stage] = timed.stage, timed.position
        ends[stage] = max(ends[stage], timed.end_s)
        if timed.each.kind is F:
            starts[stage] = min(starts[stage], timed.start_s)
    ready: dict[int, float] = {}
    for stages in held(positions):
        done = 0.0
        own = [(ends[s] - one.before_s, one) for s in stages for one in sums[s]]
        for complete, one in sorted(own, key=lambda each: each[0]):
            done = max(done, complete) + one.seconds
            ready[one.unit] = done
    for loan in loans:
        ready[loan.owner] = max(ready[loan.owner], ready[loan.unit]) + loan.seconds
    updates = [*updates_s] or [0.0] * count
    for loan in loans:
        to, of = loan.stages
        updates[to] = max(updates[to], updates[of] + loan.seconds)
    waits = max(0.0, *(late - start for late, start in zip(updates, starts, strict=True)), 0.0)
    return max(*ends, *ready.values()) + norm_s + waits
