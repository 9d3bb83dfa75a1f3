"""Whether the mean loss of a batch follows from those of its parts, and how much each row counts.

Told by the operations of layers and loss, and not by the values of one batch. Layers run with three
rows and with two, without values: a dimension that differs counts rows, and only operations that
are known to keep them apart there are let through (apart.py). A tensor without it that was made of
some that have it joins rows. It has to be a sum over them or one over a divisor, the loss ends as
the latter, and no row may read one. A divisor that follows from the batch, as the
number of labels that count does, is counted in each batch (tally.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.model.apart import COPIES, Call, Rows
from workbench.model.base import Context
from workbench.model.decompose import Layer
from workbench.model.decompose.layer import local_tensors
from workbench.model.drawn import Seen, drawing
from workbench.model.tally import (
    CLOSE,
    Done,
    Literals,
    Tally,
    labels_in,
    memory_of,
    proportional,
    tensors_in,
    told,
)
from workbench.model.traits import MORE, SAMPLES, blank_copy, blank_inputs

ROWS = "the number of rows"
SUMS = frozenset(("sum", "dot", "mv", "mm", "bmm", "count_nonzero"))
LINEAR = COPIES | frozenset((
    "neg", "select", "unbind", "stack", "cat", "_reshape_alias", "as_strided", "sum", "mean",
))  # fmt: skip
"""Operations that put out sums over rows where they are given some."""
SCALARS = frozenset(("mul", "div", "add", "sub", "rsub"))
GROUPED = frozenset(("_grouped_mm", "grouped_mm_fallback"))
"""Products of experts."""
TO_EXPERTS = frozenset(("sort", "index", "index_put", "arange"))
"""Operations that bring rows to their experts, and back."""
TALLIES = frozenset(("histc", "bincount"))
"""How many rows an expert has tells a grouped product where its rows end."""


@dataclass(frozen=True)
class Joined:
    """A sum over rows (`degree` 1), or what does not depend on them, over a divisor."""

    how: str = ""
    """The operation that joined rows."""
    degree: int = 1
    by: frozenset[Any] = frozenset()
    """The divisor: `ROWS`, or a tensor; of several terms each one's."""
    source: Any = None
    """The sum, where it follows from the batch: `ROWS`, or a tensor."""
    wrong: bool = False
    """Whether it is something else."""


Operands = list[tuple[Any, Joined | None]]
"""Tensors and numbers, and what they join."""


class Parts:
    """A module's layers, as far as the parts of a batch go."""

    def __init__(self, layers: Sequence[Layer], kinds: Sequence[str], devices: Sequence[str]):
        """`devices`: where each layer runs without the data's values."""
        self.joins = self.wrong = ""
        """Why a layer joins rows; why the loss is no mean over rows."""
        self._by, self._tallies = frozenset[Any]((ROWS,)), list[Tally]()
        places = {value.name: at for at, value in enumerate(layers[0].inputs)}
        for layer, kind, device in zip(layers, kinds, devices, strict=True):
            head = layer is layers[-1]
            if not head and kind in kinds[: layer.index]:
                continue
            where = f"layer {layer.index}, {layer.name!r}{' with the loss' * head}, "
            watch = _Watch(layer, places)
            out, joins = watch.run(device), watch.joins
            if watch.unlike:
                self.joins = f"{where}does other operations for another number of rows"
            elif joins or (out and not head):
                self.joins = where + (joins or f"joins rows by {out.how!r}")
            elif out and (out.wrong or not out.by):
                self.wrong = f"it is a {out.how!r} over rows, " + (
                    "of which more is computed" if out.wrong else "and divided by nothing of theirs"
                )
            elif out:
                self._by = out.by
                self._tallies = [watch.tally(source) for source in out.by if source is not ROWS]
            if self.joins or self.wrong:
                return

    @property
    def counts_differ(self) -> bool:
        """Whether one row may count more than another."""
        return bool(self._tallies)

    def counts(self, tensors: Sequence[Tensor]) -> Tensor:
        """How much each row of a batch counts, fp32. Raises ValueError where terms of the loss
        count them otherwise than others."""
        found = [tally.of(tensors) for tally in self._tallies]
        if ROWS in self._by:
            found.append(torch.ones(len(tensors[0])))
        for other in found[1:]:
            if not proportional(found[0], other):
                raise ValueError(
                    f"one term of the loss counts the rows of this batch {told(found[0])}, another "
                    f"{told(other)}, so that it is no mean of its parts'; leave it in one part"
                )
        return found[0]


