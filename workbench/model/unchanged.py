"""Whether a user's module and loss function are still as they were when layers were made of them.

Layers are made once. What the code of a forward pass or of a loss reads beside its inputs (a
temperature, a dropout's rate, a variable) is a constant in them, and they train copies of the
weights. Layers would not follow a change from outside, so it is refused.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import chain, count
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.model.code_names import read_by_type, used_by_type
from workbench.model.decompose.blocks import choose
from workbench.model.reachable import Place, Reached, sample

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
TABLES = {
    "_modules": "parts", "_forward_hooks": "hooks", "_forward_pre_hooks": "hooks",
    "_backward_hooks": "hooks", "_backward_pre_hooks": "hooks",
}  # fmt: skip
"""Attributes of any module, and their names for people."""
SKIPPED = (frozenset(vars(nn.Module())) | frozenset(dir(type))) - {"training"}
DOT = re.compile(r"\.")
DEEP, LONG = 3, 64
"""Objects within objects, and elements of a list, that are looked at."""
SAMPLES, AT_A_TIME = 32, 8
"""Values of a tensor that are compared, and tensors of which they are in one step."""


class Unchanged:
    """A module, and a loss function, as they are when this is made."""

    def __init__(self, module: nn.Module, function: Callable | None = None) -> None:
        """Keeps no module alive. Without a function the module's weights may change."""
        parts = [*module.named_modules()]
        self._own = frozenset(id(part) for _, part in parts)
        self._parts = [_Part(name, part, self._own) for name, part in parts]
        self._function, self._torch = self._read_by(function), _of_torch()
        around = {"", *(path[: m.start()] for path in choose(module) for m in DOT.finditer(path))}
        self._beside = [*self._read_around(module, sorted(around))]
        inside = {type(part) for name, part in parts if name not in around}
        self._inside = [*self._read_in(inside)]
        self._tensors = {} if function is None else dict(chain(*map(_tensors_of, parts)))
        self._turn = 0

    def check(self, function: Callable | None = None) -> None:
        """Raise ValueError for a change that layers would not follow. `function` may be made anew
        for each step."""
        if (now := _of_torch()) != self._torch:
            raise ValueError(_told("torch's autocast or default dtype", self._torch, now))
        for part in self._parts:
            part.check()
        _compare(self._beside)
        found = self._read_by(function)
        for place in {**self._function, **found}:
            old, now = self._function.get(place), found.get(place)
            if now != old:
                what = f"{_quoted(place[0])}, which the loss function reads,"
                raise ValueError(_told(what, old, now))
        asked = [*self._tensors][self._turn : self._turn + AT_A_TIME]
        self._turn = self._turn + AT_A_TIME if asked else 0
        for name, tensor in self._tensors.items():
            if change := tensor.change(asked=name in asked):
                raise ValueError(
                    f"{name} of the model {change}; the engine trains a copy, which does not "
                    "follow. Make another engine, or change a copy of the model; what "
                    "engine.state_dict() gives may be loaded into the model"
                )

    def handed_out(self, state: Mapping[str, Tensor]) -> None:
        """The trained weights may be loaded into the module."""
        for name in self._tensors.keys() & state.keys():
            self._tensors[name].may_be(state[name])

    def _read_around(
        self, module: nn.Module, around: Iterable[str]
    ) -> Iterator[tuple[str, Place, Any]]:
        """Variables beside the module that code around its blocks reads, in words, and their
        values: the blocks themselves run as they are."""
        for path in around:
            kind = type(module.get_submodule(path))
            for place in Reached(self._own).follow("forward", kind.forward, kind):
                if isinstance(value := _look(place), PLAIN) and not place.written:
                    yield f"{_quoted(place.name)}, which the forward pass reads,", place, value

    def _read_in(self, kinds: Iterable[type[nn.Module]]) -> Iterator[tuple[str, Place, Any]]:
        """Variables beside the module that code of these classes reads, and their values."""
        reached = Reached(self._own)
        for kind in kinds:
            reached.follow("forward", kind.forward, kind)
        for place in reached.places:
            if place.whole and not place.written:
                yield _quoted(place.name), place, _look(place)

    def changed_inside(self) -> str:
        """A variable beside the module that is another than before, and that code of its blocks
        reads: it is followed as long as this code runs in each pass. Empty where there is none."""
        return next((what for what, place, old in self._inside if _look(place) != old), "")

    def _read_by(self, function: Callable | None) -> dict[tuple[str, int], Any]:
        """Values by the names of their places, and how many of the same name come before."""
        found: dict[tuple[str, int], Any] = {}
        places = [] if function is None else Reached(self._own).follow("loss_fn", function)
        for place in places:
            if not place.written:
                before = next(n for n in count() if (place.name, n) not in found)
                found[place.name, before] = _look(place)
        return found


