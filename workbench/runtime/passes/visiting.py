"""Forward passes, without gradients, of weights that visit a device while they are needed there.

An evaluation between two steps finds a device that is full of weights, moments and slots, whose
memory for a step's activations is idle. So it takes a unit's weights from wherever a method keeps
them, passes all samples of a group through them, and goes to the next unit, whose weights come
meanwhile on a stream of their own. A unit's weights move once for a group, and those that are on
the device in the type of passes do not move.

A module as its author wrote it has no such order. There a weight comes when a function of torch
takes it, and the longest unused ones leave where there is no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from workbench.model.base import Context, LayeredModel, set_parameter
from workbench.runtime.checkpoint.checkpoint import ByUnit
from workbench.runtime.memory.storage import read_here

KNOWN = ("shape", "dtype", "ndim", "requires_grad")
"""Attributes that a parameter without values tells of itself."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where samples pass forward."""

    device: torch.device
    dtype: torch.dtype
    room: int | None = None
    """Bytes that copies of weights may take there; None where all may lie, as they do on the
    host."""
    lean: bool = False
    """Whether as little as possible is there at a time."""


@dataclass
class Part:
    """Samples that pass forward together."""

    samples: tuple[int, ...]
    inputs: Sequence[Tensor]
    targets: Tensor | None

    @property
    def given(self) -> Any:
        """Inputs as a model takes them."""
        return self.inputs[0] if len(self.inputs) == 1 else tuple(self.inputs)

    def at(self, place: Place) -> Part:
        """Copies there, in its type where they are fractions."""
        targets = None if self.targets is None else self.targets.to(place.device)
        return Part(self.samples, [moved(tensor, place) for tensor in self.inputs], targets)


class Visits:
    """Weights by their names, as far as they are in a place."""

    def __init__(self, weights: ByUnit, place: Place) -> None:
        """Weights stand still as long as this is used."""
        self.place, (_, self._read) = place, weights
        self._here: dict[str, tuple[Tensor, int]] = {}
        """Tensor, and the bytes of a copy."""
        self._stream: torch.cuda.Stream | None = None
        if place.device.type == "cuda":
            self._stream = torch.cuda.Stream(place.device)
            self._stream.wait_stream(torch.cuda.current_stream())

    def bring(self, names: Iterable[str]) -> None:
        """Begin to copy those that are not here."""
        lacking, room = [name for name in names if name not in self._here], self.place.room
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            for name, own in self._read(lacking, exact=room is None).items():
                here = moved(own, self.place)
                self._here[name] = here, 0 if here is own else here.nbytes

    def __getitem__(self, name: str) -> Tensor:
        """The weight, which is there when the current stream goes on."""
        if name in self._here:
            self._here[name] = self._here.pop(name)  # now the last one used
        else:
            self.bring([name])
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
            read_here(self._here[name][0])
        return self._here[name][0]

    def make_room(self) -> None:
        """Let the longest unused ones leave until the others have room, or one is left."""
        room, taken = self.place.room, sum(nbytes for _, nbytes in self._here.values())
        for name, (_, nbytes) in [*self._here.items()][:-1]:
            if room is None or taken <= room:
                break
            taken -= nbytes
            del self._here[name]

    def leave(self, names: Iterable[str]) -> None:
        """Let copies go."""
        for name in names:
            self._here.pop(name, None)


class Units:
    """Units of a model, through which groups of samples pass one unit after another."""

    def __init__(self, model: LayeredModel, visits: Visits, seed: int) -> None:
        self._model, self._visits, self._seed = model, visits, seed
        self._modules: dict[str, nn.Module] = {}
        """By the kind of units, which pass in turn."""
        self._names: list[dict[str, str]] = []
        """Of each unit's parameters, by their names there."""
        tied, place = model.tied(), visits.place
        for unit in range(model.num_units):
            if (kind := model.kind(unit)) not in self._modules:
                module = model.empty_module(unit, device=place.device, dtype=place.dtype)
                self._modules[kind] = module.eval()
            every = self._modules[kind].named_parameters(remove_duplicate=False)
            owners = {local: tied.get((unit, local), (unit, local)) for local, _ in every}
            self._names.append({n: model.state_name(*owner) for n, owner in owners.items()})

    def losses(self, parts: Sequence[Part]) -> list[Tensor]:
        """Mean loss of each part."""
        visits, model, head = self._visits, self._model, self._model.head
        parts = [part.at(visits.place) for part in parts]
        x: list[Any] = [part.given for part in parts]
        on_gpu, before = visits.place.device.type == "cuda", None
        for unit, names in enumerate(self._names):
            module, following = self._modules[model.kind(unit)], self._names[unit + 1 : unit + 2]
            visits.bring(names.values())
            for local, name in names.items():
                set_parameter(module, local, visits[name])
            for n, part in enumerate(parts):
                ctx = Context(
                    seed=self._seed, step=0, unit=unit, samples=part.samples, training=False
                )
                last = part.targets if unit == head else None
                x[n] = model.forward(unit, module, x[n], ctx, last)
            if on_gpu and before is not None:  # two units are there at most
                before.synchronize()
            before = torch.cuda.current_stream().record_event() if on_gpu else None
            for ahead in following if not visits.place.lean else ():
                visits.bring(ahead.values())
            visits.leave({*names.values()}.difference(*map(dict.values, following)))
            for local in names:
                set_parameter(module, local, torch.empty(0))
        return x


class Arriving(TorchFunctionMode):
    """Within, functions that are given parameters without values get weights that visit a place."""

    def __init__(self, visits: Visits, names: Mapping[int, str]) -> None:
        """`names` of weights, by the `id` of parameters on the meta device."""
        super().__init__()
        self._visits, self._names = visits, names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not any(id(leaf) in self._names for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            if func == Tensor.device.__get__:
                return self._visits.place.device
            if any(func == getattr(Tensor, name).__get__ for name in KNOWN):
                return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, self._arrived, (args, kwargs))
        self._visits.make_room()
        return func(*args, **kwargs)

    def _arrived(self, leaf: Tensor) -> Tensor:
        name = self._names.get(id(leaf))
        return leaf if name is None else self._visits[name]


def moved(tensor: Tensor, place: Place) -> Tensor:
    """The tensor in a place, in its type if they are fractions of at most four bytes."""
    narrow = tensor.is_floating_point() and tensor.itemsize <= 4
    tensor = tensor.to(place.dtype) if narrow else tensor
    return tensor.to(place.device, non_blocking=True)
