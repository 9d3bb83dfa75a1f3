"""Tensors of files under the names of a model, and weights that a model begins from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from workbench.model.weights.mapped import mapped
from workbench.model.weights.stored import Stored, few


class Beginning(Protocol):
    """Weights that a model begins from (trained.py)."""

    files: Sequence[Path]
    """Where they are read, in their order."""

    def fill(self, unit: int, module: nn.Module) -> None:
        """Write a unit's own parameters."""

    def fill_buffers(self, unit: int, module: nn.Module) -> None:
        """Write the buffers of a unit that the files have."""


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


def read_as(
    path: object,
    reader: Reader,
    groups: Iterable[Sequence[str]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, str]:
    """First name of each parameter -> the name that it is read by; `groups` are all names of one
    each. Raises ValueError for what is lacking, left over or of another shape, and for a parameter
    that is stored twice with unlike values."""
    reader.check(shapes)
    there, found = reader.names(), {}
    missing = [names[0] for names in groups if not there.intersection(names)]
    if missing:
        raise ValueError(f"{path} lacks tensors of the model: {few(missing)}")
    for names in groups:
        first, *others = (name for name in names if name in there)
        found[names[0]] = first
        for other in others:
            if not torch.equal(reader.read(first), reader.read(other)):
                raise ValueError(
                    f"{path} has other values in {other!r} than in {first!r}, and the "
                    "model has one tensor for both: set tie_word_embeddings to false in its "
                    "config.json"
                )
    return found
