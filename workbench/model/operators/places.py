"""Where the operators of a list are in this project's own models, and the tensors between them.

An operator has the parameters of a submodule of a unit, by the names that plain training gives
them, draws dropout's masks at a site of that unit, and puts out a tensor of a form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from workbench.core.model_spec import ModelSpec
from workbench.model.operators.operator import Kind, Operator, OperatorList


class Form(NamedTuple):
    """A tensor of some samples, dimension 0."""

    tail: tuple[int, ...]
    """Shape of a sample."""
    shard: int
    """Dimension that the tp devices of a row split where they hold no replicas."""

    def shape(self, samples: int) -> tuple[int, ...]:
        """Shape for so many samples."""
        return (samples, *self.tail)


def hidden(spec: ModelSpec) -> Form:
    """What flows along the residual stream."""
    return Form((spec.seq, spec.hidden), 2)


def wide(spec: ModelSpec) -> Form:
    """What is inside the feed-forward."""
    return Form((spec.seq, 4 * spec.hidden), 2)


def pair(spec: ModelSpec) -> Form:
    """Queries and keys."""
    return Form((spec.seq, 2, spec.heads, spec.hidden // spec.heads), 3)


def value(spec: ModelSpec) -> Form:
    """Values."""
    return Form((spec.seq, spec.heads, spec.hidden // spec.heads), 2)


def scores(spec: ModelSpec) -> Form:
    """Attention weights."""
    return Form((spec.heads, spec.seq, spec.seq), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """An operator in a model."""

    unit: int
    path: str = ""
    """Of the submodule whose parameters it has; empty for the unit itself, or where it has none."""
    site: str = ""
    """Of its dropout in the unit."""
    form: Callable[[ModelSpec], Form] = hidden
    """Of what it puts out."""


GPT_LAYER = (
    ("ln_1", "", hidden),
    ("attn.c_attn", "", pair),
    ("", "", scores),
    ("", "", scores),
    ("", "attention", scores),
    ("", "", hidden),
    ("attn.c_proj", "", hidden),
    ("", "attention output", hidden),
    ("ln_2", "", hidden),
    ("mlp.c_fc", "", wide),
    ("", "", wide),
    ("mlp.c_proj", "", hidden),
    ("", "feed-forward output", hidden),
)
"""Of each operator of a layer: path, site, form."""
HANDS_ON: dict[Kind, Callable[[ModelSpec], Form]] = {"layernorm": hidden, "qkv": value}
"""Operators that make an extra tensor here: a norm hands on its own input, the GEMM of attention
its values. Biases are no extra tensors: each is added where its matrix is."""


def places(operators: OperatorList, spec: ModelSpec) -> list[Place]:
    """The place of each operator. Raises ValueError for a model whose operators have no modules
    here, or that has another depth."""
    if operators.family != spec.family or spec.family != "gpt":
        raise ValueError(
            f"operators of {operators.family} train no {spec.family}; both must be gpt"
        )
    if len(operators) != len(GPT_LAYER) * spec.layers + 3:
        raise ValueError(f"{len(operators)} operators are no GPT of {spec.layers} layers")
    found = [Place(unit=0, site="embedding")]
    for unit in range(1, spec.layers + 1):
        found += [Place(unit=unit, path=p, site=s, form=form) for p, s, form in GPT_LAYER]
    last = spec.layers + 1
    return [*found, Place(unit=last, path="ln_f"), Place(unit=last, path="lm_head")]


FUSED: tuple[Kind, ...] = ("score", "softmax", "dropout", "context")
"""Operators in a row that one call computes, where nothing is between them."""


def fuses(operators: tuple[Operator, ...]) -> bool:
    """Whether one call computes these operators."""
    return tuple(each.kind for each in operators) == FUSED
