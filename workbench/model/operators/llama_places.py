"""Where the operators of Llama's list are in a model of Hugging Face's, whose configuration says
its sizes: norms of squares, rotary positions, heads of queries that share keys, and SwiGLU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workbench.core.model_spec import ENGINE, ModelSpec
from workbench.model.hf_config import read_config, understood
from workbench.model.operators.place import Form, Heads, Place

LLAMA = "llama"
"""Its list, and its type in configurations."""


class LlamaShape(NamedTuple):
    """Sizes of a configuration that a spec has not."""

    keys: int
    """Heads of keys and of values."""
    width: int
    """Of a head."""
    inner: int
    """Width of the feed-forward."""
    eps: float
    biased: bool
    """Whether attention's matrices have biases."""
    inner_biased: bool
    padding: int | None


def is_llama(spec: ModelSpec) -> bool:
    """Whether a model is a Llama of a configuration. Raises ValueError for a path without one."""
    if spec.ours or spec.custom or spec.family.startswith(ENGINE):
        return False
    return read_config(spec.family)[0].model_type == LLAMA


def llama_shape(path: str) -> LlamaShape:
    """Sizes of a configuration. Raises ValueError for one of another model, or of a Llama with
    parts that no list has."""
    config = read_config(path)[0]
    if config.model_type != LLAMA:
        raise ValueError(f"{path} is of the model_type {config.model_type!r}; operators are listed "
                         f"of {LLAMA!r}")  # fmt: skip
    with understood(path):
        found = LlamaShape(
            keys=config.num_key_value_heads, width=config.head_dim, inner=config.intermediate_size,
            eps=config.rms_norm_eps, biased=config.attention_bias, inner_biased=config.mlp_bias,
            padding=config.pad_token_id,
        )  # fmt: skip
        for name, usual in (("hidden_act", "silu"), ("attention_dropout", 0)):
            if (value := getattr(config, name)) != usual:
                raise ValueError(f"{name} is {value!r}; operators are listed with {usual!r}")
        heads = config.num_attention_heads
    if heads % found.keys:
        raise ValueError(f"{path} has {heads} heads and {found.keys} of keys; the latter must "
                         "divide the former")  # fmt: skip
    return found


def llama_places(spec: ModelSpec, shape: LlamaShape) -> Iterator[Place]:
    """The place of each operator, in order."""
    heads = Heads(
        spec.heads, shape.width, spec.seq, spec.seq, causal=True, fused=True,
        shared=spec.heads // shape.keys,
    )  # fmt: skip
    hidden, head = Form((spec.seq, spec.hidden), 2), spec.layers + 1
    pair = Form((spec.seq, shape.keys, heads.shared + 1, heads.width), 2)
    scores = Form((heads.count, spec.seq, spec.seq), 1)
    context = Form((spec.seq, heads.count * heads.width), 2)
    values = Form((spec.seq, shape.keys, heads.width), 2)
    two, one = Form((spec.seq, 2, shape.inner), 3), Form((spec.seq, shape.inner), 2)
    yield Place(unit=0, form=hidden, tables=("embed_tokens.weight", ""), padding=shape.padding)
    for unit in range(1, head):

        def at(path: str, form: Form, unit: int = unit, **more) -> Place:
            return Place(unit=unit, path=path, form=form, eps=shape.eps, **more)

        own = {"heads": heads, "biased": shape.biased}
        yield at("input_layernorm", hidden)
        yield at("self_attn", pair, second=values, **own)
        yield at("", pair, heads=heads)
        yield at("", scores, heads=heads)
        yield at("", scores, heads=heads)
        yield at("", context, heads=heads)
        yield at("self_attn.o_proj", hidden, biased=shape.biased)
        yield at("", hidden)
        yield at("post_attention_layernorm", hidden)
        yield at("mlp", two, biased=shape.inner_biased)
        yield at("", one)
        yield at("mlp.down_proj", hidden, biased=shape.inner_biased)
        yield at("", hidden)
    yield Place(unit=head, path="model.norm", form=hidden, eps=shape.eps)
    yield Place(unit=head, path="lm_head", form=hidden)
