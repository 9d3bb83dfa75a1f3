"""Layers of a Hugging Face decoder: which are alike, their routers, and what a decoder must tell.

The auxiliary loss of a mixture of experts is made of the logits of all routers at once. They travel
beside the hidden states, in the one tensor that every method passes on: [B, S, H] grows by a seat
for each router's logits. The embedding leaves the seats empty. A layer drops as many from the front
as it fills at the end, so layers need not know their number and those alike stay of one kind, and
before the head all are filled, in the layers' order.
"""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as checkpointed

from workbench.core.model_spec import DOCUMENTS
from workbench.model.base import Call, Context, LayeredModel, Written, move_buffers, set_parameter
from workbench.model.frozen import held
from workbench.model.hf_calls import Calls, Record, at_positions

NUMBER = re.compile(r"layer_?(idx|id|index|num|number)")
"""Attributes that say where a layer is; it needs them to find its keys and values in a cache."""


def kinds(layers: Sequence[nn.Module], types: Sequence[str] | None) -> list[str]:
    """A name for each layer, one for those that behave alike: of the same modules with the same
    settings, shapes and buffers, and of one type where the configuration types them."""
    typed = types if types and len(types) == len(layers) else [""] * len(layers)
    alike = [(of, _signature(layer)) for of, layer in zip(typed, layers, strict=True)]
    if len(set(alike)) == 1:
        return ["block"] * len(layers)
    return [" ".join(filter(None, ("block", of[0], str(alike.index(of) + 1)))) for of in alike]


def _signature(layer: nn.Module) -> str:
    settings = [
        (path, repr(type(part)), name, value)
        for path, part in layer.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, bool | float | str | int | tuple | None)
        if not NUMBER.fullmatch(name)
    ]
    shapes = [(n, tuple(p.shape)) for n, p in layer.named_parameters(remove_duplicate=False)]
    raw = ((n, b.detach().cpu().reshape(-1)) for n, b in layer.named_buffers())
    buffers = [(n, sha256(b.view(torch.uint8).numpy()).digest()) for n, b in raw]
    return str((settings, shapes, buffers))


class Seat(NamedTuple):
    """Room for the logits of one router."""

    shape: tuple[int, ...]
    """As the router gives them; -1 where the tokens are."""
    width: int
    """Values of a token."""
    wide: bool
    """Whether they are fp32 where the run computes in bf16."""


