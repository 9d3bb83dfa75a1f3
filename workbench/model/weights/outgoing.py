"""Tensors of a trained model as others want them: names, layout and type.

Weights come a group at a time, such as a unit's, by their names in the module that was trained,
each once. A module of Hugging Face's gives them away as transformers would (hf_folder.py); any
other one by all names of its `state_dict`, of which several may mean one weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.model import hf_folder
from workbench.model.weights.stored import few

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

HUGGING = "PreTrainedModel"
"""The class of all models of transformers."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """fp32 weights that lie in files of whatever form, and running statistics beside them."""

    shapes: Mapping[str, Sequence[int]]
    parameters: int
    """Elements of the weights alone."""
    groups: Sequence[Sequence[str]]
    """Names, those together that lie together."""
    read: Callable[[Sequence[str]], dict[str, Tensor]]
    """Gives tensors by their names, which may lie in files until they are copied. Raises OSError
    where one is damaged."""
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    """By name, of those that may be no fp32, such as counts among running statistics."""

    @property
    def empty(self) -> dict[str, Tensor]:
        """All of them, without values."""
        return {
            name: torch.empty(shape, dtype=self.types.get(name, torch.float32), device="meta")
            for name, shape in self.shapes.items()
        }

    @classmethod
    def of_units(cls, model: LayeredModel, read: Callable[[int, str], Tensor]) -> Weights:
        """Those of a model, a unit's together; `read` gives one by its unit and local name."""
        groups = [[(unit, name) for name in model.shapes(unit)] for unit in range(model.num_units)]
        places = {model.state_name(*place): place for group in groups for place in group}
        return cls(
            shapes={name: tuple(model.shapes(at)[own]) for name, (at, own) in places.items()},
            parameters=model.parameters_count(),
            groups=[[model.state_name(*place) for place in group] for group in groups],
            read=lambda names: {name: read(*places[name]) for name in names},
        )


class Outgoing:
    """Makes tensors that leave from weights, a group of them at a time."""

    def __init__(
        self,
        weights: Mapping[str, Sequence[int]],
        groups: Sequence[Sequence[str]],
        module: nn.Module | None,
        dtype: torch.dtype,
    ) -> None:
        """`weights`: shapes by name; `groups`: these names; `dtype`: what parameters become. The
        `module` may be on the meta device, but for buffers that are saved; without one, names stay
        as they are. Raises ValueError for weights that are not the module's."""
        own: dict[str, Any] = {} if module is None else module.state_dict(keep_vars=True)
        hugging = any(of.__name__ == HUGGING for of in type(module).__mro__)
        self.source, self._dtype = module if hugging else None, dtype
        wanted = hf_folder.kept(module) if hugging else own
        first = {id(own[name]): name for name in weights if name in own}
        parameters = [name for name in wanted if isinstance(own[name], nn.Parameter)]
        if lacking := [name for name in parameters if id(own[name]) not in first]:
            raise ValueError(f"there are no weights for {few(lacking)}, which the model has")
        self._of = {name: name for name in weights if module is None or name in wanted}
        """Name that leaves -> the weight's."""
        self._of |= {name: first[id(own[name])] for name in parameters}
        if more := weights.keys() - {*self._of.values()}:
            raise ValueError(f"the model has no tensor of its own for {few(more)}")
        for name, of in self._of.items():
            there = own[name].shape if own else weights[of]
            if [*there] != [*weights[of]]:
                raise ValueError(
                    f"{name!r} has the shape {[*weights[of]]}, and in the model {[*there]}"
                )
        self.groups = [[*group] for group in groups]
        """Names of the weights that are wanted together."""
        self._buffers = {name: own[name] for name in wanted if name not in self._of}
        apart = [*map(self._leaving, groups), [*self._buffers]]
        if hugging and not hf_folder.apart(module, apart):
            self.groups = [[name for group in groups for name in group]]
        self._exact = own.keys() - {*parameters}

    def made(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A group's tensors by the names under which they leave, each in memory of its own."""
        leaving = self._leaving(weights)
        taken: set[str] = set()
        found: dict[str, Tensor] = {}
        for name in leaving:
            tensor = weights[of := self._of[name]]
            if name not in self._exact and tensor.is_floating_point():
                tensor = tensor.to(self._dtype)
            found[name] = tensor.clone() if of in taken else tensor
            taken.add(of)
        return found if self.source is None else hf_folder.on_disk(self.source, found)

    def buffers(self) -> dict[str, Tensor]:
        """Constants of the module that are saved, by the names under which they leave."""
        if self.source is None:
            return {name: tensor.detach().clone() for name, tensor in self._buffers.items()}
        return hf_folder.on_disk(self.source, self._buffers)

    def _leaving(self, weights: Mapping[str, Any] | Sequence[str]) -> list[str]:
        """Names that are made of some weights."""
        of = {*weights}
        return [name for name, weight in self._of.items() if weight in of]
