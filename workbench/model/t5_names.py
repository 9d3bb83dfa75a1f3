"""T5 of Hugging Face's transformers: its configuration as our sizes, its weights under our names.

Both hold the same matrices, so weights go either way as they are. Imports no transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from workbench.model.t5 import BUCKETS, FARTHEST, NORM_EPS, T5Shape
from workbench.model.weights.outgoing import Weights
from workbench.model.weights.stored import Stored, few

ACTIVATIONS = {"relu": False, "gated-gelu": True}
"""Names of feed-forwards there -> whether they are gated."""
EMBEDDING, HEAD = "embedding.words.weight", "head.weight"
PARTS = {
    "encoder": {"attention": "SelfAttention", "feed_forward": "DenseReluDense"},
    "decoder": {
        "attention": "SelfAttention", "cross": "EncDecAttention", "feed_forward": "DenseReluDense",
    },
}  # fmt: skip
"""Parts of a block in their order, here and there."""
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "o"}
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Further names of the embedding there."""
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""In files that were converted early; no model reads it."""


def shape_of(config: Any) -> T5Shape:
    """Sizes of a `T5Config`, of which transformers 5 says whether the head is the embedding by
    whether its input is scaled. Raises ValueError for what our T5 has not."""
    expected = {
        "relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": FARTHEST,
        "layer_norm_epsilon": NORM_EPS,
    }  # fmt: skip
    for name, value in expected.items():
        if (found := getattr(config, name)) != value:
            raise ValueError(f"{name} is {found}; here it is {value}")
    if config.feed_forward_proj not in ACTIVATIONS:
        raise ValueError(
            f"feed_forward_proj is {config.feed_forward_proj!r}; it must be one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    return T5Shape(
        layers=config.num_layers,
        decoder_layers=config.num_decoder_layers,
        hidden=config.d_model,
        heads=config.num_heads,
        head_size=config.d_kv,
        feed_forward=config.d_ff,
        gated=ACTIVATIONS[config.feed_forward_proj],
        vocab=config.vocab_size,
        tied=getattr(config, "scale_decoder_outputs", config.tie_word_embeddings),
        dropout=config.dropout_rate,
    )


def from_hugging_face(state: Mapping[str, Tensor], shape: T5Shape) -> dict[str, Tensor]:
    """The state dict of a `T5ForConditionalGeneration` under our names. Raises ValueError for a
    tensor that is missing, or that no model of this shape has."""
    names = check_names(state, shape, "the state dict")
    return {ours: state[theirs] for ours, theirs in names.items()}


def names_in(stored: Stored, shape: T5Shape) -> dict[str, str]:
    """Names in our state dict -> names in the files; none where these are ours already."""
    return {} if EMBEDDING in stored.entries else check_names(stored.entries, shape, stored.path)


def check_names(found: Iterable[str], shape: T5Shape, where: object) -> dict[str, str]:
    """Names in our state dict -> names there, of tensors that are found. Raises ValueError, which
    names `where`, for one that is missing, or that no model of this shape has."""
    names, there = names_of(shape), {*found}
    embedding = next((name for name in (names[EMBEDDING], *COPIES) if name in there), "")
    if embedding in COPIES:  # a tensor of several names is stored under one
        names = {n: embedding if t == names[EMBEDDING] else t for n, t in names.items()}
    known = {*names.values(), *COPIES, "shared.weight", "lm_head.weight", UNUSED}
    if missing := {*names.values()} - there:
        raise ValueError(f"{where} lacks tensors of a T5 of these sizes: {few(missing)}")
    if more := there - known:
        raise ValueError(f"{where} has tensors that no T5 of these sizes has: {few(more)}")
    return names


def to_hugging_face(weights: Weights, shape: T5Shape) -> Weights:
    """Weights of our `T5` by the names that a `T5ForConditionalGeneration` has for them."""
    theirs = names_of(shape)
    ours = {theirs[name]: name for name in weights.shapes}

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        found = weights.read([ours[name] for name in names])
        return {name: found[ours[name]] for name in names}

    shapes = {theirs[name]: size for name, size in weights.shapes.items()}
    groups = [[theirs[name] for name in group] for group in weights.groups]
    return replace(weights, shapes=shapes, groups=groups, read=read)


def names_of(shape: T5Shape) -> dict[str, str]:
    """Names in our state dict -> names there. A tied head is the embedding."""
    into = {"gate": "wi_0", "into": "wi_1"} if shape.gated else {"into": "wi"}
    names = {EMBEDDING: "shared.weight", HEAD: "shared.weight" if shape.tied else "lm_head.weight"}
    for stack, layers in (("encoder", shape.layers), ("decoder", shape.decoder_layers)):
        names[f"{stack}_end.norm.weight"] = f"{stack}.final_layer_norm.weight"
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        names[f"{stack}.0.relative.weight"] = bias
        for layer in range(layers):
            for place, (part, theirs) in enumerate(PARTS[stack].items()):
                ours, there = f"{stack}.{layer}.{part}", f"{stack}.block.{layer}.layer.{place}"
                names[f"{ours}.norm.weight"] = f"{there}.layer_norm.weight"
                matrices = into | {"out": "wo"} if part == "feed_forward" else PROJECTIONS
                for name, word in matrices.items():
                    names[f"{ours}.{name}.weight"] = f"{there}.{theirs}.{word}.weight"
    return names
