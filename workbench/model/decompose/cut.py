"""Where a model is cut, and what crosses each cut.

The calls of a model are cut where they stand, so layers run them in the model's order, and random
numbers are drawn in that order too. Each layer begins with a block; functions between two blocks
go to the first of them, or partly to the second where that halves the bytes that cross. A tensor
that is needed further down crosses every cut on the way, as the same tensor. What depends on no
input (positions, causal masks, zeros of the batch's size) is not relayed but made where it is used.

Where modules are named to cut at, layers begin with their calls, and nowhere else.

A cut is not made, so that two blocks are one layer, where a tensor would cross that is not a stack
of samples, or where two views of one memory would cross and one is written to later. A single
tensor that crosses and is written to later is copied before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.model.decompose.blocks import has_weights
from workbench.model.decompose.layer import Value
from workbench.model.decompose.plan import Affine, Call, Plan, Ref, State, flatten
from workbench.model.decompose.record import Trace

ONE_ARGUMENT = flatten(((None,), {}))[1]


@dataclass(slots=True)
class Piece:
    """A layer to be."""

    name: str
    plan: Plan
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def cut(
    trace: Trace, blocks: set[str], model: nn.Module, at: Collection[str] | None = None
) -> list[Piece]:
    """The layers, in order; at least one. `at` are paths of modules whose calls begin a layer.
    Raises ValueError for one that is not called once, or where what crosses is no stack of samples.
    """
    return Cutter(trace, blocks, model, at).pieces()


class Cutter:
    """Positions are places in `order`, the calls that depend on inputs or weights."""

    def __init__(
        self, trace: Trace, blocks: set[str], model: nn.Module,
        at: Collection[str] | None = None, *, again: bool = False,
        set_of: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """`again`: what depends on weights alone is no call of its own, but made again where it is
        read. `set_of` calls, by their places in the trace, puts those of a lower set first."""
        self.trace, self.blocks, self.model, self.at = trace, blocks, model, at
        self.again, self.set_of = again, set_of
        self.maker = {n: i for i, call in enumerate(trace.calls) for n in call.results}
        self.free = self._free_calls()
        self.order = [i for i, free in enumerate(self.free) if not free]
        if set_of is not None:
            self.order.sort(key=set_of.__getitem__)  # stable: calls of a set keep their order
        self.end = len(self.order)
        self.born = dict.fromkeys(range(trace.inputs), -1)
        self.last: dict[int, int] = {}
        self.writes: list[dict[int, int]] = [{} for _ in trace.aliasing]  # storage -> last position
        for position, i in enumerate(self.order):
            self.born |= dict.fromkeys(trace.calls[i].results, position)
            self.last |= dict.fromkeys(trace.calls[i].refs(), position)
            for writes, aliasing in zip(self.writes, trace.aliasing, strict=True):
                writes |= dict.fromkeys(aliasing.written[i], position)
        self.outputs = [leaf for leaf in trace.output[1] if isinstance(leaf, Ref | State)]
        self.last |= {leaf.number: self.end for leaf in self.outputs if isinstance(leaf, Ref)}
        self.samples = [_per_sample(shape) for shape in trace.shapes]
        self.crossing = self._crossing()
        self.renamed: dict[int, int] = {}
        self.names = _unique(trace.names)

    def _free_calls(self) -> list[bool]:
        """Whether a call depends on no input, weight or random number, so can be repeated."""
        trace = self.trace
        weights = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        free = []
        for i, call in enumerate(trace.calls):
            part = self.model.get_submodule(call.target) if isinstance(call.target, str) else None
            used = (part is not None and has_weights(part)) or any(
                isinstance(leaf, State) and leaf.key in weights for leaf in call.leaves
            )
            counts = part is not None and any(isinstance(m, _BatchNorm) for m in part.modules())
            free.append(
                not trace.random[i]
                and (not used or (self.again and not counts))
                and not any(a.written[i] & set(a.of_state.values()) for a in trace.aliasing)
            )
        written = [frozenset().union(*aliasing.written) for aliasing in trace.aliasing]
        settled = False
        while not settled:
            settled = True
            dirty: list[set[int]] = [set() for _ in trace.aliasing]  # hold or may hold other things
            for i, call in enumerate(trace.calls):
                if not free[i]:
                    for k, aliasing in enumerate(trace.aliasing):
                        made = {aliasing.storage[n] for n in call.results}
                        dirty[k] |= aliasing.written[i] | (made & written[k])
            for i, call in enumerate(trace.calls):
                if free[i] and (
                    any(n < trace.inputs or not free[self.maker[n]] for n in call.refs())
                    or any(t & d for t, d in zip(self._touched(i), dirty, strict=True))
                ):
                    free[i] = settled = False
        return free

    def _touched(self, i: int) -> list[set[int]]:
        """Storages a call reads, makes or writes."""
        call = self.trace.calls[i]
        keys = [leaf.key for leaf in call.leaves if isinstance(leaf, State)]
        return [
            {a.storage[n] for n in (*call.refs(), *call.results)} | {a.of_state[k] for k in keys}
            for a in self.trace.aliasing
        ]

    def pieces(self) -> list[Piece]:
        starts, names = self._starts()
        spans = zip(names, starts, [*starts[1:], self.end], strict=True)
        return [self._piece(name, start, end) for name, start, end in spans]

    def _starts(self) -> tuple[list[int], list[str]]:
        """Positions where layers begin, and the first block of each."""
        if self.set_of is not None:
            return self._set_starts(self.set_of)
        if self.at is not None:
            return self._given_starts(self.at)
        starts, names = [0], []
        before = None  # position of the block before
        for position, i in enumerate(self.order):
            call = self.trace.calls[i]
            if call.target not in self.blocks or not any(n in self.born for n in call.refs()):
                continue
            if before is not None:
                places = [p for p in range(position, before, -1) if self._may_cut(p)]
                if places:
                    least = min(places, key=self._bytes)
                    halved = 2 * self._bytes(least) <= self._bytes(places[0])
                    starts.append(least if halved else places[0])
                    names.append(call.target)
            else:
                names.append(call.target)
            before = position
        return starts, names or [""]

    def _given_starts(self, at: Collection[str]) -> tuple[list[int], list[str]]:
        """Positions of the calls of the modules at these paths, and their paths."""
        starts, names = [0], [""]
        calls = Counter(call.target for call in self.trace.calls if call.target in at)
        for path in at:
            if calls[path] != 1:
                times = f"{calls[path]} times" if calls[path] else "never"
                raise ValueError(
                    f"{path!r} is called {times} in a forward pass; call a module that marks a "
                    "cut exactly once"
                )
        for position, i in enumerate(self.order):
            call = self.trace.calls[i]
            if call.target not in at:
                continue
            if not position:
                raise ValueError(
                    f"nothing is computed before the cut at {call.target!r}; move it behind the "
                    "first weights"
                )
            at_odds = [n for n in call.refs() if self.samples[n] and self.samples[n][1] is None]
            if at_odds or not self._may_cut(position):
                shapes = [self.trace.shapes[n] for n in at_odds or self.crossing[position]]
                raise ValueError(
                    f"the model cannot be cut at {call.target!r}: what crosses it must be stacks "
                    f"of samples that nothing writes to later, and it is {_in_words(shapes)}"
                )
            starts.append(position)
            names.append(call.target)
        if len(starts) <= len(at):
            lost = sorted({*at} - {*names})
            raise ValueError(f"what is called at {lost[0]!r} depends on no input: a cut follows it")
        return starts, names

    def _set_starts(self, set_of: Mapping[int, int]) -> tuple[list[int], list[str]]:
        """Positions where sets of calls begin, and names for them."""
        sets = [set_of[i] for i in self.order]
        starts = [p for p, own in enumerate(sets) if not p or own != sets[p - 1]]
        for position in starts[1:]:
            if not self._may_cut(position):
                shapes = [self.trace.shapes[n] for n in self.crossing[position]]
                raise ValueError(
                    f"the calls of stage {sets[position]} cannot begin a stage: what it is handed "
                    "must be stacks of samples that nothing writes to later, and it is "
                    f"{_in_words(shapes)}"
                )
        return starts, [f"calls {sets[position]}" for position in starts]

    def _crossing(self) -> list[list[int]]:
        """For each position, the numbers of the tensors that cross a cut before its call."""
        live, crossing = list(range(self.trace.inputs)), []
        for position in range(self.end + 1):
            if position:
                made = self.trace.calls[self.order[position - 1]].results
                live = [n for n in (*live, *made) if self.last.get(n, -1) >= position]
            crossing.append(live)
        return crossing

    def _may_cut(self, position: int) -> bool:
        live = self.crossing[position]
        forms = [self.samples[n] for n in live]
        if None in forms or all(form[1] is None for form in forms):
            return False
        for aliasing, writes in zip(self.trace.aliasing, self.writes, strict=True):
            storages = [aliasing.storage[n] for n in live]
            for storage in storages:
                shared = storages.count(storage) > 1 or storage in aliasing.of_state.values()
                if shared and writes.get(storage, -1) >= position:
                    return False
        return True

    def _bytes(self, position: int) -> int:
        total = 0
        for n in self.crossing[position]:
            shape, _, rows = self.samples[n]
            total += prod(shape) * rows * self.trace.dtypes[n].itemsize
        return total

    def _piece(self, name: str, start: int, end: int) -> Piece:
        own = self.order[start:end]
        takes = self.crossing[start]
        inputs = tuple(self._value(Ref(n), start) for n in takes)
        numbers = [self.renamed.get(n, n) for n in takes]
        calls = {-1 - k: clone for k, clone in enumerate(self._clones(takes, own))}
        for i in (*own, *self._constants(own, end)):
            call = self.trace.calls[i]
            leaves = tuple(self._now(leaf) for leaf in call.leaves)
            calls[i] = replace(call, leaves=leaves)
        gives = self.outputs if end == self.end else [Ref(n) for n in self.crossing[end]]
        outputs = tuple(self._value(leaf, end) for leaf in gives)
        plan = Plan(
            takes=numbers,
            gives=[self._now(leaf) for leaf in gives],
            calls=[calls[i] for i in sorted(calls)],
            batch_from=next(
                (k, v.batch_dim, v.rows) for k, v in enumerate(inputs) if v.batch_dim is not None
            ),
            output=(self.trace.output[0], tuple(map(self._now, self.trace.output[1]))),
        )
        return Piece(name, plan, inputs, outputs)

    def single(self, position: int) -> Plan:
        """The plan of one call."""
        i = self.order[position]
        call = self.trace.calls[i]
        takes = sorted({n for n in call.refs() if n in self.born})
        forms = [self.samples[n] for n in takes]
        grown = (k for k, form in enumerate(forms) if form and form[1] is not None)
        if (sized := next(grown, None)) is None:
            batch_from, takes = (len(takes), 0, 1), [*takes, len(self.names)]
        else:
            batch_from = (sized, *forms[sized][1:])
        own = sorted({i, *self._constants([i], min(position + 1, self.end - 1))})
        gives = [Ref(n) for n in call.results]
        return Plan(
            takes=takes, gives=gives, calls=[self.trace.calls[k] for k in own],
            batch_from=batch_from, output=self.trace.output,
        )  # fmt: skip

    def value(self, number: int, position: int) -> Value:
        """A tensor before the call at a position."""
        return self._value(Ref(number), position)

    def _clones(self, takes: list[int], own: list[int]) -> list[Call]:
        """Copies of inputs that the layer's calls write to; later layers get the copies."""
        clones = []
        for n in takes:
            if any(a.storage[n] in a.written[i] for a in self.trace.aliasing for i in own):
                old = self._now(Ref(n))
                self.renamed[n] = len(self.names)
                self.names.append(f"{self.names[old.number]}'")
                clones.append(Call(torch.clone, ONE_ARGUMENT, (old,), (self.renamed[n],)))
        return clones

    def _constants(self, own: list[int], end: int) -> set[int]:
        """Free calls that the layer's calls, or the model's output, need."""
        limit = self.order[end] if end < self.end else len(self.trace.calls)
        if self.set_of is not None and end < self.end:
            limit = max(own) + 1
        numbers = {n for i in own for n in self.trace.calls[i].refs()}
        if end == self.end:
            numbers |= {leaf.number for leaf in self.outputs if isinstance(leaf, Ref)}
        ask = [self.maker[n] for n in numbers - self.born.keys()]
        needed: set[int] = set()
        while ask:
            i = ask.pop()
            if i in needed:
                continue
            needed.add(i)
            ask += [self.maker[n] for n in self.trace.calls[i].refs()]
            for touched, aliasing in zip(self._touched(i), self.trace.aliasing, strict=True):
                ask += [k for k in range(limit) if self.free[k] and touched & aliasing.written[k]]
        return needed

    def _now(self, leaf: Any) -> Any:
        return Ref(self.renamed.get(leaf.number, leaf.number)) if isinstance(leaf, Ref) else leaf

    def _value(self, leaf: Ref | State, position: int) -> Value:
        trace = self.trace
        if isinstance(leaf, State):
            tensor = trace.tensors[leaf.key]
            return Value(leaf.key, tuple(tensor.shape), tensor.dtype, tensor.requires_grad, None)
        n = leaf.number
        shape, dim, rows = self.samples[n] or (_at_one(trace.shapes[n]), None, 1)
        whole = position == self.end or self.set_of is not None  # it may be made behind the next
        before = len(trace.calls) if whole else self.order[position]
        return Value(
            self.names[self._now(leaf).number],
            shape,
            trace.dtypes[n],
            trace.needs_grad(n, before),
            dim,
            rows,
        )


