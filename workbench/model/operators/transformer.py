"""GPT and T5 as lists of operators, named as in Aceso's published profiles (EuroSys'24 artifact),
and Llama, which it does not have.

A layer of the encoder, or of GPT, is 13 operators, one of T5's decoder 21. Profiles hold a layer of
each kind once. Only the encoder's softmax and dropout have corrections of their memory, and only
its layers keep their input: the published model says nothing of the decoder's.
"""

from __future__ import annotations

from dataclasses import replace

from workbench.model.operators.layout import SAMPLES, SCORES, SHARDED, WHOLE, Layout
from workbench.model.operators.operator import (
    Extra,
    Kind,
    Layouts,
    Operator,
    OperatorList,
    Sketch,
    extras_of,
)

_COLUMNS, _ROWS = (WHOLE, SHARDED), (SHARDED, WHOLE)
Row = tuple[str, Kind, Layouts]

ATTENTION: tuple[Row, ...] = (
    ("attention-qkv", "qkv", _COLUMNS),
    ("attention-score", "score", (SHARDED, SCORES)),
    ("attention-softmax", "softmax", (SCORES, SCORES)),
    ("attention-dropout", "dropout", (SCORES, SCORES)),
    ("attention-context", "context", (SCORES, SHARDED)),
    ("attention-dense", "linear", _ROWS),
    ("post-attention-dropout", "add-dropout", (WHOLE, WHOLE)),
)
MLP: tuple[Row, ...] = (
    ("MLP-GEMM-1", "linear", _COLUMNS),
    ("MLP-gelu", "gelu", (SHARDED, SHARDED)),
    ("MLP-GEMM-2", "linear", _ROWS),
    ("post-MLP-dropout", "add-dropout", (WHOLE, WHOLE)),
)
ATTENTION_EXTRAS: tuple[Sketch, ...] = (
    ("value", "attention-qkv", ("attention-context",)),
    ("dense-bias", "attention-dense", ("post-attention-dropout",)),
)
MLP_EXTRAS: tuple[Sketch, ...] = (
    ("GEMM-1-bias", "MLP-GEMM-1", ("MLP-gelu",)),
    ("GEMM-2-bias", "MLP-GEMM-2", ("post-MLP-dropout",)),
)
ENCODER_KEPT = {"enc-attention-softmax": 0.0, "enc-attention-dropout": 1.5}


LLAMA_LAYER: tuple[Row, ...] = (
    ("1st-norm", "rmsnorm", (WHOLE, WHOLE)),
    ("attention-qkv", "grouped-qkv", _COLUMNS),
    ("attention-rotary", "rotary", (SHARDED, SHARDED)),
    ("attention-score", "score", (SHARDED, SCORES)),
    ("attention-softmax", "softmax", (SCORES, SCORES)),
    ("attention-context", "context", (SCORES, SHARDED)),
    ("attention-dense", "linear", _ROWS),
    ("attention-add", "add", (WHOLE, WHOLE)),
    ("2nd-norm", "rmsnorm", (WHOLE, WHOLE)),
    ("MLP-gate-up", "gate-up", _COLUMNS),
    ("MLP-swiglu", "swiglu", (SHARDED, SHARDED)),
    ("MLP-down", "linear", _ROWS),
    ("MLP-add", "add", (WHOLE, WHOLE)),
)
LLAMA_EXTRAS: tuple[Sketch, ...] = (
    ("value", "attention-qkv", ("attention-context",)),
    ("residual-1", "1st-norm", ("attention-add",)),
    ("residual-2", "2nd-norm", ("MLP-add",)),
)


def _norm(name: str, out: Layout = WHOLE, *, starts: bool = False) -> Operator:
    return Operator(
        name=name, kind="layernorm", layouts=((WHOLE, out),) * 2,
        starts_layer=starts, chosen=not starts,
    )  # fmt: skip


def _ends(name: str, kind: Kind, layout: Layout) -> Operator:
    tunable = kind == "embedding"
    layouts = ((layout, layout),) * 2
    return Operator(name=name, kind=kind, layouts=layouts, tunable=tunable, chosen=False)


def _made(rows: tuple[Row, ...], prefix: str, suffix: str = "") -> list[Operator]:
    made = []
    for name, kind, layouts in rows:
        splits = layouts in (_COLUMNS, _ROWS)
        name = f"{prefix}{name}{suffix}"
        other = layouts[::-1] if splits else layouts
        made.append(
            Operator(
                name=name, kind="cross-qkv" if (kind, suffix) == ("qkv", "-2") else kind,
                layouts=(layouts, other), tunable=splits, kept=ENCODER_KEPT.get(name, 1.0),
            )
        )  # fmt: skip
    return made


