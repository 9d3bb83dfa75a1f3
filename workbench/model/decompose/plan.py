"""A layer as plain data: calls of parts of a model, one after the other.

It calls the model's own submodules, with their own code, and the functions that stood between
them. Numbers in it that follow the batch size, the device or the mode (train, eval) are holes,
filled at each call (written_out.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

# Nested arguments and outputs as a flat list of leaves, and back.


@dataclass(frozen=True, slots=True)
class Form:
    """The structure without its leaves; equal forms hold leaves in the same places."""

    kind: type | None
    """Type of the container; None for a leaf."""
    keys: tuple[Any, ...]
    parts: tuple[Form, ...]


LEAF = Form(None, (), ())


def flatten(thing: Any) -> tuple[list[Any], Form]:
    """Leaves in order, and the form that `build` makes the thing from.

    Tuples, lists, named tuples, dictionaries, dataclasses with tensors in them (Hugging Face's
    outputs are both), sizes and slices are taken apart; anything else is a leaf.
    """
    leaves: list[Any] = []
    return leaves, _flatten(thing, leaves)


def _flatten(thing: Any, leaves: list[Any]) -> Form:
    keys: tuple = ()
    if isinstance(thing, Mapping):
        keys, parts = tuple(thing), tuple(thing.values())
    elif isinstance(thing, tuple | list):
        parts = tuple(thing)
    elif isinstance(thing, slice):
        parts = (thing.start, thing.stop, thing.step)
    elif _has_tensors(thing):
        keys = tuple(f.name for f in fields(thing))
        parts = tuple(getattr(thing, key) for key in keys)
    else:
        leaves.append(thing)
        return LEAF
    return Form(type(thing), keys, tuple(_flatten(part, leaves) for part in parts))


def _has_tensors(thing: Any) -> bool:
    """Whether it is a dataclass of data; one of settings is kept whole."""
    if not is_dataclass(thing) or isinstance(thing, type):
        return False
    leaves, _ = flatten([getattr(thing, f.name) for f in fields(thing)])
    return any(isinstance(leaf, Tensor) for leaf in leaves)


def build(form: Form, leaves: Sequence[Any]) -> Any:
    """The thing of that form with these leaves."""
    return _build(form, iter(leaves))


def _build(form: Form, leaves: Iterator[Any]) -> Any:
    kind = form.kind
    if kind is None:
        return next(leaves)
    parts = [_build(part, leaves) for part in form.parts]
    if kind is slice or hasattr(kind, "_fields"):
        return kind(*parts)
    if issubclass(kind, Mapping):
        items = dict(zip(form.keys, parts, strict=True))
        return kind(**items) if is_dataclass(kind) else kind(items)
    if is_dataclass(kind):
        new = object.__new__(kind)  # `__init__` may take other arguments than there are fields
        for key, part in zip(form.keys, parts, strict=True):
            object.__setattr__(new, key, part)
        return new
    return kind(parts)


def labels(form: Form, name: str) -> list[str]:
    """A name for each leaf: `name`, with the keys or numbers that lead to it."""
    if form.kind is None:
        return [name]
    keys = form.keys or [str(i) for i in range(len(form.parts))]
    return [
        label
        for key, part in zip(keys, form.parts, strict=True)
        for label in labels(part, f"{name}.{key}" if name else str(key))
    ]


# Stand-ins in a program for values that are known only when it runs.


class Hole:
    """A value that is known when its program runs."""


@dataclass(frozen=True, slots=True)
class Ref(Hole):
    """A tensor computed before."""

    number: int


@dataclass(frozen=True, slots=True)
class State(Hole):
    """A parameter, a buffer or a constant tensor of the model that a function is given."""

    key: str


@dataclass(frozen=True, slots=True)
class Affine(Hole):
    """A whole number that follows the batch size B: slope * B + start."""

    slope: int
    start: int


@dataclass(frozen=True, slots=True)
class Share(Hole):
    """A fraction whose denominator is the batch size."""

    whole: float


@dataclass(frozen=True, slots=True)
class Device(Hole):
    """The device the layer runs on."""


@dataclass(frozen=True, slots=True)
class Mode(Hole):
    """Something else in training than in evaluation, such as the probability of dropping."""

    training: Any
    evaluation: Any


@dataclass(frozen=True, slots=True)
class Named:
    """A function that is found by its name, for one that cannot be pickled itself."""

    module: str
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(self.module), self.name)(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program: a submodule (by its path in the model) or a function."""

    target: str | Callable
    form: Form
    """Form of the pair (args, kwargs)."""
    leaves: tuple[Any, ...]
    results: tuple[int, ...]
    """Numbers of the tensors that come out, in order."""
    grad: bool = True
    """False where the model's code had gradients switched off."""

    @property
    def method(self) -> str:
        """Name of the tensor's method that the function is; empty for another function."""
        name = getattr(self.target, "__name__", "")
        return name if name and getattr(Tensor, name, None) is self.target else ""

    def refs(self) -> Iterable[int]:
        """Numbers of the values that the call reads."""
        return (leaf.number for leaf in self.leaves if isinstance(leaf, Ref))


@dataclass(slots=True)
class Plan:
    """Plain data of a program."""

    takes: list[int]
    """Numbers of the inputs."""
    gives: list[Any]
    """Leaves that make up the outputs."""
    calls: list[Call]
    batch_from: tuple[int, int, int]
    """(place among the inputs, dimension, rows per sample) of one that has the batch
    size; the layer runs on its device."""
    mode: bool | None = None
    """Value of `training` for which the program is right; None when it is right for both."""
    output: tuple[Form, tuple[Any, ...]] | None = None
    """Structure of the model's output and its leaves; the last layer puts out the tensors of it."""
    at_home: bool = False
    """Whether what submodules make without naming a device is to be made on the layer's."""
    drops: list[list[int]] = field(init=False)
    """After each call, what is not needed any more."""

    def __post_init__(self) -> None:
        kept = {leaf.number for leaf in self.gives if isinstance(leaf, Ref)}
        self.drops = []
        for call in reversed(self.calls):
            last = {*call.refs(), *call.results} - kept
            self.drops.append(sorted(last))
            kept |= last
        self.drops.reverse()

    def __deepcopy__(self, memo: dict) -> Plan:
        """Itself: copies of a layer do the same, and a plan is longer than the layer's weights."""
        return self

    def leaves(self) -> list[Any]:
        """All that the calls and the outputs are made from."""
        return [*(leaf for call in self.calls for leaf in call.leaves), *self.gives]
