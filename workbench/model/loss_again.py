"""Whether a user's loss function still does what it did when layers were made of it.

Its operations then are what trains. It is called again before each step, on outputs and a batch of
two samples without values, which costs no more than calling it; what it does with them, and with
which numbers, is compared with the first time. So a change of whatever it reads is found, without
knowing where it reads: an object's method, a property, an array, a class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from workbench.model.decompose.plan import Form, build, flatten
from workbench.model.drawn import unkeyed
from workbench.model.reachable import attributes_of, sample, variables_of
from workbench.model.tables import refuse, taken_out
from workbench.model.tally import tensors_in

MOST = 200
"""Operations of a loss function that is called before every step; one with more, such as one that
calls another model, is called before steps whose number is a power of two."""
SMALL = 1 << 16
"""Elements of a tensor from outside that is computed with, to follow what is made of it."""
SAMPLED = 4096
"""Values of such a tensor that are compared."""
CLOSE = 1e-6
"""Relative difference of numbers that are made of numbers from outside."""
CHANGES = (
    "the loss function reads something that changes from step to step ({}), and its operations in "
    "the first step are what trains; put such a number into the batch, as a tensor with a value a "
    "row"
)


class LossAgain:
    """Calls a loss function on what a module puts out. Copies of a module share it."""

    __slots__ = ("_first", "_given", "_outputs", "_steps")  # no state of the module that holds it

    def __init__(self) -> None:
        self._given: list[Any] | None = None
        self._outputs: tuple[list[Any], Form] | None = None
        self._first: _Done | None = None
        """None as long as it has not been called, and where that is not possible."""
        self._steps = 0

    def __deepcopy__(self, memo: dict) -> LossAgain:
        return self

    def note(self, given: Sequence[Tensor], outputs: Any) -> None:
        """Keep of the first run without values the shapes of the batch's tensors and outputs."""
        leaves, form = flatten(outputs)
        if self._outputs is None and any(isinstance(leaf, FakeTensor) for leaf in leaves):
            self._given, self._outputs = [*map(_shape, given)], ([*map(_shape, leaves)], form)

    def begin(self, loss_fn: Callable, filled: Callable[[list[Tensor]], Any]) -> None:
        """Take what the function does now as the first time; `filled` makes a batch of tensors.
        Raises ValueError where it does something else when it is called again, or keeps what it
        computes."""
        self._first, self._steps = None, 0
        if self._outputs is None:
            return
        with suppress(Exception):  # it needs values, or what it keeps has none
            self._call(loss_fn, filled)  # a first call may fill a table
            self._first = self._call(loss_fn, filled)
        refuse(taken_out(_held_by(loss_fn)))
        if self._first is not None:
            self.check(loss_fn, filled)

    def check(self, loss_fn: Callable, filled: Callable[[list[Tensor]], Any]) -> None:
        """Raise ValueError where the function does something else than the first time."""
        if self._first is None:
            return
        self._steps += 1
        if len(self._first.words) > MOST and self._steps & (self._steps - 1):
            return
        try:
            now = self._call(loss_fn, filled)
        except Exception as error:  # whatever it raises
            what = f"{type(error).__name__}: {error!s:.80}".split("\n")[0]
        else:
            what = now.unlike(self._first)
        if what:
            raise ValueError(CHANGES.format(what))

    def _call(self, loss_fn: Callable, filled: Callable[[list[Tensor]], Any]) -> _Done:
        done, (leaves, form) = _Done(self._first), self._outputs
        with torch.no_grad(), unkeyed():
            outputs = build(form, [_made(leaf) for leaf in leaves])
            batch = filled([_made(leaf) for leaf in self._given])
            with done:
                loss_fn(outputs, batch)
        done.let_go()
        return done


def _held_by(function: Callable) -> dict[str, Any]:
    """Variables that it names; of a module the attributes as well."""
    own = attributes_of(function) if isinstance(function, nn.Module) else ()
    return variables_of(function) | {place: value for place, _, value in own}


class _Shape(tuple):
    """(shape, dtype) of a tensor."""


def _shape(leaf: Any) -> Any:
    return _Shape((tuple(leaf.shape), leaf.dtype)) if isinstance(leaf, Tensor) else leaf


def _made(leaf: Any) -> Any:
    return torch.empty(leaf[0], dtype=leaf[1], device="meta") if isinstance(leaf, _Shape) else leaf