def encoder_layer() -> tuple[list[Operator], tuple[Sketch, ...]]:
    """A layer of GPT or of T5's encoder, and its extra tensors."""
    attention = [_norm("enc-1st-layernorm", starts=True), *_made(ATTENTION, "enc-")]
    mlp = [_norm("enc-2nd-layernorm"), *_made(MLP, "enc-")]
    residuals = (
        ("residual-1", "1st-layernorm", ("post-attention-dropout",)),
        ("residual-2", "2nd-layernorm", ("post-MLP-dropout",)),
    )
    return attention + mlp, _renamed((*ATTENTION_EXTRAS, *MLP_EXTRAS, *residuals), "enc-")


def decoder_layer() -> tuple[list[Operator], tuple[Sketch, ...]]:
    """A layer of T5's decoder, and its extra tensors, but for the encoder's output."""
    operators, sketches = [], []
    for suffix, norm in (("-1", "1st"), ("-2", "2nd")):
        operators += [_norm(f"dec-{norm}-layernorm"), *_made(ATTENTION, "dec-", suffix)]
        sketches += [
            (name + suffix, made + suffix, tuple(r + suffix for r in read))
            for name, made, read in ATTENTION_EXTRAS
        ]
        sketches.append((f"residual{suffix}", f"{norm}-layernorm",
                         (f"post-attention-dropout{suffix}",)))  # fmt: skip
    operators += [_norm("dec-3rd-layernorm"), *_made(MLP, "dec-")]
    sketches += [*MLP_EXTRAS, ("residual-3", "3rd-layernorm", ("post-MLP-dropout",))]
    return operators, _renamed(tuple(sketches), "dec-")


def gpt(layers: int) -> OperatorList:
    """13 operators a layer, and three."""
    layer, sketches = encoder_layer()
    head = [_ends("encoder-embedding", "embedding", WHOLE)]
    tail = [_norm("final-layernorm", SAMPLES), _ends("gpt-post-process", "head", SAMPLES)]
    parts = [(head, ()), *[(layer, sketches)] * layers, (tail, ())]
    return _list("gpt", parts, [*head, *layer, *tail], (), towers=(layers,), partitions=2)


def llama(layers: int) -> OperatorList:
    """13 operators a layer, and three."""
    layer = _made(LLAMA_LAYER, "")
    layer[0] = replace(layer[0], starts_layer=True, chosen=False)
    norm, *_ = _made((("final-norm", "rmsnorm", (WHOLE, SAMPLES)),), "")
    head, tail = [_ends("embedding", "embedding", WHOLE)], [norm, _ends("head", "head", SAMPLES)]
    parts = [(head, ()), *[(layer, LLAMA_EXTRAS)] * layers, (tail, ())]
    return _list("llama", parts, [*head, *layer, *tail], (), towers=(layers,), partitions=2)


def t5(layers: int) -> OperatorList:
    """13 operators a layer of the encoder, 21 one of the decoder, and five. Its published form has
    the usual partition alone."""
    encoder, sketches = encoder_layer()
    decoder, decoder_sketches = decoder_layer()
    head = [_ends("encoder-embedding", "embedding", WHOLE)]
    middle = [_norm("enc-final-layernorm"), _ends("decoder-embedding", "embedding", WHOLE)]
    tail = [_norm("dec-final-layernorm", SAMPLES), _ends("t5-post-process", "head", SAMPLES)]
    parts = [
        (head, ()), *[(encoder, sketches)] * layers, (middle, ()),
        *[(decoder, decoder_sketches)] * layers, (tail, ()),
    ]  # fmt: skip
    made_by = 1 + len(encoder) * layers
    first = made_by + len(middle)
    place = next(i for i, each in enumerate(decoder) if each.kind == "cross-qkv")
    readers = tuple(first + len(decoder) * n + place for n in range(layers))
    memory = (Extra(name="encoder-output", made_by=made_by, read_by=readers),)
    rows = [*head, *encoder, *middle, *decoder, *tail]
    return _list("t5", parts, rows, memory, towers=(layers, layers), partitions=1)


def _renamed(sketches: tuple[Sketch, ...], prefix: str) -> tuple[Sketch, ...]:
    return tuple((name, prefix + made, tuple(prefix + r for r in read))
                 for name, made, read in sketches)  # fmt: skip


def _list(
    family: str,
    parts: list[tuple[list[Operator], tuple[Sketch, ...]]],
    rows: list[Operator],
    extras: tuple[Extra, ...],
    towers: tuple[int, ...],
    partitions: int,
) -> OperatorList:
    names = [each.name for each in rows]
    operators: list[Operator] = []
    layers = []
    for block, sketches in parts:
        layers += [len(operators)] if sketches else []
        places = {each.name: len(operators) + i for i, each in enumerate(block)}
        extras += extras_of(sketches, places.__getitem__, f"{len(operators)}-")
        operators += block
    return OperatorList(
        family=family, operators=tuple(operators), row_names=tuple(names),
        rows=tuple(names.index(each.name) for each in operators),
        extras=extras, layers=tuple(layers), towers=towers, partitions=partitions,
        reshards=partitions == 2,
    )  # fmt: skip
