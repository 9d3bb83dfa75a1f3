"""Units of any grain - an operator, a layer, a slice, a stage - as data: what their passes cost.

A `UnitCost` is of one micro-batch; `CostsBySize` gives those of any number of samples. What runs
otherwise than plainly is a `Variant` of it. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat

HALVES, CHECKPOINT = "halves", "checkpoint"
RECORDED, RECORDED_CHECKPOINT = "recorded", "recorded checkpoint"
PASSES = {HALVES: 2, CHECKPOINT: 1, RECORDED: 3, RECORDED_CHECKPOINT: 1}
"""Variant -> how many passes it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """Passes of a unit that are run in another way than forward, recompute and backward.

    `HALVES` are the two halves of a backward pass (passes/halves.py), that of the input first, and
    keep `nbytes` between them beside what the unit keeps, its input, output and output gradient.
    `CHECKPOINT` is a backward pass that begins at a checkpoint (passes/template.py), which keeps
    `nbytes` without input and output. `RECORDED` are the forward, recompute and backward passes of
    a block as recordings, which the GPU launches by itself, and which work in `nbytes`, fragments
    between their tensors among them. `RECORDED_CHECKPOINT` is the recording of a backward pass that
    begins at a checkpoint.
    """

    name: str
    seconds: tuple[float, ...]
    """Of each of its passes."""
    scratch_bytes: tuple[int, ...] = ()
    """Peak inside each of them, counted as that of the unit's own; none of recordings."""
    nbytes: int = 0

    def __post_init__(self) -> None:
        seconds, scratch = len(self.seconds), len(self.scratch_bytes)
        if seconds != PASSES.get(self.name) or scratch not in (0, seconds):
            raise ValueError(
                f"{self.name!r} has {seconds} seconds and {scratch} scratch bytes; passes of "
                f"variants are {PASSES}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitCost:
    """One unit of a model at one micro-batch size. Seconds are medians of repeated timings."""

    kind: str
    """``embedding``, ``block`` or ``head``; units of one kind cost the same."""
    parameters: int
    """Owned by the unit, tied ones counted at their owner."""
    forward_s: float
    recompute_s: float
    backward_s: float
    """Backward pass alone, without the recomputation."""
    gradient_s: float = 0.0
    """Taking the norm of its gradients (and zeroing those that have a slab), once per step on the
    compute lane."""
    gradient_copy_s: float = 0.0
    """Copying a block's gradients into a slab on the device, on their way to the host."""
    spread: float = 0.0
    """Relative half-width (quartiles) of the backward timing."""
    input_bytes: int = 0
    """Input activation of one micro-batch."""
    output_bytes: int = 0
    kept_bytes: int = 0
    """Bytes that autograd keeps between (re)forward and backward, without input and output."""
    forward_scratch_bytes: int = 0
    """Peak inside a forward pass beyond what was there and its output."""
    recompute_scratch_bytes: int = 0
    """Peak inside a recomputation beyond what was there and what it keeps."""
    backward_scratch_bytes: int = 0
    """Peak inside a backward pass, beyond the input gradient it makes and (of a block) the
    gradients it returns; with the unit's output, which autograd holds until the pass is done.
    Negative where kept bytes that are gone by then are more: they make room for gradients."""
    flops: float = 0.0
    """Forward floating-point operations of one micro-batch."""
    variants: tuple[Variant, ...] = ()
    """Other ways to run its passes, as far as they were measured."""

    def variant(self, name: str) -> Variant | None:
        """Other passes of the unit; None where they were not measured."""
        return next((each for each in self.variants if each.name == name), None)

    @property
    def recorded_bytes(self) -> int:
        """Memory that recordings of its passes work in; 0 where they were not measured."""
        found = self.variant(RECORDED)
        return 0 if found is None else found.nbytes

    def from_checkpoint(self) -> UnitCost:
        """The unit with backward passes that begin at a checkpoint: measured ones, else the whole
        forward pass computed again."""
        found = self.variant(CHECKPOINT)
        if found is None:
            again = self.kept_bytes + max(self.recompute_scratch_bytes, self.backward_scratch_bytes)
            found = Variant(
                name=CHECKPOINT,
                seconds=(self.recompute_s + self.backward_s,),
                scratch_bytes=(again + self.output_bytes,),
            )
        return replace(
            self,
            recompute_s=self.forward_s,
            backward_s=found.seconds[0],
            kept_bytes=found.nbytes,
            recompute_scratch_bytes=self.forward_scratch_bytes,
            backward_scratch_bytes=found.scratch_bytes[0],
        )

    @property
    def halves(self) -> Variant:
        """Both halves of a backward pass: equal ones, of no bytes, where they were not measured."""
        half = self.backward_s / 2
        return self.variant(HALVES) or Variant(
            name=HALVES, seconds=(half, half), scratch_bytes=(0, 0)
        )

    def as_recorded(self) -> UnitCost:
        """The unit's costs with passes that are recorded; unchanged where that was not measured."""
        found, back = self.variant(RECORDED), self.variant(RECORDED_CHECKPOINT)
        if found is None:
            return self
        forward, recompute, backward = found.seconds
        variants = [
            replace(each, seconds=back.seconds) if back and each.name == CHECKPOINT else each
            for each in self.variants
        ]
        return replace(
            self, forward_s=forward, recompute_s=recompute, backward_s=backward,
            variants=tuple(variants),
        )  # fmt: skip


CONSTANT = ("kind", "parameters", "gradient_s", "spread", "variants")
PER_SAMPLE = tuple(f.name for f in fields(UnitCost) if f.name not in CONSTANT)
"""Fields of UnitCost that grow with the micro-batch, as all numbers of its variants do."""
Pair = Callable[[float, float], float]


def paired(one: UnitCost, other: UnitCost, seconds: Pair, others: Pair) -> UnitCost:
    """A cost whose numbers are made from those of two, one by one: seconds, and bytes and
    operations. It has the variants that both have."""

    def number(name: str, a: float, b: float) -> float:
        return (seconds if name.endswith(("_s", "seconds")) else others)(a, b)

    def variant(a: Variant, b: Variant) -> Variant:
        made = {
            name: tuple(map(number, repeat(name), getattr(a, name), getattr(b, name)))
            for name in ("seconds", "scratch_bytes")
        }
        return replace(a, nbytes=number("nbytes", a.nbytes, b.nbytes), **made)

    pairs = [(each, other.variant(each.name)) for each in one.variants]
    return replace(
        one, variants=tuple(variant(a, b) for a, b in pairs if b is not None),
        **{name: number(name, getattr(one, name), getattr(other, name)) for name in PER_SAMPLE},
    )  # fmt: skip


def combined(one: UnitCost, other: UnitCost, first: float, second: float) -> UnitCost:
    """So many times a cost, and so many times another one."""

    def line(a: float, b: float) -> float:
        value = first * a + second * b
        return round(value) if isinstance(a, int) else value

    return paired(one, other, line, line)


class CostsBySize:
    """Costs of units for any number of samples, from those of a few.

    Piecewise linear, as published; beyond the largest profiled size the last piece goes on, and
    below the smallest everything shrinks in proportion. A pass of fewer samples takes no longer
    than one of more: where it was measured so, something else was at work.
    """

    def __init__(self, costs: Mapping[int, Sequence[UnitCost]]) -> None:
        """`costs` of all units, by samples in a micro-batch."""
        self._points, self._units = sorted(costs), dict(costs)
        for size, larger in zip(self._points[-2::-1], self._points[:0:-1], strict=True):
            pairs = zip(self._units[size], self._units[larger], strict=True)
            self._units[size] = [paired(a, b, min, lambda own, _: own) for a, b in pairs]

    def of(self, unit: int, samples: int) -> UnitCost:
        """The cost of a unit."""
        at = min(max(bisect_right(self._points, samples), 1), len(self._points) - 1)
        low, high = self._points[at - 1], self._points[at]
        below, above = self._units[low][unit], self._units[high][unit]
        if low == high or samples < low:
            return combined(below, below, samples / low, 0.0)
        share = (samples - low) / (high - low)
        found = combined(below, above, 1 - share, share)
        if samples <= high:
            return found
        # More samples never take less than the most that were measured, whatever two noisy points
        # promise further on.
        return paired(found, above, max, max)
