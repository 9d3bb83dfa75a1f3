"""A pass reads what is on its rank, and came from what made it.

The order of passes (rules.py) says that a unit's output is made before the next unit runs, not that
it comes to the rank which runs it. Here it is followed back: on the rank itself, through a message
of that very unit, micro-batch and samples, or through a stash on the host, to the pass that made
it. So is the gradient of an output, which only messages carry, and what a forward pass keeps for
its backward pass, which nothing carries.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.schedule.action import MEETING, RECEIVES, SENDS, Action, Kind
from workbench.schedule.graph import ScheduleError, partners
from workbench.schedule.passes import COMPUTING, B, F, I, R
from workbench.schedule.proof import Proof, Spans

INPUT, GRADIENT, KEPT = "input", "gradient of the input", "result kept for the backward pass"
BRINGS = {
    **dict.fromkeys((F, R), ((INPUT, 1), (KEPT, 0))),
    **dict.fromkeys((B, I, Kind.RECV_GRAD), ((GRADIENT, 0),)),
    **dict.fromkeys((Kind.RECV, Kind.STASH, Kind.FETCH), ((INPUT, 0),)),
}
"""Kind -> what it brings to its rank, and of which unit, counted from its own."""
Place = tuple[str, int, int]
"""(what, unit, rank)."""
ON_HOST = -1
"""Instead of a rank: host memory is one for all."""


def check_transport(proof: Proof) -> None:
    """Sends and receives match, and sums have one size. So does their order match, for what meets
    in another order deadlocks."""
    parts: dict[tuple, list[Action]] = defaultdict(list)
    for action in proof.schedule.actions:
        if action.kind in MEETING:
            parts[action.meeting].append(action)
    for those in parts.values():
        if those[0].kind is Kind.REDUCE:
            for other in those:
                _require_equal(those[0], other, "adds up")
            continue
        sends, receives = ([a for a in those if a.kind in kinds] for kinds in (SENDS, RECEIVES))
        for twice in (sends[:2], receives[:2]):
            if len(twice) == 2:
                raise ScheduleError(f"{twice[1].name} and {twice[0].name} are one message")
        if not (sends and receives):
            raise ScheduleError(f"{those[0].name} has no partner")
        if sends[0].rank == receives[0].rank:
            raise ScheduleError(f"{sends[0].name} sends to its own rank")
        _require_equal(sends[0], receives[0], "sends", "receives")


def _require_equal(one: Action, other: Action, does: str, theirs: str = "") -> None:
    sizes, samples = (one.nbytes, other.nbytes), (one.samples, other.samples)
    for what, (a, b) in (("bytes", sizes), ("as samples", samples)):
        if a != b:
            raise ScheduleError(f"{one.name} {does} {a} {what}, {other.name} {theirs or does} {b}")


def check_sources(proof: Proof) -> None:
    """Every pass finds on its rank what it reads. Of a single rank the order of passes says so."""
    schedule = proof.schedule
    if schedule.num_ranks == 1:
        return
    sources = _Sources(proof)
    for i, action in enumerate(schedule.actions):
        if action.kind not in COMPUTING:
            continue
        reads = [(INPUT, action.unit)] if action.unit else []
        if action.kind not in (F, R):
            reads = [(KEPT, action.unit), (GRADIENT, action.unit + 1)]
            reads = reads[: schedule.num_units - action.unit]
        for what, unit in reads:
            lacks = sources.lacking((what, unit, action.rank), action.span, i)
            if lacks is not None:
                which = "micro-batch" if action.samples is None else "sample"
                raise ScheduleError(
                    f"{action.name} may start before the {what} of unit {unit} is on rank "
                    f"{action.rank}: nothing that came from where it is made brings {which} {lacks}"
                )


class _Sources:
    """Values that come to a rank, and from whom."""

    def __init__(self, proof: Proof) -> None:
        self._proof, self._actions = proof, proof.schedule.actions
        self._partner = partners(proof.schedule)
        self._index = {action.name: i for i, action in enumerate(self._actions)}
        found: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for i, action in enumerate(self._actions):
            rank = ON_HOST if action.kind is Kind.STASH else action.rank
            if action.microbatch is not None or action.samples is not None:  # else it is of weights
                for what, further in BRINGS.get(action.kind, ()):
                    found[what, action.unit + further, rank].append(i)
        self._spans = [action.span for action in self._actions]
        self._found = {place: Spans(self._actions, those) for place, those in found.items()}

    def lacking(self, place: Place, span: tuple[int, int], reader: int) -> int | None:
        """The first of some samples that may not be at a place when an action starts."""
        reached, last = span
        for i in self._found[place].sharing(span) if place in self._found else ():
            first, end = self._spans[i]
            if first > reached:
                break
            ended = end > reached and self._proof.before(i, reader)
            if ended and self._came(place, (reached, min(end, last)), i):
                reached = end
        return None if reached >= last else reached

    def _came(self, place: Place, span: tuple[int, int], i: int) -> bool:
        """Whether what an action brings was there where it takes it from."""
        action = self._actions[i]
        if action.kind in COMPUTING:
            return True
        rank = ON_HOST if action.kind is Kind.FETCH else action.rank
        if action.kind in RECEIVES:
            send = self._partner[action.name]
            i, rank = self._index[send.name], send.rank
        return self.lacking((*place[:2], rank), span, i) is None
