"""Costs of every layer of a model, by micro-batch size: the input of Harmony's scheduler.

The profiler of the paper (Harmony, VLDB 2022; the published artifact, commit 5fd838f) times and
measures each layer on its own: a forward pass without gradients, a backward pass that includes
recomputing the forward, and the optimizer's step on the host. Micro-batch sizes between two
profiled ones are interpolated linearly; outside of the profiled range nothing is known, and asking
is an error.

A pack is a `range` of layers. Its time is the sum over its layers. Its memory is the sum of its
layers' peaks less the inputs of all layers but the first, since a layer's input is the output of
the layer before it and both peaks count it. The sum assumes that activations of all layers live
together, which a forward pass without gradients does not do: the published rules overestimate it,
and so do we here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate


class Direction(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One direction of every layer, at the profiled micro-batch sizes."""

    microbatches: tuple[int, ...]
    """Ascending."""
    seconds: tuple[tuple[float, ...], ...]
    """[layer][size]; of a backward pass: recomputing the forward included."""
    peak_bytes: tuple[tuple[int, ...], ...]
    """[layer][size]: weights, gradients, input, output and all between them."""


class Costs:
    """All layers in one direction at one micro-batch size."""

    __slots__ = ("input_bytes", "peak_bytes", "seconds", "_inputs", "_peaks", "_seconds")

    def __init__(
        self,
        seconds: tuple[float, ...],
        peak_bytes: tuple[float, ...],
        input_bytes: tuple[int, ...],
    ) -> None:
        self.seconds = seconds
        self.peak_bytes = peak_bytes
        self.input_bytes = input_bytes
        self._seconds = tuple(accumulate(seconds, initial=0.0))
        self._peaks = tuple(accumulate(peak_bytes, initial=0))
        self._inputs = tuple(accumulate(input_bytes, initial=0))

    def time(self, pack: range) -> float:
        """Seconds of one micro-batch."""
        return self._seconds[pack.stop] - self._seconds[pack.start]

    def memory(self, pack: range) -> float:
        """Peak bytes, by the published rule of the module's docstring."""
        inner = self._inputs[pack.stop] - self._inputs[pack.start + 1]
        return self._peaks[pack.stop] - self._peaks[pack.start] - inner

    def beyond_input(self) -> tuple[float, ...]:
        """Peak bytes of each layer less its input: what the packing rules add up."""
        return tuple(peak - x for peak, x in zip(self.peak_bytes, self.input_bytes, strict=True))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PublishedProfile:
    """The layers of one model; the last computes the loss."""

    model: str
    forward: Measured
    backward: Measured
    weight_bytes: tuple[int, ...]
    buffer_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    """Bytes of the optimizer; they never leave the host."""
    input_bytes: tuple[int, ...]
    """All inputs of a layer for one sample, relayed ones included."""
    update_seconds: tuple[float, ...]
    """The optimizer's step on the host."""
    target_bytes: int = 0
    """Targets of one sample, an input of the last layer."""
    _cache: dict = field(default_factory=dict, init=False, repr=False)

    @property
    def layers(self) -> int:
        return len(self.weight_bytes)

    def sizes(self, direction: Direction) -> tuple[int, ...]:
        """Profiled micro-batch sizes, ascending."""
        return self._measured(direction).microbatches

    def at(self, direction: Direction, microbatch: int) -> Costs:
        """Every layer at a micro-batch size; ValueError outside of what was profiled."""
        key = (direction, microbatch)
        if key not in self._cache:
            self._cache[key] = self._interpolated(direction, microbatch)
        return self._cache[key]

    def swapped_bytes(self, pack: range) -> int:
        """Weights and buffers: what is brought in for a pack, and, as gradients, taken out."""
        sums = self._sums("swapped", lambda: map(int.__add__, self.weight_bytes, self.buffer_bytes))
        return sums[pack.stop] - sums[pack.start]

    def update_time(self, pack: range) -> float:
        """Seconds of the host's optimizer step."""
        sums = self._sums("update", lambda: self.update_seconds)
        return sums[pack.stop] - sums[pack.start]

    def boundary_bytes(self, layer: int) -> int:
        """Bytes per sample that enter `layer`; none behind the last."""
        return self.input_bytes[layer] if layer < self.layers else 0

    def _measured(self, direction: Direction) -> Measured:
        return self.forward if direction is Direction.FORWARD else self.backward

    def _sums(self, name: str, values: Callable) -> tuple:
        if name not in self._cache:
            self._cache[name] = tuple(accumulate(values(), initial=0))
        return self._cache[name]

    def _interpolated(self, direction: Direction, microbatch: int) -> Costs:
        measured = self._measured(direction)
        sizes = measured.microbatches
        if not sizes[0] <= microbatch <= sizes[-1]:
            raise ValueError(
                f"micro-batch size {microbatch} is outside of the {direction} profile of "
                f"{self.model}, which reaches from {sizes[0]} to {sizes[-1]}"
            )
        right = bisect_left(sizes, microbatch)
        left = right if sizes[right] == microbatch else right - 1
        share = (microbatch - sizes[left]) / (sizes[right] - sizes[left]) if left < right else 0
        seconds, peaks = (
            tuple(row[left] + (row[right] - row[left]) * share for row in rows)
            for rows in (measured.seconds, measured.peak_bytes)
        )
        return Costs(seconds, peaks, tuple(x * microbatch for x in self.input_bytes))