class _Watch(TorchDispatchMode):
    """Follows what joins rows through a layer."""

    def __init__(self, layer: Layer, places: dict[str, int]) -> None:
        """`places`: name of a tensor of the batch -> its place there."""
        super().__init__()
        self.unlike, self._whole = False, False
        self._layer, self._places, self._done = layer, places, list[Done]()
        self._wide: Iterator[Done] | None = None
        """Operations of the run with more rows, when that has been."""
        self._given, self._hollow = set[int](), set[int]()
        """Tensors, by their ids: made of inputs; made of more than the batch."""
        self._rows: dict[int, Rows] = {}
        """Of tensors with a dimension that counts rows."""
        self._joining: dict[str, str] = {}
        """Operations that join rows, or may -> which of the two."""
        self._seen, self._literals = None, Literals()
        self._norms, self._grouped = 0, False
        """Calls of BatchNorm; whether there is a product of experts."""
        self._states: dict[int, Joined] = {}
        self._kept: dict[int, list[Tensor]] = {}
        """All tensors, by their memory; an id means nothing once its tensor is gone."""
        self._inputs, self._constants = dict[int, int](), dict[int, Tensor]()

    @torch.no_grad()
    def run(self, device: str) -> Joined | None:
        """Run the layer; what it puts out that joins rows."""
        layer = self._layer
        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
            for samples in (MORE, SAMPLES):
                module = blank_copy(layer.module, device)
                inputs = blank_inputs(layer, samples, device)
                if samples == SAMPLES:
                    self._wide, self._done = iter(self._done), []
                    self._begin(module, inputs)
                self._seen = Seen(Context(seed=0, step=0, unit=0, samples=(0,) * samples))
                self._literals = Literals()
                with drawing(self._seen), self._literals, self:
                    made = module(*inputs)
        return next(filter(None, (self._states.get(id(tensor)) for tensor in made)), None)

    @property
    def joins(self) -> str:
        """Tells the first operation that may join rows, if there is one. Those around a grouped
        product bring rows back to where they were."""
        left = TO_EXPERTS if self._grouped else ()
        found = ((does, name) for name, does in self._joining.items() if name not in left)
        return next((f"{does} rows by {name!r}" for does, name in found), "")

    def tally(self, source: Tensor) -> Tally:
        """Of the sum that is a divisor."""
        return Tally(self._done, source, self._inputs, self._constants, whole=self._whole)

    def _begin(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        there = local_tensors(self._layer.module)
        for tensor, value in zip(inputs, self._layer.inputs, strict=True):
            self._keep(tensor)
            self._given.add(id(tensor))
            if value.batch_dim is not None:
                self._rows[id(tensor)] = Rows(value.batch_dim, value.rows)
            if value.name in self._places:
                self._inputs[id(tensor)] = self._places[value.name]
            else:
                self._hollow.add(id(tensor))
        for name, tensor in local_tensors(module).items():
            self._keep(tensor)
            if isinstance(tensor, nn.Parameter) or there[name].is_meta:
                self._hollow.add(id(tensor))
            else:
                self._constants[id(tensor)] = there[name].cpu()

    def _begin_with(self, made: Tensor) -> None:
        """A tensor that no operation has put out."""
        self._keep(made)
        for empty, full in self._literals.found:
            if empty is made:
                self._constants[id(made)] = full
                return
        self._hollow.add(id(made))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = tensors_in(out)
        one = Done(func, args, kwargs or {}, made, [tensor.shape for tensor in made])
        if self._wide is None:
            self._done.append(one)
            return out
        wide, read = next(self._wide, None), {*map(id, tensors_in((one.args, one.kwargs)))}
        if wide is None or not _as_one(one, wide):
            self.unlike = True
        if self.unlike:
            return out
        for tensor in tensors_in((one.args, one.kwargs)):
            if tensor.is_meta and memory_of(tensor) not in self._kept:
                self._begin_with(tensor)
        given, hollow = not read.isdisjoint(self._given), not read.isdisjoint(self._hollow)
        if not hollow:
            self._done.append(one)
        name, operands = func.overloadpacket.__name__.removesuffix("_"), _operands(one, wide)
        operands = [(leaf, state or self._states.get(id(leaf))) for leaf, state in operands]
        self._grouped |= name in GROUPED
        self._norms += "batch_norm" in name
        normed = self._norms <= sum(self._seen.calls.values())
        call = Call(one, wide, self._rows, normed=normed)
        if not call.apart:
            self._joining.setdefault(name, "may join")
        for at, (made, rows) in enumerate(zip(one.made, call.rows, strict=True)):
            grows, state = rows is not None, None
            if given or any(of for _, of in operands):
                state = self._after(name, one, operands, None if hollow else made, grows=grows)
                if at and state and state.by:  # the sum of weights that a loss puts out as well
                    state = replace(state, wrong=True)
                if grows and state and state.wrong:
                    self._joining.setdefault(state.how, "joins")
            self._keep(made)
            for tensor in self._kept[memory_of(made)] if func._schema.is_mutable else [made]:
                for true, among in ((hollow, self._hollow), (given, self._given)):
                    if true:
                        among.add(id(tensor))
                if tensor is made and grows:
                    self._rows[id(tensor)] = rows
                elif grows and rows.inner and (old := self._rows.get(id(tensor))):
                    own = old.inner or tensor.shape[old.dim] // SAMPLES
                    self._rows[id(tensor)] = replace(old, inner=own)
                if state is not None:
                    self._states[id(tensor)] = state
        return out

    def _after(
        self, name: str, one: Done, operands: Operands, own: Tensor | None, *, grows: bool
    ) -> Joined | None:
        """What an operation puts out; `own` where it follows from the batch."""
        joined = [state for _, state in operands if state is not None]
        falls = not grows and any(id(leaf) in self._rows for leaf, _ in operands)
        if name in TALLIES or not (joined or falls):
            return None
        if not joined:
            return self._fallen(name, one, own)
        first, several = joined[0], len(joined) > 1
        lost = replace(first, wrong=True)
        if any(state.wrong for state in joined):
            return lost
        if name in ("mul", "div"):
            return _scaled(name, operands, grows=grows)
        if name in SCALARS:
            return self._added(operands, own)
        if name in ("clamp", "clamp_min") and first.source is not None and len(operands) == 2:
            self._whole = True
            return first if operands[1][0] <= 1 else lost
        if falls and first.degree == 0 and name in SUMS and not several:
            return replace(first, degree=1)
        alike = len({(state.degree, state.by) for state in joined}) == 1
        alike |= all(state.degree and state.by for state in joined)
        tensors = [leaf for leaf, _ in operands if isinstance(leaf, Tensor)]
        if name not in LINEAR or len(tensors) > len(joined) or (falls and name == "mean"):
            return lost
        by = frozenset[Any]().union(*(state.by for state in joined))
        source = own if several else first.source
        return replace(first, by=by, source=source) if alike else lost

    def _fallen(self, name: str, one: Done, own: Tensor | None) -> Joined:
        """Of an operation that loses the dimension of rows."""
        how = _reduction(one)
        if name.startswith("nll_loss") and how == 1:
            labels, beside = (*one.args[1:3], one.args[4]), tensors_in(one.args[1:3])
            count = torch.empty((), device="meta")
            self._keep(count)
            self._done.append(Done(labels_in, labels, {}, [count]))
            hollow = any(id(tensor) in self._hollow for tensor in beside)
            return Joined(name, by=frozenset((count,)), wrong=hollow)
        if name in SUMS or how == 2:
            return Joined(name, source=own)
        return Joined(name, by=frozenset((ROWS,)), wrong=name != "mean" and how != 1)

    def _added(self, operands: Operands, own: Tensor | None) -> Joined:
        """A sum or a difference."""
        (_, one), (beside, other) = operands[:2] if operands[0][1] else operands[1::-1]
        if other is None:
            if one.degree and one.by and id(beside) not in self._rows:
                return one  # a mean, and a constant
            small = isinstance(beside, int | float) and abs(beside) <= CLOSE
            self._whole |= small
            return one if small and one.source is not None else replace(one, wrong=True)
        if (one.degree, one.by) == (other.degree, other.by):
            known = one.source is not None and other.source is not None
            return replace(one, source=own if known else None)
        terms = bool(one.degree and other.degree and one.by and other.by)
        return replace(one, by=one.by | other.by, source=None, wrong=not terms)

    def _keep(self, tensor: Tensor) -> None:
        self._kept.setdefault(memory_of(tensor), []).append(tensor)


def _as_one(one: Done, wide: Done) -> bool:
    """Whether two runs did one operation, on as many tensors of as many dimensions."""
    forms = [
        (len(tree_leaves((each.args, each.kwargs))), [*map(len, each.shapes)])
        for each in (one, wide)
    ]
    return one.func is wide.func and forms[0] == forms[1]


def _operands(one: Done, wide: Done) -> Operands:
    """Of numbers, what follows that of rows in a sum or product."""
    found, scalars = Operands(), one.func.overloadpacket.__name__.rstrip("_") in SCALARS
    every = zip(*(tree_leaves((each.args, each.kwargs)) for each in (one, wide)), strict=True)
    for leaf, more in every:
        state = None
        if isinstance(leaf, int | float) and scalars and leaf != more:
            state = Joined(ROWS, wrong=True)
            if abs(leaf * MORE - more * SAMPLES) <= CLOSE * abs(more):
                state = Joined(ROWS, source=ROWS)
            elif abs(leaf * SAMPLES - more * MORE) <= CLOSE * abs(leaf):
                state = Joined(ROWS, degree=0, by=frozenset((ROWS,)))
        if isinstance(leaf, Tensor | int | float):
            found.append((leaf, state))
    return found


def _scaled(name: str, operands: Operands, *, grows: bool) -> Joined:
    """A product or a quotient."""
    one, other = (state or Joined(degree=0) for _, state in operands[:2])
    degree, by, divides = one.degree + other.degree, one.by | other.by, name == "div"
    source = other.source if one.source is None else one.source
    wrong = bool(one.by and other.by) or degree > 1
    if divides and operands[1][1]:
        degree, by, source = one.degree, frozenset((other.source,)), None
        wrong = bool(one.by or other.by or other.source is None)
    return Joined(one.how or other.how, degree, by, source, wrong or (degree > 0 and grows))


def _reduction(one: Done) -> int | None:
    """1 for a mean, 2 for a sum, where an operation is one of a loss."""
    for at, argument in enumerate(one.func._schema.arguments):
        if argument.name == "reduction":
            given = one.args[at] if at < len(one.args) else argument.default_value
            return one.kwargs.get("reduction", given)
    return None
