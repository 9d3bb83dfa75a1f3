"""Where the operators of a list are in models, and the tensors between them.

An operator has the parameters of a submodule of a unit, by the names that plain training gives
them, draws dropout's masks at a site of that unit or at a place among all draws of the model, and
puts out a tensor of a form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from workbench.core.model_spec import BOTTLENECKS, GPT_FAMILY, T5_LIKE_GPT, ModelSpec
from workbench.model.named import LISTS, bottlenecks_of
from workbench.model.operators.llama_places import LLAMA, is_llama, llama_places, llama_shape
from workbench.model.operators.operator import Extra, Kind, Operator, OperatorList
from workbench.model.operators.place import Form, Heads, Place, Window


def list_of(spec: ModelSpec) -> str | None:
    """Name of the list of a model's operators; None where there is none. Raises ValueError for a
    configuration that is not there."""
    return LISTS.get(spec.family) or (LLAMA if is_llama(spec) else None)


def places(operators: OperatorList, spec: ModelSpec) -> list[Place]:
    """The place of each operator. Raises ValueError for a model whose operators have no modules
    here, or that has another depth."""
    if list_of(spec) != operators.family:
        raise ValueError(f"operators of {operators.family} do not train a model {spec.family}")
    if operators.family == LLAMA:
        found = [*llama_places(spec, llama_shape(spec.family))]
    else:
        made = {GPT_FAMILY: _gpt, T5_LIKE_GPT: _t5, BOTTLENECKS: _pictures}
        found = [*made[spec.family](spec)]
    if len(operators) != len(found):
        raise ValueError(f"the plan has {len(operators)} operators; the model has {len(found)}")
    return found


def _gpt(spec: ModelSpec) -> Iterator[Place]:
    heads = Heads(
        spec.heads, spec.hidden // spec.heads, spec.seq, spec.seq, causal=True, fused=True
    )
    hidden = Form((spec.seq, spec.hidden), 2)
    yield Place(unit=0, form=hidden, tables=("wte.weight", "wpe.weight"), site="embedding")
    paths = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    sites = {"site": "attention"}, {"site": "attention output"}, {"site": "feed-forward output"}
    for unit in range(1, spec.layers + 1):
        yield from _attention(unit, paths[:3], hidden, heads, *sites[:2])
        yield from _feed_forward(unit, paths[3:], hidden, 4 * spec.hidden, sites[2])
    yield Place(unit=spec.layers + 1, path="ln_f", form=hidden)
    yield Place(unit=spec.layers + 1, path="lm_head", form=hidden)


def _t5(spec: ModelSpec) -> Iterator[Place]:
    """Draws are numbered as the model makes them: both embeddings', then layer by layer."""
    width = spec.head_size or spec.hidden // spec.heads
    inner, sizes = spec.feed_forward or 4 * spec.hidden, (spec.heads, width)
    lengths = spec.seq, spec.target_seq or 8
    source, answer = (Form((length, spec.hidden), 2) for length in lengths)
    tables, draws = ("words.weight", "positions.weight"), iter(range(2, 1 << 30))

    def drawn() -> dict[str, int]:
        return {"draw": next(draws)}

    def embedding(which: str, form: Form, number: int) -> Place:
        more = {"path": f"0.{which}-embedding", "tables": tables, "input": 2 * number}
        return Place(unit=0, form=form, draw=number, **more)

    yield embedding("encoder", source, 0)
    own = Heads(*sizes, lengths[0], lengths[0], masked=True)
    ends = "layernorm", "attention-qkv", "attention-dense"
    for unit in range(1, spec.layers + 1):
        norm, qkv, dense = (f"0.{name}" for name in ("1st-layernorm", *ends[1:]))
        yield from _attention(unit, (norm, qkv, dense), source, own, drawn(), drawn())
        paths = ("0.2nd-layernorm", "0.MLP-GEMM-1", "0.MLP-GEMM-2")
        yield from _feed_forward(unit, paths, source, inner, drawn())
    yield Place(unit=spec.layers + 1, path="0", form=source)
    yield embedding("decoder", answer, 1)
    own = Heads(*sizes, lengths[1], lengths[1], causal=True)
    other = Heads(*sizes, lengths[1], lengths[0], masked=True, memory=True)
    first = spec.layers + 2
    last = first + (spec.decoder_layers or spec.layers)
    for unit in range(first, last):
        for end, norm, heads in (("-1", "1st", own), ("-2", "2nd", other)):
            paths = f"0.{norm}-layernorm", f"0.attention-qkv{end}", f"0.attention-dense{end}"
            yield from _attention(unit, paths, answer, heads, drawn(), drawn())
        paths = ("0.3rd-layernorm", "0.MLP-GEMM-1", "0.MLP-GEMM-2")
        yield from _feed_forward(unit, paths, answer, inner, drawn())
    yield Place(unit=last, path="0", form=answer)
    yield Place(unit=last + 1, path="0", form=answer)


