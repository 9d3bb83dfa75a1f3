"""The first run of a Hugging Face decoder's units: on few tokens, when the model is made.

It refuses what cannot be cut or does not run, before anything is shown or planned of it, and sees
which random numbers are drawn and what routers give. The meta device is enough, where nothing is
computed; what follows values, as masks and some routing do, runs on the CPU, on zeros that take no
memory until they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from workbench.core.model_spec import DOCUMENTS, FLEX
from workbench.model.base import move_buffers, set_parameter
from workbench.model.decompose.plan import flatten
from workbench.model.decompose.record import Dice
from workbench.model.hf_layers import Decoder, Flow, Seat

SAMPLES, TOKENS = 2, 5
SHUT = -1e4
"""A mask that is added to scores shuts out with less than this."""
DTYPES = torch.bfloat16, torch.float32
"""In bf16 it is seen which logits stay fp32; not every unit runs in it."""


class Seen(NamedTuple):
    """What a trial pass of a model shows."""

    draws: bool
    """Whether a unit draws random numbers."""
    mixes: bool
    """Whether a router does not tell the samples of a micro-batch apart."""
    seats: tuple[Seat, ...]
    """For the logits of all routers, if the model makes a loss of them."""
    steady: bool
    """Whether layers do the same operations whatever their numbers are, and have no routers."""


def try_out(model: Decoder) -> Seen:
    """Run a unit of each look. Raises ValueError for what does not run alone, and for a loss of
    routers that units cannot make."""
    x = torch.randn(SAMPLES, TOKENS, model.hidden, generator=torch.Generator().manual_seed(0))
    wants, drawn = getattr(model.config, "output_router_logits", False), Drawn()
    places = [(device, dtype) for dtype in DTYPES for device in ("meta", "cpu")]

    def first(run: Callable[[Tensor], Any], where: str, width: int) -> Any:
        """Result of a run beside a tensor of this width, in the first place where it can be."""
        for place in places:
            try:
                with torch.no_grad(), drawn:
                    made, more = run(x.to(*place))
                if made.shape != (SAMPLES, TOKENS, width):
                    raise ValueError(f"it gives a tensor {[*made.shape]}")
                return more
            except Exception as error:  # whatever it raises
                failed = error
        raise _refusal(model, f"{where} does not run alone: ", failed) from failed

    places_of: dict[int, str] = {}

    def layer(unit: int, x: Tensor) -> tuple[Tensor, list[Seat]]:
        made, logits = model.layer(unit, _bare(model, unit, x), x)
        places_of[unit] = x.device.type  # the last one is where it could be
        return made, [_seat(of, x.dtype) for of in logits]

    def head(x: Tensor) -> tuple[Tensor, Any]:
        given = flow.end(flow.begin(x))
        made = _bare(model, model.head, x)(inputs_embeds=given, use_cache=False)
        return made.logits, getattr(made, "aux_loss", None)

    def embedding(x: Tensor) -> tuple[Tensor, None]:
        tokens = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
        return _bare(model, 0, x)(tokens, use_cache=False).last_hidden_state, None

    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
        try:
            with torch.enable_grad():
                model.record(x.clone().requires_grad_())
        except Exception as error:  # whatever it raises
            raise _refusal(model, "", error) from error
        first(embedding, "the embedding", model.hidden)
        looks = [
            f"{block}{model.shapes(unit)}"
            for unit, block in enumerate(model.layers_of(model.source), start=1)
        ]
        seats = {
            look: first(partial(layer, unit), f"layer {unit - 1}", model.hidden)
            for look, unit in {look: u for u, look in reversed([*enumerate(looks, 1)])}.items()
        }
        every = [seat for look in looks for seat in seats[look]]
        flow = Flow(model.hidden, every if wants else ())
        loss = first(head, "the head", model.vocab)
    widths = {seat.width for seat in flow.seats}
    if loss is not None and (model.coefficient is None or len(widths) != 1 or 0 in widths):
        raise ValueError(
            f"{type(model.source).__name__} adds a loss of its routers that cannot be made of "
            "units; it trains with output_router_logits false"
        )
    mixes = any(seat.width and seat.shape[0] != -1 for seat in every)
    steady = not every and {*places_of.values()} == {"meta"}
    return Seen(drawn.thrown, mixes, () if loss is None else flow.seats, steady)


def check_rows(model: Decoder) -> None:
    """Raise ValueError for a decoder whose layers would mix the documents of a sample, or whose
    routers have a loss, which is over padding, too."""
    name = type(model.source).__name__
    if model.coefficient is not None and getattr(model.config, "output_router_logits", False):
        raise ValueError(
            f"rows is {model.rows!r}, and the routers of {name} have a loss over padding, too; it "
            "trains on rows with output_router_logits false"
        )
    if model.rows != DOCUMENTS:
        return
    places = torch.tensor([[*range(3), *range(TOKENS - 3)]])
    flex = model.config._attn_implementation == FLEX  # whose masks are compiled otherwise
    plainly = torch.compiler.set_stance("force_eager") if flex else nullcontext()
    with torch.no_grad(), unset_fake_temporarily(), plainly:
        calls = model.record(torch.zeros(1, TOKENS, model.hidden), places)
    for call in calls[: model.layers]:  # behind them is the final norm
        if not any(map(_shuts, flatten(call)[0])):
            raise ValueError(
                f"rows is {model.rows!r}, and the layers of {name} do not keep the documents of a "
                "sample apart; it trains on rows that are 'padded', each by itself"
            )


def _shuts(leaf: Any) -> bool:
    """Whether it is a mask that keeps the last token from one of the document before."""
    if allows := getattr(leaf, "mask_mod", None):
        return not allows(*map(torch.tensor, (0, 0, TOKENS - 1, 2)))
    if not isinstance(leaf, Tensor) or leaf.shape[-3:] != (1, TOKENS, TOKENS):
        return False
    score = leaf[0, 0, TOKENS - 1, 2]
    return not score if score.dtype == torch.bool else float(score) < SHUT


def _bare(model: Decoder, unit: int, like: Tensor) -> nn.Module:
    """The unit, its weights zeros."""
    module = model.skeleton(unit).train()
    for name, p in list(module.named_parameters(remove_duplicate=False)):
        zeros = torch.from_numpy(np.zeros(p.numel() * like.itemsize, np.uint8)).view(like.dtype)
        set_parameter(module, name, zeros.view(p.shape).to(like.device))
    move_buffers(module, like.device)
    return module


def _seat(logits: Tensor, dtype: torch.dtype) -> Seat:
    """With no width if the logits are not of a list of tokens."""
    tokens, shape = SAMPLES * TOKENS, list(logits.shape)
    if tokens not in shape:
        return Seat((), 0, False)
    shape[shape.index(tokens)] = -1
    return Seat(tuple(shape), logits.numel() // tokens, logits.dtype == torch.float32 != dtype)


def _refusal(model: Decoder, where: str, error: Exception) -> ValueError:
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    return ValueError(f"{type(model.source).__name__} cannot be cut into units: {where}{said}")


class Drawn(Dice):
    """Notices random numbers, but for those of attention, which drops as the configuration says."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(func):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)
