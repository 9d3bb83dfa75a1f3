"""A layer's calls without what it only hands on.

The first layer of many, and the last, are like those between them but for tensors that pass them
on the way to others. Their calls are one function, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from workbench.model.decompose.layer import Layer
from workbench.model.decompose.plan import Plan, Ref
from workbench.model.decompose.written_out import WrittenOut


@dataclass(frozen=True)
class Core:
    """The calls of a layer, and the places of their tensors in it."""

    plan: Plan
    """Takes what calls read of the layer's inputs, and gives what they make of its outputs."""
    slots: Mapping[str, str]
    reads: list[int]
    """Places of these inputs, in the order in which they are read."""
    gives: list[tuple[bool, int]]
    """For each output: whether it is an input that is handed on, and its place among the inputs, or
    else among the tensors that calls make."""

    @classmethod
    def of(cls, layer: Layer) -> Core:
        """The core of a layer; the whole layer where it hands on nothing, puts out a loss, or has
        no call that reads a stack of samples, which would tell their number."""
        plan, slots = layer.module.plan, layer.module.slots
        place = {number: n for n, number in enumerate(plan.takes)}
        numbers = dict.fromkeys(n for call in plan.calls for n in call.refs() if n in place)
        sized = [(k, layer.inputs[place[n]]) for k, n in enumerate(numbers)]
        sized = [(k, v.batch_dim, v.rows) for k, v in sized if v.batch_dim is not None]
        refs = all(isinstance(leaf, Ref) for leaf in plan.gives)
        if layer.module.criterion is not None or not (sized and refs):
            every = range(len(layer.outputs))
            return cls(plan, slots, [*range(len(plan.takes))], [(False, n) for n in every])
        made = [leaf for leaf in plan.gives if leaf.number not in place]
        own = Plan(
            takes=[*numbers], gives=made, calls=plan.calls, batch_from=sized[0], mode=plan.mode,
            at_home=plan.at_home,
        )  # fmt: skip
        gives = [
            (True, place[leaf.number]) if leaf.number in place else (False, made.index(leaf))
            for leaf in plan.gives
        ]
        return cls(own, slots, [place[n] for n in numbers], gives)

    @cached_property
    def written(self) -> WrittenOut:
        """The plan's functions, which compilers know again."""
        return WrittenOut(self.plan, self.slots)

    def __reduce__(self) -> tuple:
        return Core, (self.plan, self.slots, self.reads, self.gives)  # functions are made again

    @property
    def form(self) -> object:
        """Equal for layers whose calls read and make tensors in the same places of them."""
        plan, seen = self.plan, {}
        for call in plan.calls:
            for number in (*call.refs(), *call.results):
                seen.setdefault(number, len(seen))
        gives = [seen.get(getattr(leaf, "number", None), repr(leaf)) for leaf in plan.gives]
        return plan.batch_from, [seen.get(number) for number in plan.takes], gives

    def outputs(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The layer's outputs, of its inputs and what its calls made."""
        return tuple(inputs[n] if handed_on else made[n] for handed_on, n in self.gives)
