"""What layers must do that their model does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workbench.model.decompose import Layer
from workbench.model.decompose.program import flatten


def tensors(thing: object) -> list[Tensor]:
    return [leaf for leaf in flatten(thing)[0] if isinstance(leaf, Tensor)]


def scalar(outputs: object) -> Tensor:
    """A number that depends on all outputs, unevenly."""
    floats = [t for t in tensors(outputs) if t.requires_grad]
    return sum((t.float() * (i + 1)).pow(2).sum() for i, t in enumerate(floats))


def grads(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def by_pieces(layers: list[Layer], inputs: tuple[Tensor, ...]) -> None:
    """Gradients as with packs that visit a device: each layer alone, twice forward, from a stash.

    Random numbers of a layer are the same both times. What a layer does not get is not there.
    """
    stashes, states = [inputs], []
    with torch.no_grad():
        for layer in layers[:-1]:
            states.append(torch.get_rng_state())
            values = tuple(t.clone(memory_format=torch.contiguous_format) for t in stashes[-1])
            buffers = [b.clone() for b in layer.module.buffers()]
            stashes.append(layer.module(*values))
            for buffer, before in zip(layer.module.buffers(), buffers, strict=True):
                buffer.copy_(before)
    states.append(torch.get_rng_state())
    gradients: dict[str, Tensor] = {}
    for layer in reversed(layers):
        torch.set_rng_state(states[layer.index])
        given = [
            t.detach().clone(memory_format=torch.contiguous_format).requires_grad_(v.differentiable)
            for t, v in zip(stashes[layer.index], layer.inputs, strict=True)
        ]
        out = layer.module(*given)
        if layer is layers[-1]:
            scalar(layer.module.restore(out)).backward()
        else:
            pairs = zip(out, layer.outputs, strict=True)
            ends = [(t, gradients[v.name]) for t, v in pairs if v.name in gradients]
            torch.autograd.backward([t for t, _ in ends], [g for _, g in ends])
        named = zip(given, layer.inputs, strict=True)
        gradients = {v.name: t.grad for t, v in named if t.grad is not None}
