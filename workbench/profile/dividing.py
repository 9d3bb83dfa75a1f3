"""The number of micro-batches of a step, where nobody says one: that whose plan is the fastest.

Numbers that divide the batch are planned, the fewest first. One device gains nothing from more of
them but memory: the batch in one part takes each weight in once, and launches the fewest passes. So
the search ends as soon as a plan has memory to spare, and each size of a micro-batch that is
planned for costs a measurement of the layers, and perhaps a compilation. Several ranks gain overlap
as well. Either way it ends where a step is predicted to take longer than with fewer.

A size that cannot win is not measured. Half the samples take no less than half the time and half
the memory: what depends on weights alone does not shrink, and smaller kernels fill the device no
better. So a plan by the costs of the larger size, in proportion, promises more than a measurement
can keep, of times and of memory alike. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from workbench.core.spec import AUTO, MOST_PASSES, RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, HOST_TIER

GAIN = 0.02
"""Share of a step that more micro-batches must save: less is noise of what was measured."""
SPARE, SPARE_IF_MEASURED = 0.5, 0.25
"""Share of the device's memory that a plan leaves free which would be no faster with more: its
bytes are counted, or those of layers that were measured."""


class Planned(Protocol):
    """A plan with a number of micro-batches."""

    @property
    def spec(self) -> RunSpec:
        """The spec with that number."""

    @property
    def plan(self) -> Plan:
        """The method's answer."""

    @property
    def spares(self) -> bool:
        """Whether it leaves memory of the device free."""


class Tried(NamedTuple):
    """One that has no more to tell."""

    spec: RunSpec
    plan: Plan
    spares: bool
    profile: Profile
    """Costs by which it is planned."""


T = TypeVar("T", bound=Planned)


def divisions(spec: RunSpec) -> list[RunSpec]:
    """The spec itself; where its number of micro-batches is open, with each that divides its batch,
    the fewest first."""
    if spec.microbatches != AUTO:
        return [spec]
    most = max(1, MOST_PASSES // spec.model.layers)
    found = [spec.with_(microbatches=1)]
    for count in range(2, min(spec.batch, most) + 1):
        if spec.batch % count == 0:
            with suppress(ValueError):  # more than a replica has samples
                found.append(spec.with_(microbatches=count))
    return found


def best_division(
    spec: RunSpec,
    ask: Callable[[RunSpec], T],
    promise: Callable[[RunSpec, T], T | None] = lambda each, best: None,
) -> T:
    """The fastest plan of the spec's `divisions`, of about equal ones that with the fewest
    micro-batches; of none that fits, the last one. `promise` makes the plan of a spec by the costs
    of a plan in fewer micro-batches, in proportion; where that saves nothing, nobody asks for the
    spec's own. Raises the last ValueError where all raise one."""
    best = last = refusal = None
    host_bytes = inf
    """That were too many with fewer micro-batches."""
    for each in divisions(spec):
        try:
            promised = best and promise(each, best)
            gains = promised is None or not promised.plan.fits or _gains(promised.plan, best.plan)
            last = ask(each) if gains else promised
        except ValueError as error:
            refusal = error
            continue
        if not last.plan.fits:
            needs = last.plan.peak_bytes.get(HOST_TIER, 0)
            if last.plan.lacking == HOST_TIER and needs >= host_bytes:
                break
            host_bytes = needs if last.plan.lacking == HOST_TIER else inf
            continue
        seconds = last.plan.step_seconds or inf
        if best is not None and seconds >= (best.plan.step_seconds or inf):
            break
        if best is None or _gains(last.plan, best.plan):
            best = last
        if spec.ranks == 1 and last.spares:
            break
    if last is None:
        raise refusal
    return best or last


def _gains(plan: Plan, best: Plan) -> bool:
    """Whether a plan is faster than another by more than noise."""
    return (plan.step_seconds or inf) < (1 - GAIN) * (best.step_seconds or inf)


def spares(plan: Plan, device_bytes: int, *, measured: bool) -> bool:
    """Whether a plan leaves so much of the device free that it was not slowed down by a lack."""
    share = SPARE_IF_MEASURED if measured else SPARE
    return plan.fits and plan.peak_bytes.get(DEVICE, 0) <= (1 - share) * device_bytes


def in_words(spec: RunSpec) -> str:
    """``in 4 micro-batches of 2, chosen``."""
    count = spec.microbatches
    return f"in {count} micro-batch{'es' * (count > 1)} of {spec.microbatch}, chosen"
