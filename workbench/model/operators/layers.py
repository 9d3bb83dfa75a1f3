"""A user's own module as a list of operators: its layers, which only rows of a batch divide."""

from __future__ import annotations

from workbench.model.operators.layout import SAMPLES
from workbench.model.operators.operator import Operator, OperatorList


def whole_layers(count: int) -> OperatorList:
    """Of so many layers, each with a row of its own in a profile."""
    names = tuple(f"layer-{number}" for number in range(count))
    layouts = ((SAMPLES, SAMPLES),) * 2
    return OperatorList(
        family="module", rows=tuple(range(count)), row_names=names, extras=(),
        operators=tuple(
            Operator(name=name, kind="layer", layouts=layouts, starts_layer=True) for name in names
        ),
        layers=tuple(range(count)), towers=(count,), partitions=1, reshards=False, apart=True,
    )  # fmt: skip
