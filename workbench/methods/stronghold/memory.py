"""The device memory of a placement, in one pass over its compute lane.

A search asks for the memory of many placements that differ in how many layers are of a kind. The
proof (schedule/peak.py) answers for any schedule, which must be built first; here the answer comes
from what the program is known to do (methods/offload/program.py), many times faster. It is the same
number: only compute takes memory outside slots, so the peak is the largest difference between what
compute has taken and what has surely been freed. What the search compares is proved all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from workbench.methods.offload.placement import Placement
from workbench.methods.offload.step_builder import batch_bytes
from workbench.profile.cuda_graphs import block_replay_bytes, chain_replay_bytes
from workbench.profile.profile import Profile


def device_bytes(placement: Placement, profile: Profile) -> int:
    """Bytes of device memory that no execution of the placement's schedule exceeds.

    For placements that pass micro-batches layer by layer, or are one chain of recordings, hold no
    gradients for the whole run, and whose resident blocks are the first ones, the pulled ones last
    among them.
    """
    return _static(placement, profile) + _Passes(placement, profile).peak


def _static(placement: Placement, profile: Profile) -> int:
    """Bytes occupied for the whole run: permanent buffers, and slots at their largest."""
    units, micros = profile.units, placement.microbatches
    weights = [cost.parameters * profile.weight_bytes for cost in units]
    states = [cost.parameters * profile.state_bytes for cost in units]
    visits = sorted(placement.pulled, reverse=not placement.clipped)
    if placement.clipped:
        visits = [unit for unit in reversed(visits) if unit in placement.eager] + visits
    inner = range(1, len(units) - 1)
    streamed = [weights[unit] for unit in inner if unit not in placement.resident]
    total = sum(batch_bytes(profile, micros)) + profile.library_bytes
    if placement.chained(len(units)):
        total += chain_replay_bytes(profile)
    elif placement.replay and not placement.kept >= {*inner}:
        total += block_replay_bytes(profile)
    total += weights[0] + weights[-1]  # gradients of the embedding and the head stay
    total += sum(weights[unit] for unit in placement.resident | placement.hosted(len(units)))
    total += sum(states[unit] for unit in placement.resident - placement.pulled)
    total += _slots([states[unit] for unit in visits], placement.state_slots)
    total += _slots(streamed, placement.slots) + _slots(streamed, placement.gradient_slots)
    if placement.stash:
        inputs = [
            0 if unit in placement.kept else cost.input_bytes for unit, cost in enumerate(units)
        ]
        total += micros * _slots(inputs[1:-2], 2)
    return total


def _slots(sizes: list[int], count: int) -> int:
    """Bytes of `count` slots that buffers of these sizes take one after the other."""
    return sum(max(sizes[k::count]) for k in range(min(count, len(sizes))))


class _Passes:
    """Bytes that compute occupies in a forward and a backward pass, outside slots."""

    def __init__(self, placement: Placement, profile: Profile) -> None:
        self.placement, self.units = placement, profile.units
        self.head, self.micros = len(profile.units) - 1, placement.microbatches
        self.weights = [cost.parameters * profile.weight_bytes for cost in profile.units]
        self.joins = profile.hardware.device == "cuda" and placement.clipped
        """Whether updates copy gradients together before (LayerStepBuilder.joins_gradients)."""
        inner = range(1, self.head)  # a search asks for these of all units, many times
        self.streamed = frozenset(inner) - placement.resident
        kept, replay, stash = placement.kept, placement.replay, placement.stash
        self.chained = placement.chained(len(profile.units))
        self.replayed = [
            False, *(self.chained or (replay and unit not in kept) for unit in inner), False
        ]  # fmt: skip
        self.stashed = [False, *(stash and unit not in kept for unit in inner), False, False]
        self.stashed[self.head - 1] = False
        """Units whose inputs wait on the host; one more than there are."""
        self.visits: deque[int] = deque()
        """Pulled units whose gradients may still be there, in the order of their updates."""
        self.leaving: deque[tuple[int, int]] = deque()
        """(place, bytes) of inputs on their way to the host, in the order of the link."""
        self.occupied = self.peak = 0
        if placement.clipped:  # the visits are the last of a step
            self.visits.extend(sorted(placement.pulled))
            self.occupied = sum(self.weights[unit] for unit in self.visits)
        self._step()
        if self.visits:
            self._step()

    def _step(self) -> None:
        every = range(self.micros)
        for together in [[micro] for micro in every] if self.chained else [every]:
            for unit in range(self.head + 1):
                self._forward(unit, together)
            for unit in reversed(range(self.head)):
                self._backward(unit, together)
        if self.joins:
            held = self.occupied
            for unit in sorted(self.placement.resident - self.placement.pulled - {0, self.head}):
                if not self.replayed[unit]:  # else they were joined in the backward pass
                    self.peak = max(self.peak, held + self.weights[unit])
                held -= self.weights[unit]

    def _take(self, nbytes: int, scratch: int) -> None:
        """Occupy what stays, and what an action needs for itself."""
        self.occupied += nbytes
        if self.occupied + scratch > self.peak:
            self.peak = self.occupied + scratch

    def _left(self, place: int) -> None:
        """An input, and all that left before it, have surely arrived on the host."""
        while self.leaving and self.leaving[0][0] <= place:
            self.occupied -= self.leaving.popleft()[1]

    def _visited_but(self, count: int) -> None:
        """All but the last few visiting units have surely been updated."""
        while len(self.visits) > count:
            self.occupied -= self.weights[self.visits.popleft()]

    def _inside(self, unit: int) -> bool:
        """Whether the unit's input and its gradient stay in a chain of recordings."""
        return self.chained and 1 < unit < self.head

    def _forward(self, unit: int, together: Sequence[int]) -> None:
        cost, micros = self.units[unit], self.micros
        keeps = unit == self.head or unit in self.placement.kept
        scratch = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
        kept = cost.kept_bytes if keeps else 0
        if self.replayed[unit]:
            scratch = kept = 0
        there = unit < self.head and not self._inside(unit + 1)
        output = self.units[unit + 1].input_bytes if there else 0
        if unit in self.visits:
            self._visited_but(len(self.visits) - 1 - self.visits.index(unit))
        for micro in together:
            earlier = (unit + 1) * micros + micro - (2 * micros + 1)
            if self.stashed[unit + 1] and earlier >= 0 and self.stashed[earlier // micros]:
                self._left(earlier)
                self._visited_but(0)  # their states left by the same link, before
            self._take(output + kept, scratch)
            if unit == self.head:
                self._backward_visit(unit, micro)
            elif self.stashed[unit]:
                self.leaving.append((unit * micros + micro, cost.input_bytes))

    def _backward(self, unit: int, together: Sequence[int]) -> None:
        cost, micros, placement = self.units[unit], self.micros, self.placement
        streamed = unit in self.streamed
        first_streamed_gone = unit + placement.gradient_slots < self.head
        for micro in together:
            if self.stashed[unit]:
                self._left(unit * micros + micro)
                self._visited_but(placement.state_slots)  # states came by the same link, before
            if unit not in placement.kept and not self.replayed[unit]:
                self._take(cost.kept_bytes, cost.recompute_scratch_bytes)
            if streamed and micro == 0 and first_streamed_gone:
                self._left(self.head * micros)  # before gradients that left by the same link
            self._backward_visit(unit, micro)
        if unit and not streamed and not placement.clipped and micro == micros - 1:
            self._update(unit)

    def _update(self, unit: int) -> None:
        """A resident unit's update frees its gradients: now, or when it visits."""
        if unit in self.placement.pulled:
            self.visits.append(unit)
        else:
            self.occupied -= self.weights[unit]

    def _backward_visit(self, unit: int, micro: int) -> None:
        cost, placement = self.units[unit], self.placement
        fresh = unit in placement.resident and 0 < unit < self.head
        holds = unit < self.head and self._held(unit) and not self.stashed[unit + 1]
        output = self.units[unit + 1].input_bytes if holds else 0
        scratch = cost.backward_scratch_bytes - output
        if unit in self.streamed or (fresh and micro > 0):
            scratch += self.weights[unit]
        if self.replayed[unit]:
            scratch = 0
        gradients = self.weights[unit] if fresh and micro == 0 else 0
        outside = cost.input_bytes if unit and not self._inside(unit) else 0
        self._take(gradients + outside, max(0, scratch))
        self.occupied -= 0 if self.replayed[unit] else cost.kept_bytes
        if not self.stashed[unit] and not self._held(unit - 1):
            self.occupied -= outside
        if unit < self.head:
            above = 0 if self._inside(unit + 1) else self.units[unit + 1].input_bytes
            self.occupied -= above + output

    def _held(self, unit: int) -> bool:
        """Whether autograd holds what a unit put out."""
        return unit in self.placement.kept and not self.replayed[unit]