class Flow:
    """Tensor that flows between units: hidden states, and seats for logits of routers behind
    them."""

    def __init__(self, hidden: int, seats: Sequence[Seat]) -> None:
        self.hidden, self.seats = hidden, tuple(seats)
        self.width = hidden + sum(seat.width for seat in seats)

    def begin(self, x: Tensor) -> Tensor:
        """Hidden states with empty seats."""
        return F.pad(x, (0, self.width - self.hidden)) if self.seats else x

    def apart(self, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states, and what is in the seats."""
        x, filled = flow.split([self.hidden, self.width - self.hidden], dim=-1)
        return x.contiguous() if self.seats else flow, filled

    def on(self, x: Tensor, filled: Tensor, logits: Sequence[Tensor]) -> Tensor:
        """Hidden states behind a layer with the logits of earlier layers and of this one."""
        if not self.seats:
            return x
        own = [of.reshape(*x.shape[:2], -1).to(x.dtype) for of in logits]
        return torch.cat([x, filled[..., sum(of.shape[-1] for of in own) :], *own], dim=-1)

    def end(self, flow: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Hidden states, with the logits of all routers as these gave them if there are seats."""
        if not self.seats:
            return flow
        x, filled = self.apart(flow)
        each = zip(filled.split([seat.width for seat in self.seats], -1), self.seats, strict=True)
        logits = ((of.reshape(seat.shape), seat.wide) for of, seat in each)
        return x, *(of.float() if wide else of for of, wide in logits)


class Routers:
    """Where a decoder's own records find the logits of routers."""

    def __init__(self, decoder: nn.Module) -> None:
        found = (getattr(type(decoder), "_can_record_outputs", None) or {}).get("router_logits", ())
        self.places = [
            (of, getattr(place, "index", 1), getattr(place, "layer_name", None))
            for place in (found if isinstance(found, list) else [found])
            if isinstance(of := getattr(place, "target_class", place), type)
        ]

    @contextmanager
    def heard(self, layer: nn.Module) -> Iterator[list[Tensor]]:
        """The logits that its routers give within, in the order of their calls."""
        logits: list[Tensor] = []
        hooks = [
            part.register_forward_hook(partial(_hear, logits, index))
            for of, index, within in self.places
            for path, part in layer.named_modules()
            if isinstance(part, of) and (not within or f".{within}." in f".{path}.")
        ]
        try:
            yield logits
        finally:
            for hook in hooks:
                hook.remove()


def _hear(logits: list[Tensor], index: int, _: nn.Module, __: tuple, out: Any) -> None:
    if (heard := out[index] if isinstance(out, tuple) else out) is not None:
        logits.append(heard)


class FinalNorm(nn.Module):
    """Stands for the decoder in the head: norms the hidden states it is given, and hands on the
    logits of routers that come with them."""

    def __init__(self, name: str, norm: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, norm)

    def forward(self, input_ids: None = None, *, inputs_embeds: Any, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        x, *logits = inputs_embeds if isinstance(inputs_embeds, tuple) else (inputs_embeds,)
        normed = self.get_submodule(self.name)(x)
        made = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=normed)
        made.router_logits = tuple(logits) or None
        return made


def with_children(module: nn.Module, children: dict[str, nn.Module]) -> nn.Module:
    """A shallow copy with other submodules in the place of some; the rest is shared."""
    clone = copy.copy(module)
    clone._modules = {**module._modules, **children}
    return clone


class Decoder(LayeredModel):
    """The units of a causal-LM module of Hugging Face's (hf.py)."""

    source: nn.Module
    """The module, whose weights are copied and never changed."""
    config: Any
    rows: str | None
    """How rows make samples, as a `ModelSpec` has it."""
    frozen: list[list[str]]
    """Of each unit the parameters that stay as they are."""
    calls: Calls
    """Arguments of its layers."""

    @property
    @abstractmethod
    def coefficient(self) -> float | None:
        """Factor of the auxiliary loss of routers; None where there is none."""

    @abstractmethod
    def skeleton(self, unit: int) -> nn.Module:
        """A unit's module without weights."""

    @abstractmethod
    def layers_of(self, whole: nn.Module) -> nn.ModuleList:
        """The layers of a copy of the module."""

    @abstractmethod
    def layer(
        self, unit: int, module: nn.Module, x: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """A layer's hidden states, of (samples, tokens, hidden), and its routers' logits."""

    @abstractmethod
    def recorder(self, device: torch.device) -> Record:
        """A copy without weights, on a device, that tells with what it calls its layers."""

    def record(self, x: Tensor, positions: Tensor | None = None) -> list[Call]:
        """Arguments of each layer beside hidden states of a shape, at positions."""
        return self.recorder(x.device)(x, positions)

    @cached_property
    def layers_by_kind(self) -> dict[str, list[int]]:
        """Layers of each kind, counted from 0."""
        found: dict[str, list[int]] = {}
        for layer in range(self.layers):
            found.setdefault(self.kind(layer + 1), []).append(layer)
        return found

    @cached_property
    def follows(self) -> bool:
        """Whether layers are called alike for all batches of a shape, or as positions say that come
        with the batch."""
        return self.rows != DOCUMENTS or self.calls.follow(
            self.hidden, self.layers_by_kind.values()
        )

    def beside(self, kind: str, x: Tensor) -> Call:
        return self.calls.common(x, self.layers_by_kind[kind])

    def following(self, kind: str, x: Tensor) -> Callable[[Tensor], Call]:
        return self.calls.following(x, self.layers_by_kind[kind][0])

    def uniform(self, inputs: Sequence[Tensor]) -> list[bool]:
        if self.rows != DOCUMENTS:
            return super().uniform(inputs)
        _, positions = inputs
        return (positions == torch.arange(positions.shape[1])).all(1).tolist()

    @abstractmethod
    def told(self, made: Any, targets: Tensor | None) -> Tensor:
        """The loss, or without targets the logits, of what the module put out."""

    @abstractmethod
    def keyed(self, device: torch.device, ctx: Context) -> AbstractContextManager[None]:
        """Random numbers of a unit's pass."""


def as_written(
    model: Decoder, whole: nn.Module, units: Sequence[nn.Module], *, checkpoint: bool
) -> Written:
    """The source's own forward pass over the parameters of the units, and with the random numbers
    that they draw; `whole` is a copy of the source without weights."""
    for unit, module in enumerate(units):
        for name, p in module.named_parameters(remove_duplicate=False):
            set_parameter(whole, model.state_name(unit, name), p)
    device = next(units[0].parameters()).device
    move_buffers(whole, device)
    frozen = [model.state_name(u, name) for u in (0, model.head) for name in model.frozen[u]]
    running: list[Context] = []

    def placed(unit: int, layer: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        ctx = replace(running[-1], unit=unit)

        def run(*args: Any, **kwargs: Any) -> Any:
            with model.keyed(device, ctx), held(layer, model.frozen[unit]):
                return forward(*args, **kwargs)

        if not checkpoint:
            return run(*args, **kwargs)
        keyed = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpointed(run, *args, **keyed, **kwargs)

    for unit, layer in enumerate(model.layers_of(whole), start=1):
        layer.forward = partial(placed, unit, layer, layer.forward)

    def forward(
        tokens: Tensor | tuple[Tensor, Tensor], targets: Tensor | None, ctx: Context
    ) -> Tensor:
        tokens, positions = tokens if isinstance(tokens, tuple) else (tokens, None)
        whole.train(ctx.training)
        running.append(replace(ctx, unit=0))
        try:
            with model.keyed(device, running[-1]), held(whole, frozen):
                made = whole(tokens, use_cache=False, **at_positions(positions))
        finally:
            running.pop()
        return model.told(made, targets)

    return forward
