"""Names and layout of our GPT's parameters in megatron-core.

Only the rows of the QKV matrix are in another order: ours are all of Q, then K, then V, theirs are
Q, K and V of head 0, then of head 1, and so on; and the vocabulary has rows that are no words.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.model.base import LayeredModel

BLOCK_NAMES = {
    "ln_1": "input_layernorm",
    "attn.c_attn": "self_attention.linear_qkv",
    "attn.c_proj": "self_attention.linear_proj",
    "ln_2": "pre_mlp_layernorm",
    "mlp.c_fc": "mlp.linear_fc1",
    "mlp.c_proj": "mlp.linear_fc2",
}
"""Modules of our block -> of a megatron-core layer."""
OUTER_NAMES = {
    "wte": "embedding.word_embeddings",
    "wpe": "embedding.position_embeddings",
    "ln_f": "decoder.final_layernorm",
    "lm_head": "output_layer",
}
"""Modules of our embedding and head -> of GPTModel."""
VOCABULARY = ("wte.weight", "lm_head.weight")
"""Our parameters with a row for each word."""
ROWS = 128
"""Factor of the vocabulary's rows: Megatron-LM's ``make-vocab-size-divisible-by``."""


def padded(words: int, tp: int = 1) -> int:
    """Rows of the vocabulary, where `tp` ranks share them.

    >>> padded(50257), padded(256), padded(256, 4)
    (50304, 256, 512)
    """
    return -(-words // (ROWS * tp)) * ROWS * tp


def their_name(ours: LayeredModel, unit: int, name: str) -> str:
    """megatron-core's name of a parameter of a unit."""
    module, _, leaf = name.rpartition(".")
    if 0 < unit < ours.head:
        return f"decoder.layers.{unit - 1}.{BLOCK_NAMES[module]}.{leaf}"
    return f"{OUTER_NAMES[module]}.{leaf}"


def local_names(name: str, first: int, *, tied: bool) -> set[str]:
    """Names that a weight may have in a stage whose layers begin with the `first`; a tied table is
    in the last stage, too.

    >>> local_names("decoder.layers.5.mlp.linear_fc1.bias", 4, tied=True)
    {'decoder.layers.1.mlp.linear_fc1.bias'}
    """
    if ".layers." in name:
        module, _, number, leaf = name.split(".", 3)
        return {f"{module}.layers.{int(number) - first}.{leaf}"}
    table, head = (f"{OUTER_NAMES[each]}.weight" for each in ("wte", "lm_head"))
    return {name, head} if tied and name == table else {name}


def their_layout(name: str, parameter: Tensor, spec: ModelSpec, tp: int = 1) -> Tensor:
    """A parameter of ours as megatron-core has it: rows of QKV [3, heads, d] -> [heads, 3, d], and
    rows of zeros below those of the words."""
    if name in VOCABULARY:
        return F.pad(parameter, (0, 0, 0, padded(spec.vocab, tp) - spec.vocab))
    if not name.startswith("attn.c_attn."):
        return parameter
    return parameter.unflatten(0, (3, spec.heads, -1)).transpose(0, 1).flatten(0, 2)


def our_layout(name: str, parameter: Tensor, spec: ModelSpec) -> Tensor:
    """Inverse of `their_layout`."""
    if name in VOCABULARY:
        return parameter[: spec.vocab]
    if not name.startswith("attn.c_attn."):
        return parameter
    return parameter.unflatten(0, (spec.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
