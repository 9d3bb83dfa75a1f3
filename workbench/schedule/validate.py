"""Proof, without running anything, that a schedule is right.

Everything rests on one relation, *a happens before b* (order.py): a's end precedes b's start in
every execution, whatever the durations. With it the following is exact, not a matter of sampling:

* every action stands where it can, every dependency exists, and nothing deadlocks (graph.py);
* the step computes what plain training computes (rules.py): what a pass reads came from what made
  it, to its rank (sources.py), and every copy of a weight is updated with the sum of all its
  gradients (replicas.py), those of units that borrow it from another rank too (loans.py);
* a buffer is occupied throughout every use, is taken again only after it was freed, and buffers of
  one slot never overlap (occupancy.py); replicas write to no memory of each other (replicas.py);
* the bytes that can be occupied at one time stay within the budgets (peak.py).

Lanes that take turns on a device (turns.py) are as free of each other here as any two lanes, so all
this holds for every choice that the device may make.

    >>> from workbench.schedule import Action, Kind, Schedule
    >>> F, B, U = Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE
    >>> hasty = Schedule(name="hasty", num_units=1, num_microbatches=1, actions=(
    ...     Action(kind=F, unit=0, microbatch=0, lane="compute", after=("U0@-1",)),
    ...     Action(kind=B, unit=0, microbatch=0, lane="compute"),
    ...     Action(kind=U, unit=0, lane="host")))
    >>> try:
    ...     validate(hasty)
    ... except ScheduleError as error:
    ...     print(error)
    U0 may start before B0.0 has ended: its gradients may be incomplete
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.schedule import loans, replicas, rules, sources
from workbench.schedule.action import (
    COMPUTE,
    D2H,
    DISK_IN,
    DISK_OUT,
    H2D,
    HOST,
    NET_IN,
    NET_OUT,
    RECEIVES,
    SENDS,
    VISIT,
    Kind,
    lane_kind,
)
from workbench.schedule.graph import Graph, ScheduleError, unroll
from workbench.schedule.occupancy import check_buffers
from workbench.schedule.order import Order
from workbench.schedule.passes import COMPUTING, Passes
from workbench.schedule.peak import Peak, worst_case
from workbench.schedule.proof import Proof
from workbench.schedule.schedule import TIERS, Schedule

STEPS = 3
"""Three repetitions show every relation between a step, the next, and the one after it."""

LANES_OF = {
    **dict.fromkeys(COMPUTING, (COMPUTE,)),
    **dict.fromkeys((Kind.LOAD, Kind.FETCH, Kind.PULL, Kind.SUM_IN), (H2D,)),
    **dict.fromkeys((Kind.EVICT, Kind.STASH, Kind.GRAD_OUT, Kind.PUSH, Kind.SUM_OUT), (D2H,)),
    Kind.NORM: (COMPUTE, HOST),
    **dict.fromkeys((Kind.UPDATE, Kind.SETTLE), (COMPUTE, HOST, VISIT)),
    Kind.MOMENTS: (HOST,),
    Kind.READ: (DISK_IN,),
    Kind.SPILL: (DISK_OUT,),
    **dict.fromkeys(SENDS, (NET_OUT,)),
    **dict.fromkeys(RECEIVES, (NET_IN,)),
}
"""Where a kind may run; collectives run wherever the planner puts them."""


@dataclass(frozen=True)
class Validation:
    """Facts that were proved."""

    num_actions: int
    peak_bytes: dict[int, dict[str, int]]
    """Rank -> tier -> the bytes no execution exceeds. Some order of starts and ends reaches them,
    unless a buffer may outlive the whole next step (peak.py)."""


def steps_to_prove(schedule: Schedule) -> int:
    """Repetitions that show every relation: more where micro-batches, versions of weights or copies
    of buffers last for several steps."""
    stale = max((action.stale for action in schedule.actions), default=0)
    copies = max((buffer.copies for buffer in schedule.buffers.values()), default=1)
    return STEPS + 2 * max(schedule.lag, stale, copies - 1)


def validate(schedule: Schedule) -> Validation:
    """Check all rules; raises ScheduleError naming the action that breaks one."""
    _check_places(schedule)
    replicas.check_apart(schedule)
    graph = unroll(schedule, steps_to_prove(schedule))
    _check_crossings(graph)
    order = Order(graph)
    proof = Proof(schedule, order)
    passes = Passes(proof)
    sources.check_transport(proof)
    rules.check_turns(proof)
    rules.check_passes(proof, passes)
    rules.check_stashes(proof, passes)
    sources.check_sources(proof)
    rules.check_gradients_out(proof, passes)
    rules.check_sums(proof, passes)
    replicas.check_copies(proof)
    rules.check_updates(proof, passes)
    replicas.check_reduced(proof, passes)
    loans.check_loans(proof, passes)
    rules.check_norm(proof, passes)
    rules.check_settled(proof)
    rules.check_moments(proof)
    rules.check_weights(proof)
    rules.check_states(proof)
    check_buffers(proof)
    peak_bytes: dict[int, dict[str, int]] = {}
    for rank in range(schedule.num_ranks):
        peaks = {tier: worst_case(graph, order, tier, rank) for tier in TIERS}
        for tier, peak in peaks.items():
            _check_budget(schedule, rank, tier, peak)
        peak_bytes[rank] = {tier: peak.nbytes for tier, peak in peaks.items()}
    return Validation(num_actions=len(schedule.actions), peak_bytes=peak_bytes)


def _check_places(schedule: Schedule) -> None:
    """Units, micro-batches, ranks and lanes are those of the schedule."""
    for action in schedule.actions:
        for what, number, limit in (
            ("unit", action.unit, schedule.num_units),
            ("micro-batch", action.microbatch or 0, schedule.num_microbatches),
            ("rank", action.rank, schedule.num_ranks),
        ):
            if number >= limit:
                raise ScheduleError(
                    f"{action.name} is about {what} {number}, the schedule's last is {limit - 1}"
                )
        lanes = LANES_OF.get(action.kind)
        if lanes is not None and lane_kind(action.lane) not in lanes:
            raise ScheduleError(
                f"{action.name} queues on lane {action.lane}, a {action.kind.name} runs on "
                f"{' or '.join(lanes)}"
            )
    for name, buffer in schedule.buffers.items():
        if buffer.rank >= schedule.num_ranks:
            raise ScheduleError(
                f"buffer {name!r} lies on rank {buffer.rank}, "
                f"the schedule's last is {schedule.num_ranks - 1}"
            )


def _check_crossings(graph: Graph) -> None:
    """Compute of one rank never waits for another rank directly: data has to get there."""
    actions = graph.schedule.actions
    for action, references in zip(actions, graph.references, strict=True):
        for _, other in references:
            if lane_kind(action.lane) == COMPUTE and actions[other].rank != action.rank:
                raise ScheduleError(
                    f"{action.name} on rank {action.rank} waits for {actions[other].name} of "
                    f"rank {actions[other].rank} without a transfer between them"
                )


def _check_budget(schedule: Schedule, rank: int, tier: str, peak: Peak) -> None:
    limit = schedule.budgets.get(tier)
    if limit is not None and peak.nbytes > limit:
        static = schedule.static_bytes(tier, rank)
        shown = ", ".join(peak.held[:4]) + (", ..." if len(peak.held) > 4 else "")
        held = f", {peak.nbytes - static:,} in {shown}" if peak.held else ""
        raise ScheduleError(
            f"rank {rank} may occupy {peak.nbytes:,} bytes of {tier} memory, "
            f"{peak.nbytes - limit:,} more than its budget of {limit:,} "
            f"({static:,} the whole time{held})"
        )
