"""Layers into which a model is decomposed, the values between them, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.base import set_parameter
from workbench.model.decompose.program import Program, flatten


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that goes from one layer to the next; a relayed one keeps its name on the way."""

    name: str
    shape: tuple[int, ...]
    """Without the batch dimension."""
    dtype: torch.dtype
    differentiable: bool
    """Whether a gradient comes back for it."""
    batch_dim: int | None = 0
    """Where the batch dimension is. None for a tensor that is no stack of samples: one that does
    not grow with the batch, or, in the model's output only, grows otherwise (shape for one sample).
    """
    rows: int = 1
    """Entries of the batch dimension per sample: the sequence length where both are one [B * S]."""

    def full_shape(self, batch: int) -> tuple[int, ...]:
        """Shape of the tensor for `batch` samples."""
        if self.batch_dim is None:
            return self.shape
        at = self.batch_dim
        return (*self.shape[:at], batch * self.rows, *self.shape[at:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One step of the sequential model."""

    index: int
    """Place in the list, from 0."""
    name: str
    """Path in the model of the block the layer is made for."""
    module: Program
    """Called as `module(*inputs)`, the last one with a criterion as `module(*inputs,
    targets=targets)`; returns the tuple of outputs. Holds the model's own submodules, not copies,
    so `train` and `eval` set the model's mode, too."""
    inputs: tuple[Value, ...]
    """Of layer 0 the tensors among the model's arguments, by position, then keywords by name; of
    any other what the layer before it puts out."""
    outputs: tuple[Value, ...]
    """Of the last layer the tensors in the model's output, or the loss."""
    state: dict[str, str]
    """Local name of a parameter or persistent buffer -> its name in the model's `state_dict`."""
    shared: dict[str, tuple[int, str]]
    """Local name of a tensor that was there before -> (index of its owner, local name there). The
    owner is the first layer, or the first name in this layer, that has the tensor."""
    idle: frozenset[str]
    """Local names that nothing reads and that are kept for the state dict: weights the model does
    not use, which are in the last layer, and second names of others, which are with the first."""


def run(
    layers: Sequence[Layer], args: tuple = (), kwargs: dict | None = None, *, targets: Any = None
) -> Any:
    """The model's output, or the loss, from the whole list of layers.

    `args` and `kwargs` as `decompose` got them, with any batch size; what is no tensor among them
    was fixed there. Raises ValueError when the tensors are not as many as then.
    """
    leaves, _ = flatten((args, dict(sorted((kwargs or {}).items()))))
    values = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    for layer in layers[:-1]:
        values = layer.module(*values)
    last = layers[-1].module
    values = last(*values, targets=targets)
    return values[0] if last.criterion is not None else last.restore(values)


def gather(layers: Sequence[Layer]) -> dict[str, Tensor]:
    """The state dict of the layers under the model's own names; tensors share their memory."""
    state = {}
    for layer in layers:
        tensors = local_tensors(layer.module)
        state |= {name: tensors[local].detach() for local, name in layer.state.items()}
    return state


def scatter(state_dict: Mapping[str, Tensor], layers: Sequence[Layer]) -> None:
    """Write a state dict with the model's own names into the layers, or some of them.

    Values are copied into tensors that have memory. Those on the meta device are replaced by the
    values, in the dtype they had, and so are all that share them in these layers. Names of other
    layers are passed over. Raises ValueError for a name that is missing or a shape that differs.
    """
    wanted = [
        (name, tensor)
        for layer in layers
        for local, tensor in local_tensors(layer.module).items()
        if (name := layer.state.get(local)) is not None
    ]
    for name, tensor in wanted:
        if name not in state_dict:
            raise ValueError(f"the state dict has no {name!r}, which a layer needs")
        if state_dict[name].shape != tensor.shape:
            raise ValueError(
                f"{name!r} has shape {tuple(state_dict[name].shape)} in the state dict and "
                f"{tuple(tensor.shape)} in its layer"
            )
    new: dict[int, Tensor] = {}
    for name, tensor in wanted:
        value = state_dict[name].detach()
        if not tensor.is_meta:
            with torch.no_grad():
                tensor.copy_(value)
        elif id(tensor) not in new:
            value = value.to(tensor.dtype)
            if isinstance(tensor, nn.Parameter):
                value = nn.Parameter(value, requires_grad=tensor.requires_grad)
            new[id(tensor)] = value
    for layer in layers:
        for local, tensor in local_tensors(layer.module).items():
            if id(tensor) in new:
                if isinstance(tensor, nn.Parameter):
                    set_parameter(layer.module, local, new[id(tensor)])
                else:
                    path, _, leaf = local.rpartition(".")
                    setattr(layer.module.get_submodule(path), leaf, new[id(tensor)])


def local_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
