"""Layers of a Hugging Face decoder: what they are called with, and which are alike.

A decoder calls each layer with masks, positions and rotary tables, which depend on the shape of the
hidden states and not on their values: recorders in the place of layers say which, once per shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.base import move_buffers, set_parameter
from workbench.model.decompose.program import flatten

Call = tuple[tuple, dict]
"""Arguments of a layer beside the hidden states."""

NUMBER = re.compile(r"layer_?(idx|id|index|num|number)")
"""Attributes that say where a layer is; it needs them to find its keys and values in a cache."""


class Recorder(nn.Module):
    """Stands for a layer: keeps the arguments it is called with and passes the hidden states on."""

    def __init__(self, layer: nn.Module, *, tupled: bool) -> None:
        super().__init__()
        self.__dict__["layer"] = layer
        self.tupled = tupled
        self.call: Call = ((), {})
        self.seen: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        """What the decoder asks a layer for is the layer's own."""
        return getattr(self.__dict__["layer"], name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor]:
        self.call, self.seen = (args, kwargs), hidden_states
        return (hidden_states,) if self.tupled else hidden_states


def recorded(decoder: nn.Module, name: str, layers: Sequence[nn.Module], x: Tensor) -> list[Call]:
    """With what a decoder, whose list of layers has this name, calls each for hidden states x.

    Raises ValueError where it does more than to hand x from layer to layer, or hands on something
    that was computed of x or of a weight: a unit alone would not have it.
    """
    unread = set(decoder.get_input_embeddings().parameters())  # hidden states are given
    for local, p in list(decoder.named_parameters()):
        set_parameter(decoder, local, x.new_zeros(torch.Size([0]) if p in unread else p.shape))
    move_buffers(decoder, x.device)
    wrong: Exception = ValueError("it does more with hidden states than to pass them on")
    for tupled in (False, True):  # some decoders take the first of what a layer gives
        recorders = [Recorder(layer, tupled=tupled) for layer in layers]
        decoder._modules[name] = nn.ModuleList(recorders)
        try:
            last = decoder(inputs_embeds=x, use_cache=False).last_hidden_state
        except Exception as error:  # whatever it raises
            wrong = error
            continue
        if last.shape == x.shape:
            break
    else:
        raise wrong
    calls = [recorder.call for recorder in recorders]
    if torch.is_grad_enabled():
        given = (leaf for leaf in flatten(calls)[0] if isinstance(leaf, Tensor))
        if any(tensor.requires_grad for tensor in given):
            raise ValueError("its layers are given more than hidden states that weights shape")
        first, *others = (recorder.seen for recorder in recorders)
        if x.device.type == "cpu" and not all(torch.equal(first, t) for t in (*others, last)):
            raise ValueError("it changes hidden states between its layers")
    return calls


def kinds(layers: Sequence[nn.Module], types: Sequence[str] | None) -> list[str]:
    """A name for each layer, one for those that behave alike: of the same modules with the same
    settings, shapes and buffers, and of one type where the configuration types them."""
    types = list(types) if types and len(types) == len(layers) else [""] * len(layers)
    signatures = [(kind, _signature(layer)) for kind, layer in zip(types, layers, strict=True)]
    several = len(set(types)) > 1
    labels = [f"block {kind}" if several else "block" for kind in types]
    first = {signature: number for number, signature in reversed([*enumerate(signatures)])}
    alone = {label: len({s for s, of in zip(signatures, labels, strict=True) if of == label})
             for label in labels}  # fmt: skip
    return [
        label if alone[label] == 1 else f"{label} {first[signature] + 1}"
        for label, signature in zip(labels, signatures, strict=True)
    ]


def _signature(layer: nn.Module) -> str:
    settings = [
        (path, type(part).__name__, name, value)
        for path, part in layer.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, bool | float | str | int | tuple | None)
        if not NUMBER.fullmatch(name)
    ]
    modules = [(path, repr(type(part))) for path, part in layer.named_modules()]
    shapes = [(n, tuple(p.shape)) for n, p in layer.named_parameters(remove_duplicate=False)]
    buffers = [(name, tuple(b.shape), _digest(b)) for name, b in layer.named_buffers()]
    return str((settings, modules, shapes, buffers))


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return sha256(data.numpy()).hexdigest()