class _Part:
    """What forward code of one module may read, but for its weights and buffers."""

    def __init__(self, name: str, module: nn.Module, inside: frozenset[int]) -> None:
        """`inside`: ids of the model's modules, each of which has a part of its own."""
        self._find, self._name = weakref.ref(module), f"{name}." if name else ""
        loaded, own = read_by_type(type(module)) - SKIPPED, vars(module)
        read = [key for key in own if key in loaded]
        # Of these one comparison tells.
        self._keys = *TABLES, "training", *(key for key in read if isinstance(own[key], PLAIN))
        self._get = itemgetter(*self._keys)
        self._old = tuple(map(copy, self._get(own)))
        # Those of the class stand for all modules until one has its own.
        of_class = [key for key in loaded if isinstance(getattr(type(module), key, own), PLAIN)]
        others = [
            Place(self._name + key, self._find, key)
            for key in (*read, *of_class)
            if key not in self._keys
        ]
        reached = Reached(inside)
        for key in read:
            reached.look_in(self._name + key, own[key], loaded)
        own_ways = tuple(self._name + key for key in read)
        others += (p for p in reached.places if p.name.startswith(own_ways) and not p.written)
        self._others = [(f"{place.name} of the model", place, _look(place)) for place in others]

    def check(self) -> None:
        """Raise ValueError for a change."""
        if (module := self._find()) is None:
            return
        try:
            alike = self._get(vars(module)) == self._old
        except (KeyError, RuntimeError, ValueError):  # it is gone, or an array now
            alike = False
        olds = () if alike else zip(self._keys, self._old, strict=True)
        for key, old in olds:
            now = _comparable(vars(module).get(key))
            if now != _comparable(old):
                table = key in TABLES and f"{TABLES[key]} of {self._name or 'the model '}"[:-1]
                raise ValueError(_told(table or f"{self._name}{key} of the model", old, now))
        _compare(self._others)


class _Known:
    """A parameter or buffer of the module's."""

    def __init__(self, part: nn.Module, table: str, key: str) -> None:
        self._part, self._table, self._key = weakref.ref(part), table, key
        tensor = self._find()
        self._state, self._sample = _state(tensor), _sample(tensor)
        self._place, self._trained = tensor.data_ptr(), tensor.requires_grad
        self._hooks = _hooks(tensor)
        self._may: set[str] = set()
        """Values that may be loaded, in the type of the module, or in theirs."""

    def may_be(self, tensor: Tensor) -> None:
        if (own := self._find()) is not None:
            self._may = {_sample(tensor, own.dtype), _sample(tensor)}

    def change(self, *, asked: bool) -> str | None:
        """In words, if there was one. Values are looked at where they were written or moved, or
        where they are `asked` for: writes to ``.data`` leave no trace."""
        tensor = self._find()
        if tensor is None:
            return None if self._part() is None else "is gone"
        if tensor.requires_grad != self._trained:
            return f"has requires_grad {tensor.requires_grad} now, and had {self._trained}"
        if _hooks(tensor) != self._hooks:
            return "has another hook on its gradient"
        written, moved = _state(tensor) != self._state, tensor.data_ptr() != self._place
        if written or moved or asked:
            found = _sample(tensor)
            if found not in self._may and (written or found != self._sample):
                return "has been changed"
            self._state, self._place, self._sample = _state(tensor), tensor.data_ptr(), found
        return None

    def _find(self) -> Tensor | None:
        part = self._part()
        return None if part is None else vars(part)[self._table].get(self._key)


def _tensors_of(named: tuple[str, nn.Module]) -> Iterator[tuple[str, _Known]]:
    """But for buffers that the module's own forward pass writes."""
    name, part = named
    written = {"_parameters": frozenset(), "_buffers": used_by_type(type(part), "forward")[1]}
    for table, own in written.items():
        for key, tensor in vars(part)[table].items():
            if tensor is not None and key not in own:
                yield f"{name}.{key}" if name else key, _Known(part, table, key)


def _state(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), tensor._version


def _hooks(tensor: Tensor) -> tuple[int, int]:
    return len(tensor._backward_hooks or ()), len(tensor._post_accumulate_grad_hooks or ())


def _sample(tensor: Tensor, dtype: torch.dtype | None = None) -> str:
    """Some of a tensor's values, from the first to the last."""
    if tensor.is_meta or tensor.layout != torch.strided or not tensor.numel():
        return ""
    return str(sample(tensor, SAMPLES + 1).to(dtype or tensor.dtype).tolist())


# -- values ------------------------------------------------------------------------------------


def _comparable(value: Any, deep: int = 0) -> Any:
    """Equal as long as nothing was changed, as far as that can be told at once."""
    if isinstance(value, PLAIN):
        return value if value == value else repr(value)  # not a number
    if isinstance(value, Tensor):
        return "a tensor", value.data_ptr(), *_state(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.size <= LONG:
        return "an array", value.shape, value.tobytes()
    if isinstance(value, (list, tuple, deque)) and len(value) <= LONG and deep < DEEP:
        return tuple(_comparable(each, deep + 1) for each in value)
    if isinstance(value, Mapping) and len(value) <= LONG and deep < DEEP:
        return tuple((str(key), _comparable(value[key], deep + 1)) for key in value)
    return "an object", id(value)


def _compare(before: Iterable[tuple[str, Place, Any]]) -> None:
    """Raise ValueError for a place, in words, where another value is now."""
    for what, place, old in before:
        if (now := _look(place)) != old:
            raise ValueError(_told(what, old, now))


def _look(place: Place) -> Any:
    """The value at a place now, so that it can be compared and told."""
    return _comparable(place.value())


def _quoted(name: str) -> str:
    """A place's name for people: that of a variable, and the way from there."""
    variable, *way = DOT.split(name, maxsplit=1)
    return ".".join([repr(variable), *way])


def _of_torch() -> tuple:
    return *map(torch.is_autocast_enabled, ("cpu", "cuda")), torch.get_default_dtype()


def _told(what: str, old: Any, now: Any) -> str:
    one, other = (
        f"{value!r:.40}" if isinstance(value, PLAIN) else "another" for value in (now, old)
    )
    how = f"is {one} now and was {other}" if one != other else "is another now than"
    return (
        f"{what} {how} in the first step, when layers were made, which do not follow. Make another "
        "engine after such a change, or pass a number that changes in the batch, as a tensor"
    )
