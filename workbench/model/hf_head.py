"""The loss of a causal-LM head, with logits that never exist all at once.

Heads differ in what they do around their one large product: some scale the hidden states or the
logits, some cap the logits, some have a bias. The head's own code does that here, too: run with a
stand-in for the linear map, it shows the hidden states that the map is given, and what becomes of
logits. Between the two is `linear_cross_entropy`.

When a model is made, loss and gradients of both ways are compared over few words. A head for which
they differ, such as one that looks at several tokens, is left whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.base import move_buffers, set_parameter
from workbench.model.hf_layers import with_children
from workbench.model.loss import CHUNK_BYTES, linear_cross_entropy
from workbench.model.text import IGNORED

WORDS, SAMPLES, TOKENS = 24, 2, 5
"""Of the comparison."""
CLOSE = 1e-4
"""Relative difference of gradients that are computed in two orders."""

Given = Callable[[Tensor], Any]
"""What the decoder in a head is given for a tensor [B, S, width] that came from the last layer."""
Told = Callable[[Any, Tensor], Tensor]
"""(what the causal-LM module put out, targets) -> the mean cross-entropy."""


class StandIn(nn.Module):
    """In place of the linear map: notes hidden states [..., H], and hands on logits."""

    def __init__(self, logits: Tensor | None = None) -> None:
        super().__init__()
        self.logits, self.seen = logits, None

    def forward(self, hidden: Tensor) -> Tensor:
        self.seen = hidden
        return hidden[..., :1] if self.logits is None else self.logits


@dataclass(frozen=True, kw_only=True)
class DividedHead:
    """How to run a head in parts."""

    linear: str
    """Name of the map from hidden states to logits."""
    keeps: bool
    """Whether logits stay as the map gives them."""

    def loss(
        self,
        module: nn.Module,
        given: Any,
        targets: Tensor,
        counts: bool = False,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> tuple[Tensor, Any]:
        """The mean loss of a head's module, for hidden states as it takes them and targets [B, S];
        and what the module put out, without logits. Targets may be -100 where one `counts` them."""
        seen = StandIn()
        made = with_children(module, {self.linear: seen})(inputs_embeds=given, use_cache=False)
        linear, x = module.get_submodule(self.linear), seen.seen
        after = None if self.keeps else _after(module, self.linear, x.shape[-1])
        loss = linear_cross_entropy(
            x,
            linear.weight,
            targets,
            bias=linear.bias,
            after=after,
            left_out=IGNORED if counts else None,
            chunk_bytes=chunk_bytes,
        )
        return loss, made


def divided_head(
    module: nn.Module, words: nn.Module, width: int, given: Given, told: Told
) -> DividedHead | None:
    """How the module of a head is run in parts; None where it is not. `module` has no values yet,
    and gets some; `words` is the causal-LM model it was taken of, `width` that of `given`'s tensor.
    """
    name = next((n for n, m in words.named_children() if m is words.get_output_embeddings()), "")
    linear = module._modules.get(name)
    if type(linear) is not nn.Linear:
        return None
    module._modules[name] = nn.Linear(
        linear.in_features, WORDS, bias=linear.bias is not None, device="meta"
    )
    draw = torch.Generator().manual_seed(0)
    for path, p in list(module.named_parameters()):
        set_parameter(module, path, torch.randn(p.shape, generator=draw))
    move_buffers(module, torch.device("cpu"))
    x = torch.randn(SAMPLES, TOKENS, width, generator=draw).requires_grad_()
    targets = torch.randint(WORDS, (SAMPLES, TOKENS), generator=draw)
    logits = torch.randn(SAMPLES * TOKENS, WORDS, generator=draw) * 100
    leaves = [x, *module.parameters()]
    try:
        keeps = torch.equal(_after(module, name, linear.in_features)(logits), logits)
        divided = DividedHead(linear=name, keeps=keeps)
        made = module(inputs_embeds=given(x), use_cache=False)
        whole = torch.autograd.grad(told(made, targets), leaves, allow_unused=True)
        loss, _ = divided.loss(module, given(x), targets, chunk_bytes=0)
        parts = torch.autograd.grad(loss, leaves, allow_unused=True)
        torch.testing.assert_close(parts, whole, rtol=CLOSE, atol=CLOSE)
    except Exception:  # whatever its code raises, and a difference
        return None
    return divided


def _after(module: nn.Module, name: str, hidden: int) -> Callable[[Tensor], Tensor]:
    """What a head makes of logits [N, V] behind its linear map."""

    def after(logits: Tensor) -> Tensor:
        x = logits.new_zeros(1).expand(1, len(logits), hidden)
        behind = with_children(module, {name: StandIn(logits[None])})
        made = behind(inputs_embeds=x, use_cache=False)
        return made.logits[0]

    return after
