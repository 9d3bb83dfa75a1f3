"""Weights that a model begins from, read from files a parameter at a time.

A unit that is made takes its parameters from here and not from random numbers: a rank reads those
of its own units. A parameter of several names may be stored under any of them. Values become fp32
exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from workbench.model.base import LayeredModel
from workbench.model.weights.mapped import mapped
from workbench.model.weights.stored import Stored, few, find


class Reader(Protocol):
    """Gives tensors of files under a model's own names."""

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ValueError for tensors that are left over, or of another shape than the model's
        parameters, which are given by all their names."""

    def names(self) -> set[str]:
        """Names in the model's `state_dict` of what the files hold."""

    def read(self, name: str) -> Tensor:
        """A tensor, which may lie in its file until it is copied."""


class Named:
    """A `Reader` of tensors that are stored as the model has them, under its names or others."""

    def __init__(
        self, stored: Stored, names: Mapping[str, str] | None = None, more: Set[str] = frozenset()
    ) -> None:
        """`names`: the model's -> those in the files, where these are others; `more`: names of
        what else the model has."""
        self._stored, self._more = stored, more
        pairs = names or dict(zip(stored.entries, stored.entries, strict=True))
        self._entries = {ours: stored.entries[theirs] for ours, theirs in pairs.items()}

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """See `Reader`."""
        path = self._stored.path
        if left := self._entries.keys() - shapes.keys() - self._more:
            raise ValueError(f"{path} has tensors that the model lacks: {few(left)}")
        check_shapes(path, {n: e.shape for n, e in self._entries.items()}, shapes)

    def names(self) -> set[str]:
        """See `Reader`."""
        return {*self._entries}

    def read(self, name: str) -> Tensor:
        """See `Reader`."""
        return mapped(self._entries[name])


class Trained:
    """The weights of a path for a model, which are looked at when somebody asks."""

    def __init__(self, path: str, model: LayeredModel) -> None:
        self._path, self._model = path, model

    @cached_property
    def stored(self) -> Stored:
        """The files. Raises ValueError as `find` does."""
        return find(self._path)

    def check(self) -> Stored:
        """The files, which hold all weights of the model and no others. Raises ValueError, one
        sentence, where they do not."""
        assert self._places
        return self.stored

    @torch.no_grad()
    def fill(self, unit: int, module: nn.Module) -> None:
        """Write a unit's own parameters, and buffers that are kept beside them."""
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if (unit, name) in self._places:
                parameter.copy_(self._reader.read(self._places[unit, name]))

    @torch.no_grad()
    def fill_buffers(self, unit: int, module: nn.Module) -> None:
        """Write the buffers of a unit that the files have."""
        kept = self._model.kept_buffers(unit)
        for name, buffer in module.named_buffers():
            if kept.get(name) in self._there:
                buffer.copy_(self._reader.read(kept[name]))

    @cached_property
    def _reader(self) -> Reader:
        return self._model.reader(self.stored)

    @cached_property
    def _there(self) -> set[str]:
        return self._reader.names()

    @cached_property
    def _places(self) -> dict[tuple[int, str], str]:
        """(unit, local name) of a parameter that the unit owns -> the name that it is read by."""
        model, shapes = self._model, {}
        all_names: dict[tuple[int, str], list[str]] = {}
        for unit in range(model.num_units):
            for local, shape in model.shapes(unit).items():
                name = model.state_name(unit, local)
                all_names[unit, local] = [name]
                shapes[name] = tuple(shape)
        for (unit, local), owner in model.tied().items():
            name = model.state_name(unit, local)
            all_names[owner].append(name)
            shapes[name] = shapes[all_names[owner][0]]
        self._reader.check(shapes)
        found = {
            place: [n for n in names if n in self._there] for place, names in all_names.items()
        }
        if missing := [all_names[place][0] for place, names in found.items() if not names]:
            raise ValueError(f"{self._path} lacks tensors of the model: {few(missing)}")
        for first, *others in found.values():
            for other in others:
                if not torch.equal(self._reader.read(first), self._reader.read(other)):
                    raise ValueError(
                        f"{self._path} has other values in {other!r} than in {first!r}, and the "
                        "model has one tensor for both: set tie_word_embeddings to false in its "
                        "config.json"
                    )
        return {place: names[0] for place, names in found.items()}


def check_shapes(
    path: object, found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise ValueError for tensors of another shape than wanted."""
    wrong = {n: s for n, s in found.items() if n in wanted and tuple(s) != tuple(wanted[n])}
    if wrong:
        name = min(wrong)
        raise ValueError(
            f"{path} has tensors of another shape than the model: {few(wrong)}; {name!r} is "
            f"{[*wrong[name]]} there, and {[*wanted[name]]} in the model"
        )
