"""The first run of a Hugging Face decoder's units: on few tokens, when the model is made.

It refuses what cannot be cut or does not run, before anything is shown or planned of it, and sees
which random numbers are drawn and what routers give. The meta device is enough, where nothing is
computed; routing that follows values runs on the CPU, on zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from workbench.model.base import move_buffers, set_parameter
from workbench.model.decompose.record import Dice
from workbench.model.hf_routers import Flow, Seat

if TYPE_CHECKING:
    from workbench.model.hf import HFModel

FEW = (2, 5)
"""Samples and tokens."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    draws: bool
    """Whether a unit draws random numbers."""
    mixes: bool
    """Whether a router does not tell the samples of a micro-batch apart."""
    seats: tuple[Seat, ...]
    """For the logits of all routers, if the model makes a loss of them."""


def try_out(model: HFModel) -> Seen:
    """Run a unit of each kind. Raises ValueError for what does not run alone, and for a loss of
    routers that units cannot make."""
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
        return _Trial(model).seen()


class _Trial:
    def __init__(self, model: HFModel) -> None:
        self._model, self._drawn = model, _Drawn()
        self._wants = bool(getattr(model.config, "output_router_logits", False))
        self._x = torch.randn(*FEW, model.hidden, generator=torch.Generator().manual_seed(0))

    def seen(self) -> Seen:
        model, x = self._model, self._x
        try:
            with torch.enable_grad():
                model.record(x.clone().requires_grad_())
        except Exception as error:  # whatever it raises
            raise self._refusal(_said(error)) from error
        tokens = torch.zeros(FEW, dtype=torch.int64)
        self._run(0, x.shape, lambda unit, x: (unit(tokens.to(x.device), use_cache=False)[0], None))
        seats: dict[str, list[Seat]] = {}

        def layer(unit: int, module: nn.Module, x: Tensor) -> tuple[Tensor, list[Seat]]:
            made, logits = model.layer(unit, module, x)
            return made, [_seat(of, x.dtype) for of in logits]

        for unit in range(1, model.head):
            if (kind := model.kind(unit)) not in seats:
                seats[kind] = self._run(unit, x.shape, partial(layer, unit))
        every = tuple(s for unit in range(1, model.head) for s in seats[model.kind(unit)])
        flow = Flow(model.hidden, every if self._wants else ())

        def head(unit: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
            made = unit(inputs_embeds=flow.end(flow.begin(x)), use_cache=False)
            return made.logits, getattr(made, "aux_loss", None)

        loss = self._run(model.head, torch.Size((*FEW, model.vocab)), head)
        if loss is not None and (
            model.coefficient is None or len({s.width for s in flow.seats}) != 1
        ):
            raise ValueError(
                f"{type(model.source).__name__} adds a loss of its routers that cannot be made of "
                "units; it trains with output_router_logits false"
            )
        return Seen(
            draws=self._drawn.thrown,
            mixes=any(seat.shape[0] != -1 for seat in every),
            seats=flow.seats if loss is not None else (),
        )

    def _run(
        self, unit: int, shape: torch.Size, run: Callable[[nn.Module, Tensor], tuple[Any, Any]]
    ) -> Any:
        """What a unit gives besides a tensor of this shape, on the first device where it runs.
        Logits that stay fp32 are seen in bf16, in which not every unit runs."""
        for dtype in (torch.bfloat16, torch.float32) if self._wants else (torch.float32,):
            for device in ("meta", "cpu"):
                try:
                    with torch.no_grad(), self._drawn:
                        bare = self._bare(unit, device, dtype)
                        made, more = run(bare, self._x.to(device, dtype))
                    if made.shape != shape:
                        raise ValueError(f"it gives {[*made.shape]} where {[*shape]} is expected")
                    return more
                except Exception as error:  # whatever it raises
                    failed = error
        where = {0: "the embedding", self._model.head: "the head"}.get(unit, f"layer {unit - 1}")
        raise self._refusal(f"{where} does not run alone: {_said(failed)}") from failed

    def _bare(self, unit: int, device: str, dtype: torch.dtype) -> nn.Module:
        """The unit, its weights zeros."""
        module = self._model.skeleton(unit).train()
        for name, p in list(module.named_parameters(remove_duplicate=False)):
            set_parameter(module, name, torch.zeros(p.shape, dtype=dtype, device=device))
        move_buffers(module, device)
        return module

    def _refusal(self, why: str) -> ValueError:
        return ValueError(f"{type(self._model.source).__name__} cannot be cut into units: {why}")


def _seat(logits: Tensor, dtype: torch.dtype) -> Seat:
    tokens, shape = FEW[0] * FEW[1], list(logits.shape)
    shape[shape.index(tokens)] = -1
    wide = logits.dtype == torch.float32 != dtype
    return Seat(shape=tuple(shape), width=logits.numel() // tokens, wide=wide)


def _said(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


class _Drawn(Dice):
    """Notices random numbers, but for those that attention would draw if it dropped weights: their
    probability is in the configuration."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(func):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)
