"""Weights that a model begins from, read from files a parameter at a time.

A unit that is made takes its parameters from here and not from random numbers: a rank reads those
of its own units. A parameter of several names may be stored under any of them. Values become fp32
exactly.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from workbench.model.base import LayeredModel
from workbench.model.weights.reader import Reader, read_as
from workbench.model.weights.stored import Stored, find


class Trained:
    """The weights of a path for a model, which are looked at when somebody asks."""

    def __init__(self, path: str, model: LayeredModel) -> None:
        self._path, self._model = path, model

    @cached_property
    def stored(self) -> Stored:
        """The files. Raises ValueError as `find` does."""
        return find(self._path)

    @property
    def files(self) -> tuple[Path, ...]:
        """See `Beginning`."""
        return self.stored.files

    def check(self) -> Stored:
        """The files, which hold all weights of the model and no others. Raises ValueError, one
        sentence, where they do not."""
        bool(self._places)
        return self.stored

    @torch.no_grad()
    def fill(self, unit: int, module: nn.Module) -> None:
        """See `Beginning`."""
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if (unit, name) in self._places:
                parameter.copy_(self._reader.read(self._places[unit, name]))

    @torch.no_grad()
    def fill_buffers(self, unit: int, module: nn.Module) -> None:
        """See `Beginning`."""
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
        found = read_as(self._path, self._reader, all_names.values(), shapes)
        return {place: found[names[0]] for place, names in all_names.items()}
