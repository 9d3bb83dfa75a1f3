"""T5 as Megatron-LM builds it, as an ordinary module for the decomposer to cut.

Its sizes are T5's (Raffel et al., JMLR 2020), its layers GPT's (Shoeybi et al., "Megatron-LM",
2019): norms with biases before each part, biases in all matrices but the head's, GELU in its tanh
form, attention scaled by the root of a head's width, and learned positions instead of biases by
distance. Encoder and decoder have positions of their own, as many as the longer of source and
answer. The head is the embedding's matrix, which both halves read, or has no bias where each of the
three has a matrix of its own.

Each of Aceso's operators (EuroSys'24) is a submodule of its name (`operators`). Its profiles count
the matrices of an operator alone: no norms, no biases. Cut at its layers the model is the
embeddings, the encoder's layers, a norm, the decoder's layers, a norm and the head: encoder and
decoder layers and 4. As of t5.py, the decoder's tokens are embedded where the encoder's are, so
that first and last layer share a matrix and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from workbench.model.initial import draw_weights
from workbench.model.t5 import T5Shape

INIT_STD = 0.02
NORM_EPS = 1e-5


class T5LikeGPT(nn.ModuleDict):
    """Token ids [B, S], mask [B, S] and ids for the decoder [B, T] -> logits [B, T, vocab].

    The mask is True where there is a token of the source and False where there is padding; no row
    may be padding alone. S and T are at most `positions`. Padding of the decoder's ids stands at
    their end, where nothing reads it.
    """

    def __init__(self, shape: T5Shape, positions: int) -> None:
        embeddings = Embeddings(shape, positions)
        head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            head.weight = embeddings["encoder-embedding"].words.weight
        super().__init__({
            "embeddings": embeddings,
            "encoder": nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers)),
            "enc-final-layernorm": _norm(shape),
            "decoder": nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers)),
            "dec-final-layernorm": _norm(shape),
            "t5-post-process": head,
        })  # fmt: skip

    def forward(self, ids: Tensor, mask: Tensor, decoder_ids: Tensor) -> Tensor:
        x, y = self["embeddings"](ids, decoder_ids)
        kept = mask.bool()[:, None, None, :]
        for layer in self["encoder"]:
            x = layer(x, kept)
        x = self["enc-final-layernorm"](x)
        for layer in self["decoder"]:
            y = layer(y, kept, x)
        return self["t5-post-process"](self["dec-final-layernorm"](y))

    def operators(self) -> Iterator[tuple[str, nn.Module]]:
        """Aceso's operators in order, by their names, which layers repeat."""
        embeddings = self["embeddings"]
        for half, prefix in (("encoder", "enc"), ("decoder", "dec")):
            yield f"{half}-embedding", embeddings[f"{half}-embedding"]
            for layer in self[half]:
                yield from ((f"{prefix}-{name}", each) for name, each in layer.items())
            yield f"{prefix}-final-layernorm", self[f"{prefix}-final-layernorm"]
        yield "t5-post-process", self["t5-post-process"]


def initialize(layer: nn.Module, *, unit: int, seed: int) -> None:
    """Write the initial weights of layer number `unit` alone: matrices N(0, 0.02), those that write
    to the residual stream narrower by the root of twice the layers of their half."""
    own = {
        id(part.weight): INIT_STD / (2 * part.depth) ** 0.5
        for part in layer.modules()
        if isinstance(part, Writing)
    }
    draw_weights(layer, unit, seed, lambda matrix: own.get(id(matrix), INIT_STD))


class Embeddings(nn.ModuleDict):
    """Ids of the source [B, S] and for the decoder [B, T] -> [B, S, H] and [B, T, H]."""

    def __init__(self, shape: T5Shape, positions: int) -> None:
        source, answer = Embedding(shape, positions), AnswerEmbedding(shape, positions)
        if shape.tied:
            answer.words.weight = source.words.weight
        super().__init__({"encoder-embedding": source, "decoder-embedding": answer})

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self["encoder-embedding"](ids), self["decoder-embedding"](decoder_ids)


class Embedding(nn.Module):
    """Token ids [B, L] -> [B, L, H]."""

    def __init__(self, shape: T5Shape, positions: int) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(positions, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.words(ids) + self.positions(places))


class AnswerEmbedding(Embedding):
    """The decoder's; two children of one class would be two layers."""


class Layer(nn.ModuleDict):
    """Operators of a layer by their names: attention, also twice, and the feed-forward."""

    def attend(
        self, x: Tensor, norm: str, end: str, kept: Tensor | None, memory: tuple[Tensor, ...] = ()
    ) -> Tensor:
        """[B, L, H] -> [B, L, H], by operators whose names end with `end`; keys that are not `kept`
        [B, 1, 1, keys] are not read."""
        normed = self[f"{norm}-layernorm"](x)
        q, k, v = self[f"attention-qkv{end}"](normed, *memory)
        scores = self[f"attention-score{end}"](q, k)
        weights = self[f"attention-dropout{end}"](self[f"attention-softmax{end}"](scores, kept))
        y = self[f"attention-dense{end}"](self[f"attention-context{end}"](weights, v))
        return self[f"post-attention-dropout{end}"](y, x)

    def feed(self, x: Tensor, norm: str) -> Tensor:
        """[B, L, H] -> [B, L, H]."""
        inner = self["MLP-gelu"](self["MLP-GEMM-1"](self[f"{norm}-layernorm"](x)))
        return self["post-MLP-dropout"](self["MLP-GEMM-2"](inner), x)