def _per_sample(shape: Sequence[int | Affine]) -> tuple[tuple[int, ...], int | None, int] | None:
    """(shape without the batch dimension, its place, rows); None for what is no stack of samples"""
    grown = [dim for dim, size in enumerate(shape) if isinstance(size, Affine)]
    if not grown:
        return tuple(shape), None, 1
    dim = grown[0]
    if len(grown) > 1 or shape[dim].start:
        return None
    return (*shape[:dim], *shape[dim + 1 :]), dim, shape[dim].slope


def _in_words(shapes: Sequence[Sequence[int | Affine]]) -> str:
    """Shapes of tensors, with B for what follows the batch size."""

    def size(dim: int | Affine) -> str:
        if not isinstance(dim, Affine):
            return str(dim)
        rows = "B" if dim.slope == 1 else f"{dim.slope}B"
        return f"{rows}{dim.start:+d}" if dim.start else rows

    return ", ".join(f"[{', '.join(map(size, shape))}]" for shape in shapes) or "nothing"


def _at_one(shape: Sequence[int | Affine]) -> tuple[int, ...]:
    return tuple(s.slope + s.start if isinstance(s, Affine) else s for s in shape)


def _unique(names: list[str]) -> list[str]:
    """Names that occur once as they are, others with their numbers."""
    count = Counter(names)
    return [name if count[name] == 1 else f"{name}:{i}" for i, name in enumerate(names)]
