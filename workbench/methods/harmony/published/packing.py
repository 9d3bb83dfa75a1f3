"""The published rules that cut a model into packs of consecutive layers under a memory capacity.

Layer packing is one of the ideas of Harmony (VLDB 2022); the rules are those of the published
artifact, commit 5fd838f.

Every rule takes `memory` (bytes per layer, its input left out), `inputs` (bytes of each layer's
input), `seconds` and the capacity, and gives one partition, or None where it finds none. A pack
holds the memory of its layers; rules named `addx` add the input of its first layer.

Two kinds. *Greedy* rules fill a pack to below the capacity and open the next, from the first layer
or (`reverse`) from the last. *Balanced* rules try S = ceil(memory / capacity), ... packs: they cut
where the running sum of memory or time passes k/S of the total, and take the first S whose packs
are not empty and not above the capacity. None of them is optimal (`chain.py` is), and each
answers with the fewest packs it can. Greedy compares with "below", balanced with "not above", as
published.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from workbench.core.division import packs_of

Packs = tuple[range, ...]
"""Consecutive layers, in layer order."""

Rule = Callable[[Sequence[float], Sequence[float], Sequence[float], float], Packs | None]


def sizes_of(packs: Packs) -> tuple[int, ...]:
    return tuple(map(len, packs))


def manual(layers: int, size: int, *, rest_last: bool = False) -> Packs:
    """Packs of one size; what is left over makes the first pack, or the last."""
    if not 1 <= size <= layers:
        raise ValueError(f"packs of {size} layers: give a size from 1 to {layers}")
    whole, rest = divmod(layers, size)
    rest = (rest,) if rest else ()
    sizes = (size,) * whole
    return packs_of((*sizes, *rest) if rest_last else (*rest, *sizes))


def reuse(
    packs: Packs, memory: Sequence[float], inputs: Sequence[float], capacity: float
) -> Packs | None:
    """The given packs (of the backward pass) where all of them stay below the capacity."""
    largest = max(sum(memory[p.start : p.stop]) + inputs[p.start] for p in packs)
    return packs if largest < capacity else None


def greedy(
    memory: Sequence[float],
    inputs: Sequence[float],
    capacity: float,
    *,
    reverse: bool,
    add_input: bool,
) -> Packs | None:
    """Fill each pack to below the capacity, from the first layer or from the last."""
    sizes: list[int] = []
    held = first = 0.0  # bytes of the open pack, and those of its first layer's input
    for layer in reversed(range(len(memory))) if reverse else range(len(memory)):
        own = inputs[layer] if add_input else 0
        if sizes and held + memory[layer] + (own if reverse else first) < capacity:
            sizes[-1] += 1
            held += memory[layer]
            continue
        if memory[layer] + own >= capacity:
            return None
        sizes.append(1)
        held, first = memory[layer], own
    return packs_of(reversed(sizes) if reverse else sizes)


def balanced(
    quantity: Sequence[float],
    memory: Sequence[float],
    inputs: Sequence[float],
    capacity: float,
) -> Packs | None:
    """Packs with equal shares of `quantity`, as far as cutting at the next layer allows."""
    layers = len(memory)
    running = list(accumulate(quantity))
    held = list(accumulate(memory, initial=0))
    for count in range(max(1, math.ceil(held[-1] / capacity)), layers + 1):
        target = running[-1] / count
        cuts = [bisect_left(running, target * k) for k in range(1, count)]
        ends = list(pairwise((0, *cuts, layers)))
        if all(a < b and held[b] - held[a] + inputs[a] <= capacity for a, b in ends):
            return tuple(range(a, b) for a, b in ends)
    return None


def _greedy(*, reverse: bool, add_input: bool) -> Rule:
    def rule(
        memory: Sequence[float], inputs: Sequence[float], seconds: Sequence[float], capacity: float
    ) -> Packs | None:
        return greedy(memory, inputs, capacity, reverse=reverse, add_input=add_input)

    return rule


RULES: dict[str, Rule] = {
    "greedy": _greedy(reverse=False, add_input=False),
    "greedy_addx": _greedy(reverse=False, add_input=True),
    "greedy_reverse": _greedy(reverse=True, add_input=False),
    "greedy_reverse_addx": _greedy(reverse=True, add_input=True),
    "balanced": lambda held, inputs, seconds, most: balanced(held, held, [0] * len(held), most),
    "balanced_addx": lambda held, inputs, seconds, most: balanced(held, held, inputs, most),
    "balanced_time": lambda held, inputs, seconds, most: balanced(seconds, held, inputs, most),
}
"""By their published names; `held` is memory, `most` the capacity. `reuse` is not here, since it
needs the packs of the other pass."""
