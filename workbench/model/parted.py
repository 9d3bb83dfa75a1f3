"""Whether the mean loss of a batch follows from those of its parts, and how much each row counts.

Told by the operations of layers and loss, and not by the values of one batch. Layers run with two
rows and with three, without values: a dimension that differs counts rows. A tensor without it that
was made of some that have it joins rows. It has to be a sum over them or one over a divisor, the
loss ends as the latter, and no row may read one. Of a divisor that follows from the batch, as the
number of labels that count does, the operations are kept, and done for each row of a later batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from workbench.model.base import Context
from workbench.model.decompose import Layer
from workbench.model.decompose.layer import local_tensors
from workbench.model.drawn import Seen, drawing
from workbench.model.look import MORE, SAMPLES, blank_copy, blank_inputs

ROWS = "the number of rows"
CLOSE = 1e-6
"""Relative difference that is a rounding of fp32."""
SUMS = frozenset(("sum", "dot", "mv", "mm", "bmm", "count_nonzero"))
LINEAR = frozenset((
    "neg", "_to_copy", "view", "_unsafe_view", "squeeze", "unsqueeze", "select", "slice", "expand",
    "clone", "detach", "alias", "permute", "transpose", "t", "stack", "cat", "copy", "unbind",
    "lift_fresh", "_reshape_alias", "as_strided", "sum", "mean",
))  # fmt: skip
"""Operations that put out sums over rows where they are given some."""
SCALARS = frozenset(("mul", "div", "add", "sub", "rsub"))
ALONG = frozenset(("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "flip", "roll"))
"""Operations that mix entries of the dimension they name."""
TALLIES = frozenset(("histc", "bincount"))
"""How many rows an expert has tells a grouped product where its rows end."""


@dataclass(frozen=True)
class Joined:
    """A sum over rows (`degree` 1), or what does not depend on them, over a divisor."""

    how: str
    """The operation that joined rows."""
    degree: int = 1
    by: frozenset[Any] = frozenset()
    """The divisor: `ROWS`, or a tensor; of several terms each one's."""
    source: Any = None
    """The sum, where it follows from the batch: `ROWS`, or a tensor."""
    wrong: bool = False
    """Whether it is something else."""


class Done(NamedTuple):
    """An operation of a run."""

    func: Any
    args: tuple
    kwargs: dict[str, Any]
    made: list[Tensor]


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
            where, watch = f"layer {layer.index}, {layer.name!r}, ", _Watch(layer, places)
            out = watch.run(device)
            if watch.unlike:
                self.wrong = f"{where}does other operations for another number of rows"
            elif watch.joins or (out and not head):
                self.joins = f"{where}joins rows by {watch.joins or out.how!r}"
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


def proportional(one: Tensor, other: Tensor) -> bool:
    """Whether two counts weigh rows alike."""
    return torch.allclose(one * other.sum(), other * one.sum(), rtol=10 * CLOSE, atol=0.0)


def told(counts: Tensor) -> str:
    """Counts of rows for people."""
    words = " ".join(f"{count:g}" for count in counts[:8].tolist())
    return words + " ..." * (len(counts) > 8)


class Tally:
    """A sum over the rows of a batch."""

    def __init__(
        self, done: Iterable[Done], source: Tensor, inputs: dict[int, int],
        constants: dict[int, Tensor], *, whole: bool,
    ) -> None:  # fmt: skip
        """`done` make it of `inputs`: id of a tensor there -> place in the batch. `whole`: what a
        row adds is taken to be 0, or 1 at least."""
        self._source, self._inputs, self._constants = source, inputs, constants
        self._whole, self._done, needed = whole, list[Done](), {_memory(source)}
        for one in reversed([*done]):
            if not needed.isdisjoint(map(_memory, one.made)):
                self._done.insert(0, one)
                needed |= {*map(_memory, _tensors((one.args, one.kwargs)))}

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Part of each row."""
        given = [tensors[place] for place in self._inputs.values()]
        try:
            found = torch.vmap(self._row)(*given)
        except Exception:  # an operation has no such form
            found = torch.stack([self._row(*row) for row in zip(*given, strict=True)])
        found = found.reshape(len(found)).float()
        if self._whole and bool(((found > 0) & (found < 1)).any()):
            raise ValueError(
                f"a row counts {float(found[found > 0].min()):g} in a divisor of the loss that is "
                "no less than 1, so that it is no mean of its parts'; leave the batch in one part"
            )
        return found

    def _row(self, *row: Tensor) -> Tensor:
        """Half of what a row adds that is there twice, as the operations want it."""
        known = dict(self._constants)
        for at, tensor in zip(self._inputs, row, strict=True):
            known[at] = torch.stack([tensor] * SAMPLES)

        def put(leaf: Any) -> Any:
            home = isinstance(leaf, torch.device)
            return torch.device("cpu") if home else known.get(id(leaf), leaf)

        for one in self._done:
            args, kwargs = tree_map(put, (one.args, one.kwargs))
            made = _tensors(one.func(*args, **kwargs))
            known |= {id(old): new for old, new in zip(one.made, made, strict=True)}
        return known[id(self._source)] / SAMPLES


class _Noted(TorchDispatchMode):
    """Notes operations."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Done] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.done.append(Done(func, args, kwargs or {}, _tensors(out)))
        return out


