"""Logits of the routers of a Hugging Face mixture of experts, from its layers to its head.

The auxiliary loss is made of the logits of all routers at once. They travel beside the hidden
states, in one tensor: [B, S, H] grows by a seat for each router's logits. The embedding leaves the
seats empty. A layer drops as many from the front as it fills at the end, so layers need not know
their number and stay of one kind, and before the head all seats are filled, in the layers' order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Room for the logits of one router."""

    shape: tuple[int, ...]
    """As the router gives them; -1 where the tokens are."""
    width: int
    """Values for each token."""
    wide: bool
    """Whether they are fp32 where the run computes in bf16."""


class Flow:
    """What flows between units: hidden states, and seats for logits of routers behind them."""

    def __init__(self, hidden: int, seats: Sequence[Seat] = ()) -> None:
        self.hidden, self.seats = hidden, tuple(seats)
        self.width = hidden + sum(seat.width for seat in seats)

    def begin(self, x: Tensor) -> Tensor:
        """Hidden states with empty seats."""
        return F.pad(x, (0, self.width - self.hidden)) if self.seats else x

    def apart(self, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states, and what is in the seats."""
        if not self.seats:
            return flow, flow[..., :0]
        x, filled = flow.split([self.hidden, self.width - self.hidden], dim=-1)
        return x.contiguous(), filled

    def on(self, x: Tensor, filled: Tensor, logits: Sequence[Tensor]) -> Tensor:
        """Hidden states with the seats of earlier layers and the logits of this one."""
        if not self.seats:
            return x
        own = [of.reshape(*x.shape[:2], -1).to(x.dtype) for of in logits]
        dropped = sum(of.shape[-1] for of in own)
        return torch.cat([x, filled[..., dropped:], *own], dim=-1)

    def end(self, flow: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states, and the logits of all routers as these gave them."""
        x, filled = self.apart(flow)
        each = filled.split([seat.width for seat in self.seats], dim=-1) if self.seats else ()
        return x, tuple(
            of.reshape(seat.shape).float() if seat.wide else of.reshape(seat.shape)
            for of, seat in zip(each, self.seats, strict=True)
        )


class Routers:
    """Where a decoder's own records find the logits of routers."""

    def __init__(self, decoder: nn.Module) -> None:
        found = (getattr(type(decoder), "_can_record_outputs", None) or {}).get("router_logits", ())
        places = found if isinstance(found, list | tuple) else [found]
        self._places = [
            (of, getattr(place, "index", 1), (getattr(place, "layer_name", None) or "").strip("."))
            for place in places
            if isinstance(of := getattr(place, "target_class", place), type)
        ]

    @contextmanager
    def heard(self, layer: nn.Module) -> Iterator[list[Tensor]]:
        """The logits that its routers give within, in the order of their calls."""
        logits: list[Tensor] = []
        hooks = []
        for path, part in layer.named_modules():
            for of, index, within in self._places:
                if isinstance(part, of) and (not within or f".{within}." in f".{path}."):
                    hooks.append(part.register_forward_hook(partial(_hear, logits, index)))
        try:
            yield logits
        finally:
            for hook in hooks:
                hook.remove()


def _hear(logits: list[Tensor], index: int, _: nn.Module, __: tuple, out: Any) -> None:
    heard = out[index] if isinstance(out, tuple) else out
    if heard is not None:
        logits.append(heard)
