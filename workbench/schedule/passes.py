"""Where each unit is computed on each sample, for the validator's rules."""

from __future__ import annotations

from collections import defaultdict

from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.proof import Proof

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
I, W = Kind.INPUT_GRAD, Kind.WEIGHT_GRAD  # noqa: E741 - the literature's letters
COMPUTING = (F, R, B, I, W)


class Passes:
    """Where each unit is computed on each sample; ScheduleError when it is not exactly once.

    Passes may divide the minibatch differently: a forward pass of 8 samples may precede two
    backward passes of 4. All rules ask for those that share samples.
    """

    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self._done: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for i, action in enumerate(proof.schedule.actions):
            if action.kind in COMPUTING and action.microbatch is None:
                raise ScheduleError(f"{action.name} names no micro-batch")
            if action.kind in COMPUTING and action.kind is not R:
                self._done[action.kind, action.unit].append(i)
        spans = [action.span for action in proof.schedule.actions if action.kind in COMPUTING]
        sampled = any(action.samples is not None for action in proof.schedule.actions)
        self._total = max(end for _, end in spans) if sampled else proof.schedule.num_microbatches
        self._what = "samples" if sampled else "micro-batches"
        for found in self._done.values():
            found.sort(key=self._span)
        for unit in range(proof.schedule.num_units):
            self._check_unit(unit)

    def _span(self, i: int) -> tuple[int, int]:
        return self.proof.schedule.actions[i].span

    def _check_unit(self, unit: int) -> None:
        self._check_cover(F, unit)
        halves = [kind for kind in (I, W) if self._done[kind, unit]]
        if self._done[B, unit] and halves:
            first = self._done[halves[0], unit][0]
            shared = self._sharing(B, unit, self._span(first))
            if not shared:
                raise ScheduleError(f"unit {unit} has whole and halved backward passes")
            raise ScheduleError(
                f"{self.proof.name(first)} computes what {self.proof.name(shared[0])} computes"
            )
        if not halves:
            self._check_cover(B, unit)
            return
        self._check_cover(W, unit)
        if unit:
            self._check_cover(I, unit)

    def _check_cover(self, kind: Kind, unit: int) -> None:
        """Passes of a kind on a unit see each sample once."""
        reached = 0
        for i in self._done[kind, unit]:
            first, end = self._span(i)
            if first < reached:
                earlier = self._sharing(kind, unit, (first, end))[0]
                raise ScheduleError(
                    f"{self.proof.name(i)} computes what {self.proof.name(earlier)} computes"
                )
            if first > reached:
                self._refuse_gap(kind, unit, reached, first)
            reached = end
        if reached < self._total:
            self._refuse_gap(kind, unit, reached, self._total)

    def _refuse_gap(self, kind: Kind, unit: int, first: int, end: int) -> None:
        if self._what == "micro-batches":
            half = f", the other half of B{unit}.{first}," if kind in (I, W) else ""
            raise ScheduleError(f"{kind.value}{unit}.{first}{half} is missing")
        raise ScheduleError(
            f"no {kind.name.lower()} pass of unit {unit} sees samples {first} to {end - 1}"
        )

    def _sharing(self, kind: Kind, unit: int, span: tuple[int, int]) -> list[int]:
        """The passes of a kind on a unit that share samples with a span."""
        return self.proof.spans(kind, unit).sharing(span)

    def forward(self, unit: int, like: int) -> list[int]:
        """The forward passes of a unit on samples of the action `like`."""
        return self._sharing(F, unit, self._span(like))

    def backward(self, unit: int, like: int) -> list[int]:
        """The backward passes, or their halves, of a unit on samples of the action `like`."""
        span = self._span(like)
        return [i for kind in (B, I, W) for i in self._sharing(kind, unit, span)]

    def input_gradients(self, unit: int, like: int) -> list[int]:
        """Actions that make the gradient of the unit's input (unit 0 need not) for the action
        `like`."""
        kind = B if self._done[B, unit] else I if self._done[I, unit] else W
        return self._sharing(kind, unit, self._span(like))

    def forwards(self, unit: int) -> list[int]:
        """All forward passes of a unit."""
        return self._done[F, unit]

    def weight_gradients(self, unit: int) -> list[int]:
        """Actions that make the gradients of the unit's weights."""
        return self._done[B, unit] or self._done[W, unit]

    def backwards(self, unit: int) -> list[int]:
        """All backward passes of a unit, or their halves."""
        return [i for kind in (B, I, W) for i in self._done[kind, unit]]
