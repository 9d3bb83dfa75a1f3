"""Layers into which a model is decomposed, the values between them, and their names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.model.decompose.program import Program


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


def local_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