def _attention(
    unit: int, paths: tuple[str, ...], hidden: Form, heads: Heads, weights: dict, end: dict
) -> Iterator[Place]:
    """Norm to residual; `paths` of the norm and of both matrices, and where `weights` of attention
    and the `end` are dropped."""
    norm, qkv, dense = paths
    one = heads.count, heads.width
    pair = Form((heads.queries, 2, *one), 3)
    if heads.memory:
        pair = Form((heads.queries + heads.keys, *one), 2)
    scores = Form((heads.count, heads.queries, heads.keys), 1)
    context = Form((heads.queries, heads.count * heads.width), 2)
    yield Place(unit=unit, path=norm, form=hidden)
    yield Place(unit=unit, path=qkv, form=pair, heads=heads, second=Form((heads.keys, *one), 2))
    for more in ({}, {}, weights):
        yield Place(unit=unit, form=scores, heads=heads, **more)
    yield Place(unit=unit, form=context, heads=heads)
    yield Place(unit=unit, path=dense, form=hidden)
    yield Place(unit=unit, form=hidden, **end)


def _feed_forward(
    unit: int, paths: tuple[str, ...], hidden: Form, inner: int, end: dict
) -> Iterator[Place]:
    norm, first, second = paths
    wide = Form((hidden.tail[0], inner), 2)
    yield Place(unit=unit, path=norm, form=hidden)
    yield Place(unit=unit, path=first, form=wide)
    yield Place(unit=unit, form=wide)
    yield Place(unit=unit, path=second, form=hidden)
    yield Place(unit=unit, form=hidden, **end)


def _pictures(spec: ModelSpec) -> Iterator[Place]:
    """Stem, blocks of four groups, head."""
    width, factor, size = spec.hidden, spec.width_factor or 2, -(-spec.seq // 2)

    def form(channels: int) -> Form:
        return Form((channels, size, size), 1)

    yield Place(unit=0, path="0.conv1", form=form(width), window=Window(2, 3))
    yield Place(unit=0, path="0.bn1", form=form(width))
    yield Place(unit=0, form=form(width))
    size = -(-size // 2)
    yield Place(unit=0, form=form(width))
    unit = 0
    for group, count in enumerate(bottlenecks_of(spec.layers)):
        for number in range(count):
            unit, inner = unit + 1, width << group
            stride = 2 if group and not number else 1
            yield Place(unit=unit, path="0.conv1", form=form(inner), window=Window(1, 0))
            yield Place(unit=unit, path="0.bn1", form=form(inner), rectified=True)
            size = -(-size // stride)
            wide, out = form(inner * factor), form(4 * inner)
            yield Place(unit=unit, path="0.conv2", form=wide, window=Window(stride, 1))
            yield Place(unit=unit, path="0.bn2", form=wide, rectified=True)
            yield Place(unit=unit, path="0.conv3", form=out, window=Window(1, 0))
            yield Place(unit=unit, path="0.bn3", form=out)
            yield Place(unit=unit, path="0.downsample", form=out, window=Window(stride, 0))
            yield Place(unit=unit, form=out)
    last = Form((4 * width << 3,), 1)
    yield Place(unit=unit + 1, form=last)
    yield Place(unit=unit + 1, path="0.fc", form=last)


FUSED: tuple[tuple[Kind, ...], ...] = (
    ("score", "softmax", "dropout", "context"), ("score", "softmax", "context"),
)  # fmt: skip
"""Operators in a row that one call computes, where nothing is between them."""


def fused(operators: Sequence[Operator], first: Place) -> int:
    """How many of these operators, of which the first is at a place, one call computes."""
    able = first.heads is not None and first.heads.fused
    kinds = tuple(each.kind for each in operators)
    return next((len(own) for own in FUSED if able and kinds[: len(own)] == own), 1)


What = Literal["input", "second", "output"]
READ: dict[Kind, What] = {
    "context": "second", "add-dropout": "input", "add": "input", "downsample-add": "input",
    "cross-qkv": "output",
}  # fmt: skip
"""Readers of an extra tensor -> what of its maker it is. Biases are none here: each is added where
its matrix is."""


class Handed(NamedTuple):
    """An extra tensor that there is when operators run."""

    extra: Extra
    what: What
    form: Form


def handed(operators: OperatorList, where: list[Place]) -> list[Handed]:
    """Extra tensors of a list, and what they are."""
    found = []
    for extra in operators.extras:
        what = READ.get(operators.operators[extra.read_by[0]].kind)
        if what is None or operators.operators[extra.made_by].kind == "linear":
            continue
        made = where[extra.made_by]
        form = {"input": where[extra.made_by - 1].form, "second": made.second, "output": made.form}
        found.append(Handed(extra, what, form[what]))
    return found