class _Watch(TorchDispatchMode):
    """Follows what joins rows through a layer."""

    def __init__(self, layer: Layer, places: dict[str, int]) -> None:
        """`places`: name of a tensor of the batch -> its place there."""
        super().__init__()
        self.joins, self.unlike, self._whole = "", False, False
        self._layer, self._places, self._done = layer, places, list[Done]()
        self._growing, self._given, self._hollow = set[int](), set[int](), set[int]()
        """Tensors, by their ids: with a dimension that counts rows; made of inputs; made of more
        than the batch."""
        self._states: dict[int, Joined] = {}
        self._kept: dict[int, list[Tensor]] = {}
        """All tensors, by their memory; an id means nothing once its tensor is gone."""
        self._inputs, self._constants = dict[int, int](), dict[int, Tensor]()

    @torch.no_grad()
    def run(self, device: str) -> Joined | None:
        """Run the layer; what it puts out that joins rows."""
        layer, noted = self._layer, _Noted()
        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
            for samples, mode in ((MORE, noted), (SAMPLES, self)):
                module, inputs = (
                    blank_copy(layer.module, device),
                    blank_inputs(layer, samples, device),
                )
                if mode is self:
                    self._wide = iter(noted.done)
                    self._begin(module, inputs)
                ctx = Context(seed=0, step=0, unit=0, samples=(0,) * samples)
                with drawing(Seen(ctx)), mode:
                    made = module(*inputs)
        return next(filter(None, (self._states.get(id(tensor)) for tensor in made)), None)

    def tally(self, source: Tensor) -> Tally:
        """Of the sum that is a divisor."""
        return Tally(self._done, source, self._inputs, self._constants, whole=self._whole)

    def _begin(self, module: Any, inputs: Sequence[Tensor]) -> None:
        there = local_tensors(self._layer.module)
        for tensor, value in zip(inputs, self._layer.inputs, strict=True):
            self._keep(tensor)
            self._given.add(id(tensor))
            if value.batch_dim is not None:
                self._growing.add(id(tensor))
            if value.name in self._places:
                self._inputs[id(tensor)] = self._places[value.name]
            else:
                self._hollow.add(id(tensor))
        for name, tensor in local_tensors(module).items():
            self._keep(tensor)
            if isinstance(tensor, torch.nn.Parameter) or there[name].is_meta:
                self._hollow.add(id(tensor))
            else:
                self._constants[id(tensor)] = there[name].cpu()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        wide, one = next(self._wide, None), Done(func, args, kwargs or {}, _tensors(out))
        self.unlike |= wide is None or wide.func is not func
        if self.unlike:
            return out
        given, hollow = (
            any(id(t) in among for t in _tensors((one.args, one.kwargs)))
            for among in (self._given, self._hollow)
        )
        if not hollow:
            self._done.append(one)
        for at, (made, more) in enumerate(zip(one.made, wide.made, strict=True)):
            unlike = [a != b for a, b in zip(made.shape, more.shape, strict=True)]
            name = func.overloadpacket.__name__.removesuffix("_")
            state = None
            if given or self._follows(one, wide):
                state = self._after(name, one, wide, None if hollow else made, any(unlike))
                if at and state and state.by:  # the sum of weights that a loss puts out as well
                    state = replace(state, wrong=True)
                if any(unlike) and ((state and state.wrong) or _mixes(name, args, unlike)):
                    self.joins = self.joins or (state.how if state else name)
            self._keep(made)
            for tensor in self._kept[_memory(made)] if func._schema.is_mutable else [made]:
                facts = ((hollow, self._hollow), (given, self._given))
                for true, among in (*facts, (tensor is made and any(unlike), self._growing)):
                    if true:
                        among.add(id(tensor))
                if state is not None:
                    self._states[id(tensor)] = state
        return out

    def _follows(self, one: Done, wide: Done) -> bool:
        """Whether one of two terms or factors is a number that follows that of rows."""
        return any(state for _, state in self._operands(one, wide))

    def _operands(self, one: Done, wide: Done) -> list[tuple[Any, Joined | None]]:
        """Tensors and numbers, and what they join."""
        found, scalars = [], one.func.overloadpacket.__name__.rstrip("_") in SCALARS
        every = zip(*(tree_leaves((each.args, each.kwargs)) for each in (one, wide)), strict=True)
        for leaf, more in every:
            state = self._states.get(id(leaf)) if isinstance(leaf, Tensor) else None
            if isinstance(leaf, int | float) and scalars and leaf != more:
                state = Joined(ROWS, wrong=True)
                if abs(leaf * MORE - more * SAMPLES) <= CLOSE * abs(more):
                    state = Joined(ROWS, source=ROWS)
                elif abs(leaf * SAMPLES - more * MORE) <= CLOSE * abs(leaf):
                    state = Joined(ROWS, degree=0, by=frozenset((ROWS,)))
            if isinstance(leaf, Tensor | int | float):
                found.append((leaf, state))
        return found

    def _after(
        self, name: str, one: Done, wide: Done, own: Tensor | None, grows: bool
    ) -> Joined | None:
        """What an operation puts out; `own` where it follows from the batch."""
        operands = self._operands(one, wide)
        joined = [state for _, state in operands if state is not None]
        falls = not grows and any(id(leaf) in self._growing for leaf, _ in operands)
        if name in TALLIES or not (joined or falls):
            return None
        if not joined:
            return self._fallen(name, one, own)
        first = joined[0]
        lost = replace(first, wrong=True)
        if any(state.wrong for state in joined):
            return lost
        if name in ("mul", "div"):
            return self._scaled(name, *operands[:2], grows)
        if name in ("add", "sub", "rsub"):
            return self._added(*operands[:2], own)
        if name in ("clamp", "clamp_min") and first.source is not None and len(operands) == 2:
            self._whole = True
            return first if operands[1][0] <= 1 else lost
        alike = len({(state.degree, state.by) for state in joined}) == 1
        if not (alike or all(state.degree and state.by for state in joined)):
            return lost
        by, several = frozenset[Any]().union(*(s.by for s in joined)), len(joined) > 1
        tensors = [leaf for leaf, _ in operands if isinstance(leaf, Tensor)]
        if falls and first.degree == 0 and name in SUMS and not several:
            return replace(first, degree=1)
        if name in LINEAR and len(tensors) == len(joined) and not (falls and name == "mean"):
            return replace(first, by=by, source=own if several else first.source)
        return lost

    def _fallen(self, name: str, one: Done, own: Tensor | None) -> Joined:
        """Of an operation that loses the dimension of rows."""
        how = _reduction(one)
        if name.startswith("nll_loss") and how == 1:
            labels, beside = (*one.args[1:3], one.args[4]), _tensors(one.args[1:3])
            if any(id(tensor) in self._hollow for tensor in beside):
                return Joined(name, wrong=True)
            count = torch.empty((), device="meta")
            self._keep(count)
            self._done.append(Done(_labels, labels, {}, [count]))
            return Joined(name, by=frozenset((count,)))
        if name in SUMS or how == 2:
            return Joined(name, source=own)
        by = frozenset((ROWS,))
        return Joined(name, by=by, wrong=name != "mean" and how != 1)

    def _scaled(
        self, name: str, left: tuple[Any, Joined | None], right: tuple[Any, Joined | None],
        grows: bool,
    ) -> Joined:  # fmt: skip
        """A product or a quotient."""
        plain = Joined("", degree=0)
        one, other = left[1] or plain, right[1] or plain
        state = Joined(one.how or other.how, wrong=True)
        if name == "div" and right[1]:
            if one.by or other.by or other.source is None:
                return state
            return replace(state, degree=one.degree, by=frozenset((other.source,)),
                           wrong=grows and one.degree > 0)  # fmt: skip
        degree = one.degree + other.degree
        sources = [s.source for s in (one, other) if s.source is not None]
        return replace(
            state, degree=degree, by=one.by | other.by, source=sources[0] if sources else None,
            wrong=bool(degree > 1 or (degree and grows) or (one.by and other.by)),
        )  # fmt: skip

    def _added(
        self, left: tuple[Any, Joined | None], right: tuple[Any, Joined | None],
        own: Tensor | None,
    ) -> Joined:  # fmt: skip
        """A sum or a difference."""
        (_, one), (beside, other) = (left, right) if left[1] else (right, left)
        if other is None:
            number = isinstance(beside, int | float)
            if one.degree and one.by and id(beside) not in self._growing:
                return one  # a mean, and a constant
            if number and one.source is not None and abs(beside) <= CLOSE:
                self._whole = True
                return one
            return replace(one, wrong=True)
        if (one.degree, one.by) == (other.degree, other.by):
            known = one.source is not None and other.source is not None
            return replace(one, source=own if known else None)
        terms = bool(one.degree and other.degree and one.by and other.by)
        return replace(one, by=one.by | other.by, source=None, wrong=not terms)

    def _keep(self, tensor: Tensor) -> None:
        self._kept.setdefault(_memory(tensor), []).append(tensor)


def _labels(target: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    """The weights of all labels that count."""
    counts = target != ignored
    if weight is None:
        return counts.sum()
    return weight[target.where(counts, 0)].where(counts, 0).sum()


def _reduction(one: Done) -> int | None:
    """1 for a mean, 2 for a sum, where an operation is one of a loss."""
    for at, argument in enumerate(one.func._schema.arguments):
        if argument.name == "reduction":
            given = one.args[at] if at < len(one.args) else argument.default_value
            return one.kwargs.get("reduction", given)
    return None


def _mixes(name: str, args: tuple, unlike: Sequence[bool]) -> bool:
    """Whether an operation mixes the rows of what it puts out."""
    dims = [dim % len(unlike) for dim in tree_leaves(args[1:]) if type(dim) is int]
    dims = dims if name == "flip" else dims[-1:] if name == "roll" else dims[:1]
    return sum(unlike) > 1 or (name in ALONG and unlike.index(True) in dims)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
