"""The GPT of the STRONGHOLD paper (SC'22), as Megatron-LM builds it.

Pre-norm decoder with learned positions, biases everywhere, one QKV matrix, a feed-forward of 4 h
with the tanh form of GELU (what GPT-2 and Megatron's fused kernel compute), LayerNorm eps 1e-5,
and a head tied to the token embedding. Matrices start at N(0, 0.02), those that write to the
residual stream at 0.02 / sqrt(2 n). Parameter names are GPT-2's; matrices are [out, in] as torch
has them.

With dropout off, a block is linear maps, norms and one fused attention, takes one tensor, and
compiles into one graph. With dropout on, it also takes the context that keys its masks.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.model.base import Context, LayeredModel
from workbench.model.dropout import causal_attention, causal_attention_dropout, dropout
from workbench.model.keys import key
from workbench.model.loss import linear_cross_entropy

INIT_STD = 0.02
NORM_EPS = 1e-5
DRAW_ELEMENTS = 1 << 22
"""Initial weights are drawn in pieces of this size, each from a generator of its own, so that all
cores draw at once and the values do not depend on how many there are."""


class GPT(LayeredModel):
    """A GPT as a list of units; see `ModelSpec` for its sizes."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.layers, self.hidden = spec.layers, spec.hidden
        self.vocab, self.max_seq = spec.vocab, spec.seq

    @property
    def compilable(self) -> bool:
        return self.spec.pure

    def skeleton(self, unit: int) -> nn.Module:
        with torch.device("meta"):
            if unit == 0:
                return Embedding(self.spec)
            return Head(self.spec) if unit == self.head else Block(self.spec)

    def initialize(self, unit: int, module: nn.Module, *, seed: int) -> None:
        draws: list[tuple[Tensor, float, int]] = []
        for name, parameter in module.named_parameters():
            values = parameter.detach()
            if name.endswith("bias"):
                values.zero_()
            elif values.dim() == 1:
                values.fill_(1.0)
            elif values.numel():
                residual = name.endswith("c_proj.weight")
                std = INIT_STD / math.sqrt(2 * self.layers) if residual else INIT_STD
                for piece, part in enumerate(values.view(-1).split(DRAW_ELEMENTS)):
                    draws.append((part, std, key(seed, "init", unit, name, piece)))
        with ThreadPoolExecutor() as pool:
            list(pool.map(_draw, draws))

    def tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return {(self.head, "lm_head.weight"): (0, "wte.weight")} if self.spec.tied else {}

    def state_name(self, unit: int, local_name: str) -> str:
        if 0 < unit < self.head:
            return f"transformer.h.{unit - 1}.{local_name}"
        return local_name if local_name.startswith("lm_head.") else f"transformer.{local_name}"

    def parts(self, unit: int, module: nn.Module) -> dict[str, nn.Module]:
        if 0 < unit < self.head:
            return {f"transformer.h.{unit - 1}": module}
        return {self.state_name(unit, f"{n}.")[:-1]: child for n, child in module.named_children()}

    def forward(
        self,
        unit: int,
        module: nn.Module,
        x: Tensor,
        ctx: Context,
        targets: Tensor | None = None,
    ) -> Tensor:
        if unit == self.head:
            return module(x, targets)
        if self.spec.dropout and ctx.training:
            return module(x, ctx)
        return module(x)


class Embedding(nn.Module):
    """Token ids [B, S] -> [B, S, H]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.p = spec.dropout
        self.wte = _table(spec.vocab, spec.hidden)
        self.wpe = _table(spec.seq, spec.hidden)

    def forward(self, tokens: Tensor, ctx: Context | None = None) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        return x if ctx is None else dropout(x, self.p, ctx, "embedding")


def _table(rows: int, width: int) -> nn.Embedding:
    """Not drawn, which on the meta device makes torch import its compiler, for a second."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class Block(nn.Module):
    """[B, S, H] -> [B, S, H]: attention, then feed-forward, each normed first and added back."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.p = spec.dropout
        self.ln_1 = nn.LayerNorm(spec.hidden, eps=NORM_EPS)
        self.attn = Attention(spec)
        self.ln_2 = nn.LayerNorm(spec.hidden, eps=NORM_EPS)
        self.mlp = FeedForward(spec)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        y = self.attn(self.ln_1(x), ctx)
        x = x + (y if ctx is None else dropout(y, self.p, ctx, "attention output"))
        y = self.mlp(self.ln_2(x))
        return x + (y if ctx is None else dropout(y, self.p, ctx, "feed-forward output"))


class Attention(nn.Module):
    """Causal self-attention; the QKV matrix holds the rows of Q, then K, then V."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads, self.p = spec.heads, spec.dropout
        self.c_attn = nn.Linear(spec.hidden, 3 * spec.hidden)
        self.c_proj = nn.Linear(spec.hidden, spec.hidden)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        qkv = self.c_attn(x).unflatten(-1, (3, self.heads, -1))  # [B, S, 3, heads, d]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, heads, S, d]
        if ctx is None:
            y = causal_attention(q, k, v)
        else:
            y = causal_attention_dropout(q, k, v, self.p, ctx)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """[B, S, H] -> [B, S, 4 H] -> [B, S, H]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.c_fc = nn.Linear(spec.hidden, 4 * spec.hidden)
        self.c_proj = nn.Linear(4 * spec.hidden, spec.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Head(nn.Module):
    """Final norm, then the loss (or logits)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.ln_f = nn.LayerNorm(spec.hidden, eps=NORM_EPS)
        self.lm_head = LossHead(spec.hidden, spec.vocab, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        return self.lm_head(self.ln_f(x), targets)


class LossHead(nn.Linear):
    """The head's matrix and the loss in one module: libraries that fetch weights when a module is
    called (ZeRO-3, FSDP) then have it here for every chunk of the loss."""

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            return F.linear(x, self.weight)
        return linear_cross_entropy(x, self.weight, targets)


def _draw(job: tuple[Tensor, float, int]) -> None:
    values, std, seed = job
    values.normal_(0.0, std, generator=torch.Generator().manual_seed(seed))
