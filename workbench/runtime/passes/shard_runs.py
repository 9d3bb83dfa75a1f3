"""Runs of a stage's operators, which are compiled as one.

A run ends where tensors are exchanged, where another choice of recomputation begins, and where a
layer does. Its operators read nothing beside tensors and weights; sums over the devices of a row
are part of the graph, which torch makes kernels of between them. As with blocks (template.py)
weights are arguments, so runs that are alike, as those of all layers mostly are, share a graph; a
run that is computed again has its checkpoint in the graph. What torch cannot compile stays as it
is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workbench.model.operators.place import Form
from workbench.model.operators.places import Handed, What
from workbench.model.sharded.base import Sharded
from workbench.runtime.passes.compiled import allow_graphs
from workbench.runtime.passes.shard_ends import MAIN, Setting
from workbench.runtime.transport.boxes import Spread


class Held(NamedTuple):
    """A tensor inside the stage."""

    tensor: Tensor | None
    form: Form
    spread: Spread


@dataclass(frozen=True, kw_only=True)
class Call:
    """One module of the stage."""

    operator: int
    """Its number in the model; the first of several."""
    module: Sharded
    setting: Setting
    takes: Spread | None
    gives: Spread
    form: Form
    reads: Mapping[str, Spread]
    """Extra tensors, as it needs them."""
    makes: Handed | None
    """An extra tensor that it hands on."""
    ends: tuple[str, ...]
    """Extra tensors that nobody reads after it."""
    segment: int
    """Number of the segment that is computed again with it; -1 for none."""
    starts: bool
    """Whether a layer starts with it."""

    @property
    def made(self) -> dict[str, Held]:
        """Tensors that it leaves, without them."""
        found = {MAIN: Held(None, self.form, self.gives)}
        if self.makes is not None:
            extra, what, form = self.makes
            whole = self.takes if what == "input" else self.gives
            spread = spread_of(form, self.setting, whole.shard is not None)
            found[extra.name] = Held(None, form, spread)
        return found

    def joins(self, there: Mapping[str, Spread]) -> bool:
        """Whether it finds tensors as it needs them, where they are spread so before it."""
        needs = self.reads if self.takes is None else {MAIN: self.takes, **self.reads}
        return all(there[name] == need for name, need in needs.items())


def spread_of(form: Form, setting: Setting, sharded: bool) -> Spread:
    """A tensor as an operator has it, whole or in shards."""
    return Spread(setting.tp, setting.dp, form.shard if sharded and setting.tp > 1 else None)


Wire = tuple[tuple[int, ...], int, What]
"""Of a call in a run the numbers of the extra tensors that it reads, and of the one that it hands
on, 0 for none, and what this is. Number 0 is the main tensor."""


class Run:
    """Calls in a row of one choice of recomputation."""

    def __init__(self, calls: Sequence[Call], pure: bool) -> None:
        """`pure`: they compute from tensors and weights alone."""
        self.calls, self.segment = calls, calls[0].segment
        self.joins = pure and len(calls) > 1
        """Whether they can be compiled as one."""
        self.ends = {name for call in calls for name in call.ends}
        numbers, came, wires = {MAIN: 0}, [MAIN], []
        made = calls[-1].made
        for call in calls:
            came += [name for name in call.reads if name not in numbers]
            reads = tuple(numbers.setdefault(name, len(numbers)) for name in call.reads)
            extra, what = (call.makes.extra.name, call.makes.what) if call.makes else (MAIN, "")
            wires.append((reads, numbers.setdefault(extra, len(numbers)), what))
            made = call.made | made
        self.made = {name: each for name, each in made.items() if name not in self.ends}
        """Tensors that it leaves, without them."""
        self._came = {name: numbers[name] for name in came}
        self._gives = tuple(numbers[name] for name in self.made)
        self._wires, self._modules = tuple(wires), tuple(call.module for call in calls)

    def joined(
        self, by: Joined, held: Mapping[str, Held], *, again: bool
    ) -> dict[str, Held] | None:  # fmt: skip
        """Tensors after it, computed as one; None where torch cannot compile it."""
        tensors = tuple(held[name].tensor for name in self._came)
        work = self._modules, self._wires, (*self._came.values(),), self._gives
        try:
            out = (by.again if again else by.once)(*work, tensors)
        except torch._dynamo.exc.TorchDynamoException:
            self.joins = False
            return None
        pairs = zip(self.made.items(), out, strict=True)
        left = {name: each for name, each in held.items() if name not in self.ends}
        return left | {name: each._replace(tensor=tensor) for (name, each), tensor in pairs}


class Joined:
    """Compiled functions of runs, for all that are alike."""

    def __init__(self) -> None:
        allow_graphs()
        self.once = torch.compile(_computed, dynamic=False)
        self.again = torch.compile(_checkpointed, dynamic=False)


def _computed(
    modules: tuple[Sharded, ...], wires: tuple[Wire, ...], came: tuple[int, ...],
    gives: tuple[int, ...], tensors: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:  # fmt: skip
    held = dict(zip(came, tensors, strict=True))
    for module, (reads, extra, what) in zip(modules, wires, strict=True):
        x = held[0]
        made = module(x, None, *[held[number] for number in reads])
        made, second = made if isinstance(made, tuple) else (made, None)
        held[0] = made
        if extra:
            held[extra] = {"input": x, "second": second, "output": made}[what]
    return tuple(held[number] for number in gives)


def _checkpointed(modules, wires, came, gives, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return _computed(modules, wires, came, gives, tensors)

    return checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False)


def exchanges(
    calls: Sequence[Call], there: Mapping[str, Spread], goes: Mapping[str, Spread]
) -> bool:
    """Whether processes of a stage exchange anything in a pass; tensors come to it, and go, spread
    so."""
    there = dict(there)
    for call in calls:
        if call.setting.tp > 1 or not call.joins(there):
            return True
        there |= {name: each.spread for name, each in call.made.items()}
    return any(there[name] != need for name, need in goes.items())


def runs_of(calls: Sequence[Call], there: Mapping[str, Spread], alone: bool) -> Iterator[Run]:
    """Divide a stage's calls into runs. `there`: how tensors come to the stage; `alone`: it has one
    process."""
    own: list[Call] = []
    before, there = False, dict(there)
    for call in calls:
        pure = call.module.pure and (alone or call.joins(there))
        there |= {name: each.spread for name, each in call.made.items()}
        if own and (call.starts or pure != before or call.segment != own[-1].segment):
            yield Run(own, before)
            own = []
        own.append(call)
        before = pure
    yield Run(own, before)