class EncoderLayer(Layer):
    """Self-attention to what is `kept` [B, 1, 1, S], and feed-forward; [B, S, H] -> [B, S, H]."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__({
            "1st-layernorm": _norm(shape),
            **_attention(shape, "", SelfQkv(shape), shape.layers),
            "2nd-layernorm": _norm(shape),
            **_feed_forward(shape, shape.layers),
        })  # fmt: skip

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        return self.feed(self.attend(x, "1st", "", kept), "2nd")


class DecoderLayer(Layer):
    """Self-attention to the tokens before, attention to what is `kept` of the encoder's output
    `memory` [B, S, H], and feed-forward; [B, T, H] -> [B, T, H]."""

    def __init__(self, shape: T5Shape) -> None:
        depth = shape.decoder_layers
        super().__init__({
            "1st-layernorm": _norm(shape),
            **_attention(shape, "-1", SelfQkv(shape), depth, causal=True),
            "2nd-layernorm": _norm(shape),
            **_attention(shape, "-2", CrossQkv(shape), depth),
            "3rd-layernorm": _norm(shape),
            **_feed_forward(shape, depth),
        })  # fmt: skip

    def forward(self, y: Tensor, kept: Tensor, memory: Tensor) -> Tensor:
        y = self.attend(y, "1st", "-1", None)
        return self.feed(self.attend(y, "2nd", "-2", kept, (memory,)), "3rd")


def _norm(shape: T5Shape) -> nn.Module:
    return nn.LayerNorm(shape.hidden, eps=NORM_EPS)


def _attention(
    shape: T5Shape, end: str, qkv: nn.Module, depth: int, *, causal: bool = False
) -> dict[str, nn.Module]:
    return {
        f"attention-qkv{end}": qkv,
        f"attention-score{end}": Score(),
        f"attention-softmax{end}": Softmax(causal),
        f"attention-dropout{end}": nn.Dropout(shape.dropout),
        f"attention-context{end}": Context(),
        f"attention-dense{end}": Writing(shape.heads * shape.head_size, shape.hidden, depth),
        f"post-attention-dropout{end}": AddDropout(shape.dropout),
    }


def _feed_forward(shape: T5Shape, depth: int) -> dict[str, nn.Module]:
    return {
        "MLP-GEMM-1": nn.Linear(shape.hidden, shape.feed_forward),
        "MLP-gelu": nn.GELU(approximate="tanh"),
        "MLP-GEMM-2": Writing(shape.feed_forward, shape.hidden, depth),
        "post-MLP-dropout": AddDropout(shape.dropout),
    }


class SelfQkv(nn.Linear):
    """[B, L, H] -> queries, keys and values, each [B, heads, L, d]; the matrix holds the rows of Q,
    then K, then V."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__(shape.hidden, 3 * shape.heads * shape.head_size)
        self.heads = shape.heads

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return _heads(super().forward(x), 3, self.heads)


class CrossQkv(nn.Module):
    """[B, T, H] and the encoder's output [B, S, H] -> queries [B, heads, T, d] of the first, keys
    and values [B, heads, S, d] of the second."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.heads, width = shape.heads, shape.heads * shape.head_size
        self.query = nn.Linear(shape.hidden, width)
        self.key_value = nn.Linear(shape.hidden, 2 * width)

    def forward(self, y: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        query = _heads(self.query(y), 1, self.heads)
        return *query, *_heads(self.key_value(memory), 2, self.heads)


def _heads(made: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[B, L, parts x heads x d] -> so many [B, heads, L, d]."""
    return made.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind()


class Score(nn.Module):
    """Queries and keys -> scores [B, heads, queries, keys]."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


class Softmax(nn.Module):
    """Scores -> weights, in fp32 inside; `causal`: of the keys up to the query alone."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, scores: Tensor, kept: Tensor | None) -> Tensor:
        if kept is not None:
            scores = scores.masked_fill(~kept, float("-inf"))
        if self.causal:
            places = torch.arange(scores.shape[-1], device=scores.device)
            scores = scores.masked_fill(places > places[:, None], float("-inf"))
        return scores.float().softmax(-1).type_as(scores)


class Context(nn.Module):
    """Weights and values [B, heads, keys, d] -> [B, queries, heads x d]."""

    def forward(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights @ v).transpose(1, 2).flatten(2)


class Writing(nn.Linear):
    """A matrix that writes to the residual stream, in one of `depth` layers."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__(inputs, outputs)
        self.depth = depth


class AddDropout(nn.Module):
    """Dropout of what is added to the residual."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p)

    def forward(self, y: Tensor, residual: Tensor) -> Tensor:
        return residual + self.dropout(y)
