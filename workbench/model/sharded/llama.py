"""Operators of Llama as modules, each over the shards of one device of its row.

Arithmetic and names are those of transformers' Llama, so that plain training is what any division
is compared with; angles of rotary positions are computed by its own module. Each head of keys and
values lies behind the heads of queries that read it, so that all of them are on one device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.hf_config import read_config, understood
from workbench.model.operators.operator import Kind
from workbench.model.sharded.base import Rows, Sharded
from workbench.model.sharded.shards import WHOLE, Shard


class RmsNorm(Sharded):
    """[B, S, H] -> [B, S, H], in fp32."""

    def divided(self) -> dict[str, Shard]:
        return {"weight": WHOLE}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        wide = x.float()
        squares = wide.square().mean(-1, keepdim=True)
        return self.weight * (wide * (squares + self.place.eps).rsqrt()).type_as(x)


class Projections(Sharded):
    """[B, S, in] -> several [B, S, out]: shards of the outputs of a whole input, or of sharded
    inputs the whole sums."""

    names: tuple[str, ...]
    """Of the matrices, in the submodule."""

    def divided(self) -> dict[str, Shard]:
        weight, bias = (Shard(1), WHOLE) if self.sharded else (Shard(0), Shard(0))
        own = {"weight": weight} | ({"bias": bias} if self.place.biased else {})
        return {f"{name}.{kind}": shard for name in self.names for kind, shard in own.items()}

    def projected(self, x: Tensor) -> list[Tensor]:
        """Of each matrix."""
        owned, columns = self.owned(), self.columns
        x = x if self.sharded else columns.read(x)
        made = []
        for name in self.names:
            weight, bias = owned[f"{name}.weight"], owned.get(f"{name}.bias")
            if self.sharded and columns.count > 1:
                y = columns.summed(F.linear(x, weight))
                made.append(y if bias is None else y + bias)
            else:
                made.append(F.linear(x, weight, bias))
        return made


class GroupedQkv(Projections):
    """[B, S, H] -> queries, and the key that they share, [B, S, keys, shared + 1, d], and values
    [B, S, keys, d]."""

    names = ("q_proj", "k_proj", "v_proj")

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        heads = self.place.heads
        q, k, v = self.projected(x)
        q = q.unflatten(-1, (-1, heads.shared, heads.width))
        k, v = (each.unflatten(-1, (-1, heads.width)) for each in (k, v))
        return torch.cat([q, k[..., None, :]], dim=3), v


class Rotary(Sharded):
    """Queries and keys [B, S, keys, shared + 1, d], turned by their place in the sample."""

    pure = False

    def take(self, whole, device: torch.device) -> None:
        super().take(whole, device)
        self.angles = angles_of(self.spec.family).to(device)

    def forward(self, pair: Tensor, rows: Rows) -> Tensor:
        places = torch.arange(pair.shape[1], device=pair.device)[None]
        cos, sin = (each[:, :, None, None] for each in self.angles(pair, places))
        one, other = pair.chunk(2, dim=-1)
        return pair * cos + torch.cat([-other, one], dim=-1) * sin


def angles_of(path: str) -> nn.Module:
    """Transformers' module of rotary angles for a configuration."""
    config, _ = read_config(path)
    with understood(path):
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        return LlamaRotaryEmbedding(config)


class GateUp(Projections):
    """[B, S, H] -> [B, S, 2, inner]."""

    names = ("gate_proj", "up_proj")

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return torch.stack(self.projected(x), dim=2)


class SwiGlu(Sharded):
    """[B, S, 2, inner] -> [B, S, inner]."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        gate, up = x.unbind(2)
        return F.silu(gate) * up


LLAMAS: dict[Kind, type[Sharded]] = {
    "rmsnorm": RmsNorm, "grouped-qkv": GroupedQkv, "rotary": Rotary, "gate-up": GateUp,
    "swiglu": SwiGlu,
}  # fmt: skip
