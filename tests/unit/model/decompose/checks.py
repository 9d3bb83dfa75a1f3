"""What layers must do that their model does."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.base import set_parameter
from workbench.model.decompose import Layer
from workbench.model.decompose.layer import local_tensors
from workbench.model.decompose.plan import flatten


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


def both(
    model: nn.Module, layers: Sequence[Layer], given: tuple[tuple, dict], seed: int, *,
    training: bool,
) -> tuple[Any, Any, nn.Module]:  # fmt: skip
    """Outputs of layers and of a copy of their model, which is given back. Asserts that tensors in
    them, and gradients, are equal bit for bit."""
    args, kwargs = given
    model.train(training)
    for layer in layers:
        layer.module.train(training)
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    expected = other(*copy.deepcopy(args), **kwargs)
    scalar(expected).backward()
    model.zero_grad()
    torch.manual_seed(seed)
    found = run(layers, args, kwargs)
    scalar(found).backward()
    for one, two in zip(tensors(found), tensors(expected), strict=True):
        assert torch.equal(one, two)
    for (key, one), two in zip(grads(model).items(), grads(other).values(), strict=True):
        assert (one is None) == (two is None), key
        assert one is None or torch.equal(one, two), key
    return found, expected, other


def gather(layers: Sequence[Layer]) -> dict[str, Tensor]:
    """The state dict of the layers under the model's own names; tensors share their memory."""
    state = {}
    for layer in layers:
        tensors = local_tensors(layer.module)
        state |= {name: tensors[local].detach() for local, name in layer.state.items()}
    return state


def scatter(state_dict: Mapping[str, Tensor], layers: Sequence[Layer]) -> None:
    """Write a state dict with the model's own names into the layers. Tensors on the meta device
    are replaced by its values, in the dtype they had, and so are all that share them."""
    wanted = [
        (name, tensor)
        for layer in layers
        for local, tensor in local_tensors(layer.module).items()
        if (name := layer.state.get(local)) is not None
    ]
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
