"""On the rank of a pass is what it reads, and it came from what made it.

The order of passes (rules.py) says that a unit's output has been made when the next unit runs, not
that it has come to the rank that runs it. Here it is followed back: on the rank itself, through the
message of that very unit, micro-batch and samples, or through a stash on the host, until a pass
that made it. So are gradients of outputs, which only messages carry, and what a forward pass keeps
for its backward pass, which nothing carries.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.schedule.action import MEETING, RECEIVES, SENDS, Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.passes import COMPUTING, B, F, I, R, Spans
from workbench.schedule.proof import Proof

INPUT, GRADIENT, KEPT = "input", "gradient", "kept"
"""Of a unit: its input, the gradient of that, and what its backward pass needs of its forward."""
ON_HOST = -1
"""Instead of a rank: host memory is one for all."""

Place = tuple[str, int, int]
"""(what, unit, rank)."""


def check_transport(proof: Proof) -> None:
    """Sends and receives match, and sums have one size. So does their order match, for what meets
    in another order deadlocks."""
    actions = proof.schedule.actions
    sends: dict[tuple, int] = {}
    receives: dict[tuple, int] = {}
    sums: dict[tuple, int] = {}
    for i, action in enumerate(actions):
        if action.kind not in MEETING:
            continue
        key = action.meeting
        if action.kind is Kind.REDUCE:
            first = actions[sums.setdefault(key, i)]
            if first.nbytes != action.nbytes:
                raise ScheduleError(
                    f"{first.name} adds up {first.nbytes} bytes, {action.name} {action.nbytes}"
                )
            continue
        table = sends if action.kind in SENDS else receives
        if key in table:
            raise ScheduleError(f"{action.name} and {proof.name(table[key])} are one message")
        table[key] = i
    for key, i in [*sends.items(), *receives.items()]:
        if key not in sends or key not in receives:
            raise ScheduleError(f"{proof.name(i)} has no partner")
    for key, i in sends.items():
        send, receive = actions[i], actions[receives[key]]
        if send.rank == receive.rank:
            raise ScheduleError(f"{send.name} sends to its own rank")
        if send.nbytes != receive.nbytes:
            raise ScheduleError(
                f"{send.name} sends {send.nbytes} bytes, {receive.name} receives {receive.nbytes}"
            )
        if send.samples != receive.samples:
            raise ScheduleError(
                f"{send.name} sends samples {send.samples}, {receive.name} receives "
                f"{receive.samples}"
            )


def check_sources(proof: Proof) -> None:
    """Every pass finds on its rank what it reads. On a single one the order of passes says that."""
    if proof.schedule.num_ranks == 1:
        return
    sources = _Sources(proof)
    for i, action in enumerate(proof.schedule.actions):
        if action.kind in COMPUTING:
            sources.check(i)


class _Sources:
    """What comes to which rank, by whom."""

    def __init__(self, proof: Proof) -> None:
        self._proof, self._actions = proof, proof.schedule.actions
        self._sends = {a.meeting: i for i, a in enumerate(self._actions) if a.kind in SENDS}
        found: dict[Place, list[int]] = defaultdict(list)
        for i, action in enumerate(self._actions):
            unit, rank = action.unit, action.rank
            if action.microbatch is None and action.samples is None:
                continue  # weights, or their gradients
            if action.kind in (F, R):
                found[INPUT, unit + 1, rank].append(i)
                found[KEPT, unit, rank].append(i)
            elif action.kind in (B, I, Kind.RECV_GRAD):
                found[GRADIENT, unit, rank].append(i)
            elif action.kind in (Kind.RECV, Kind.FETCH):
                found[INPUT, unit, rank].append(i)
            elif action.kind is Kind.STASH:
                found[INPUT, unit, ON_HOST].append(i)
        self._found = {place: Spans(self._actions, there) for place, there in found.items()}

    def check(self, i: int) -> None:
        """Raises ScheduleError where a pass may lack what it reads."""
        action, unit = self._actions[i], self._actions[i].unit
        if action.kind in (F, R):
            reads = [(INPUT, unit, f"the output of unit {unit - 1}")] if unit else []
        else:
            reads = [(KEPT, unit, f"what a forward pass of unit {unit} keeps")]
            if unit + 1 < self._proof.schedule.num_units:
                reads.append((GRADIENT, unit + 1, f"the gradient of unit {unit}'s output"))
        for what, of, words in reads:
            lacks = self._lacking((what, of, action.rank), action.span, i)
            if lacks is not None:
                which = "micro-batch" if action.samples is None else "sample"
                raise ScheduleError(
                    f"{action.name} may start before {words} is on rank {action.rank}: nothing "
                    f"that came from where it is made brings {which} {lacks}"
                )

    def _lacking(self, place: Place, span: tuple[int, int], reader: int) -> int | None:
        """The first of some samples that may not be at a place when an action starts."""
        reached, last = span
        for i in self._found[place].sharing(span) if place in self._found else ():
            first, end = self._actions[i].span
            if first > reached:
                break
            ended = end > reached and self._proof.before(i, reader)
            if ended and self._came(place, (reached, min(end, last)), i):
                reached = end
        return None if reached >= last else reached

    def _came(self, place: Place, span: tuple[int, int], i: int) -> bool:
        """Whether an action brings to a place what was there where it takes it from."""
        (what, unit, _), action = place, self._actions[i]
        if action.kind in COMPUTING:
            return True
        rank = action.rank  # of a stash
        if action.kind in RECEIVES:
            i = self._sends[action.meeting]
            rank = self._actions[i].rank
        elif action.kind is Kind.FETCH:
            rank = ON_HOST
        return self._lacking((what, unit, rank), span, i) is None
