"""Weights that an engine begins from, where its layers cannot share those of the user's module.

A module on the meta device has none, and those of a folder are read; one in bf16 or fp16 has
values that become fp32 masters exactly. In both cases layers are made of a twin of the module: its
structure with fp32 parameters on the meta device. Values are asked for one by one, when a unit is
written into the place where a method keeps it, so no whole fp32 copy stays beside that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.core.spec import VALUE_BYTES
from workbench.model.base import LayeredModel
from workbench.model.weights.outgoing import HUGGING
from workbench.model.weights.reader import Named, Reader, read_as
from workbench.model.weights.stored import Stored, find

NARROW = (torch.bfloat16, torch.float16)
"""Types of parameters whose values fp32 has, too."""


class Given:
    """First values of a module's parameters by their names in its `Objective`, each as it lies in a
    file or in the module. Copies of what holds it share it; no mapping, whose values would be read
    by all that looks for the state of a module."""

    __slots__ = ("_buffers", "_module", "_prefix", "_read_as", "_reader", "_stored")

    def __init__(self, module: nn.Module, path: str | Path | None, prefix: str) -> None:
        """`path`: a folder, a file, a run or a checkpoint, whose values count and not the
        module's; `prefix` begins the names. Raises ValueError, from headers alone, for files that
        are not of this module, and for a module without values where there is no path."""
        self._module, self._prefix = module, prefix
        self._stored: Stored | None = None
        self._buffers: dict[str, Tensor] = {}
        """Values of those that the files have, or that are on the meta device."""
        if path is not None:
            self._stored = find(path)
            self._read()
        elif bare := next((n for n, p in module.named_parameters() if p.is_meta), None):
            raise ValueError(
                f"parameter {bare!r} of the model is on the meta device, so it has no values; give "
                'them: Engine(model, ..., weights="FOLDER")'
            )

    def __deepcopy__(self, memo: dict) -> Given:
        return self

    @property
    def apart(self) -> bool:
        """Whether layers are made of a twin, and values come from here."""
        every = self._module.parameters()
        return self._stored is not None or any(p.is_meta or p.dtype in NARROW for p in every)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that they are read from."""
        return () if self._stored is None else self._stored.files

    @property
    def digest(self) -> str:
        """Of the files; empty where there are none."""
        return "" if self._stored is None else self._stored.digest

    @property
    def dtype(self) -> str:
        """Type in which all values are, in words; fp32 where they are of several."""
        kinds = {p.dtype for p in self._module.parameters() if p.is_floating_point()}
        word = "bf16" if kinds == {torch.bfloat16} else "fp32"
        word = word if self._stored is None else self._stored.dtypes
        return word if word in VALUE_BYTES else "fp32"

    @property
    def folder(self) -> Path | None:
        """The folder of a model of Hugging Face's that they come from."""
        path = self._stored and self._stored.path
        return path if path and (path / "config.json").is_file() else None

    def __getitem__(self, name: str) -> Tensor:
        own = name.removeprefix(self._prefix)
        if self._stored is None:
            return self._module.get_parameter(own).detach()
        return self._reader.read(self._read_as[own])

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """All, each as it is asked for."""
        names = [self._prefix + name for name in self._named()]
        return ((name, self[name]) for name in names)

    def clear(self) -> None:
        """Let go of copies: none are kept here."""

    def twin(self) -> nn.Module:
        """The module as it is now, without values, in fp32: as its own `float()` would make it."""
        memo = {id(p): _bare(p, torch.float32) for p in self._module.parameters()}
        for name, buffer in self._module.named_buffers(remove_duplicate=False):
            value = self._buffers.get(name, buffer).detach()
            memo[id(buffer)] = value.float() if value.dtype in NARROW else value.clone()
        return copy.deepcopy(self._module, memo)

    def release(self) -> None:
        """Have the module's own parameters on the meta device, without values."""
        bare = {id(p): _bare(p, p.dtype) for p in self._module.parameters()}
        for part in self._module.modules():
            for name, p in part._parameters.items():
                if p is not None:
                    part._parameters[name] = bare[id(p)]

    def _named(self) -> dict[str, nn.Parameter]:
        return dict(self._module.named_parameters(remove_duplicate=False))

    def _read(self) -> None:
        """Find all values in the files."""
        module, named = self._module, self._named()
        if lazy := [name for name, p in named.items() if is_lazy(p)]:
            raise ValueError(
                f"{lazy[0]!r} of the model has no shape yet; call the model with a batch before"
            )
        if hugging := any(of.__name__ == HUGGING for of in type(module).__mro__):
            self._buffers = _made_again(module)
        self._reader = self._reader_of(hugging)
        there, path = self._reader.names(), self._stored.path
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if name in there:
                self._buffers[name] = self._reader.read(name).to(buffer.dtype)
            elif buffer.is_meta and name not in self._buffers:
                raise ValueError(
                    f"buffer {name!r} of the model is on the meta device, and {path} does not hold "
                    "it; give it its values before the engine is made"
                )
        names: dict[int, list[str]] = {}
        for name, p in named.items():
            names.setdefault(id(p), []).append(name)
        shapes = {name: tuple(p.shape) for name, p in named.items()}
        found = read_as(path, self._reader, names.values(), shapes)
        self._read_as = {name: found[names[id(p)][0]] for name, p in named.items()}

    def _reader_of(self, hugging: bool) -> Reader:
        if not hugging:
            return Named(self._stored, more={name for name, _ in self._module.named_buffers()})
        from workbench.model.weights.converted import Converted

        hollow: Callable[[], nn.Module] = partial(Given.twin, self)
        return Converted(self._stored, hollow)


class OneByOne:
    """A `Beginning` of weights that are not in the module's own parameters."""

    def __init__(self, model: LayeredModel, files: Sequence[Path]) -> None:
        self._model, self.files = model, files

    def fill(self, unit: int, module: nn.Module) -> None:
        """See `Beginning`."""
        self._model.initialize(unit, module, seed=0)

    def fill_buffers(self, unit: int, module: nn.Module) -> None:
        """See `Beginning`: units are made with theirs."""


def _bare(p: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """A parameter without values."""
    kind = dtype if p.is_floating_point() else p.dtype
    made = torch.empty_like(p, dtype=kind, device="meta")
    return nn.Parameter(made, requires_grad=p.requires_grad)


def _made_again(module: nn.Module) -> dict[str, Tensor]:
    """Buffers of a model of transformers as its constructor computes them in fp32, of those on the
    meta device: no file has rotary tables."""
    bare = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if not bare:
        return {}
    from workbench.model.hf_attention import Unfilled

    with torch.random.fork_rng(devices=[]), torch.device("cpu"), Unfilled():
        made = type(module)._from_config(copy.deepcopy(module.config), dtype=torch.float32)
    return {name: b for name, b in made.named_buffers() if name in bare and not b.is_meta}