class _Done(TorchDispatchMode):
    """Notes operations on tensors without values: their arguments, and the values of tensors that
    have some. Operations on these alone are computed: they may decide what comes next."""

    def __init__(self, first: _Done | None = None) -> None:
        """After the same operations as of a `first` call, what it made is given out again, which
        spares running them: nothing of it has values."""
        super().__init__()
        self._first = first
        self.words: list[str] = []
        """Each operation, with the places of its tensors and all arguments but numbers."""
        self.outs: list[Any] = []
        """Outputs of each operation; None where some have values, or memory of others."""
        self._numbers: list[tuple[int, Any]] = []
        """(place of the operation, value) of round numbers and of tensors from outside."""
        self._places: dict[int, int] = {}
        self._held: list[Tensor] = []  # an id means nothing once its tensor is gone
        self._made: set[int] = set()
        """Tensors with values that were made meanwhile."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, writes = kwargs or {}, func._schema.is_mutable
        leaves = tree_leaves((args, [*kwargs.values()]))
        tensors = tensors_in(leaves)
        outside = [tensor for tensor in tensors if not tensor.is_meta]
        if any(isinstance(tensor, FakeTensor) for tensor in outside):
            raise ValueError("it uses a tensor that was made while it was looked at")
        if writes and any(id(tensor) not in self._made for tensor in outside):
            raise ValueError("it writes to a tensor from outside")
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if outside and len(outside) == len(tensors) and not drawn and all(map(_is_small, outside)):
            return self._kept(func(*args, **kwargs))
        place, first = len(self.words), self._first
        self.words.append(f"{func} {[*kwargs]} {[self._word(leaf) for leaf in leaves]}")
        if first is not None and self.words[place:] != first.words[place : place + 1]:
            self._first = first = None
        if first is not None and first.outs[place] is not None:
            return self._kept(first.outs[place])
        if outside:
            args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        if drawn and not tensors:  # no generator of the user's goes on
            kwargs = {**kwargs, "device": torch.device("meta")}
        out = self._kept(func(*args, **kwargs))
        if writes:  # what was made before may have another shape now
            self.outs = [None] * len(self.outs)
        bare = all(leaf.is_meta for leaf in tensors_in(out))
        views = any(argument.alias_info for argument in func._schema.arguments)
        self.outs.append(out if bare and not views else None)
        return out

    def _kept(self, out: Any) -> Any:
        for leaf in tensors_in(out):
            self._held.append(leaf)
            if leaf.is_meta:
                self._number(id(leaf))
            else:
                self._made.add(id(leaf))
        return out

    def _number(self, key: int) -> int:
        return self._places.setdefault(key, len(self._places))

    def _word(self, leaf: Any) -> str:
        if isinstance(leaf, float):
            self._numbers.append((len(self.words), leaf))
            return "float"
        if not isinstance(leaf, Tensor):
            plain = isinstance(leaf, int | str | None | torch.dtype | torch.device)
            return repr(leaf) if plain else type(leaf).__name__
        if not leaf.is_meta:
            self._numbers.append((len(self.words), sample(leaf, SAMPLED)))
            return f"{leaf.dtype} {tuple(leaf.shape)}"
        self._held.append(leaf)
        return f"{self._number(id(leaf))} {tuple(leaf.shape)}"

    def let_go(self) -> None:
        """Keep no tensor of the call."""
        self._held.clear()
        self._places.clear()
        self._made.clear()
        self._first = None

    def unlike(self, first: _Done) -> str:
        """The first difference from another call, in words; nothing if there is none."""
        for one, other in zip([*self.words, "end"], [*first.words, "end"], strict=False):
            if one != other:
                one, other = _named(one), _named(other)
                if one == other:
                    return f"its {one} has another argument"
                return f"it calls {one} where it called {other}"
        for (place, now), (_, old) in zip(self._numbers, first._numbers, strict=True):
            if not _alike(now, old):
                told = f"{now:.6g} now and was {old:.6g}" if isinstance(now, float) else "another"
                return f"a number in its {_named(self.words[place])} is {told}"
        return ""


def _named(word: str) -> str:
    """An operation's name for people."""
    return "nothing more" if word == "end" else repr(word.split(".")[1].split()[0].strip("_"))


def _is_small(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() <= SMALL


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return one == other or abs(one - other) <= CLOSE * abs(other) or (one != one != other)
    return torch.allclose(one.double(), other.double(), rtol=CLOSE, atol=0.0, equal_nan=True)
