"""Base of FTPipe's exhibits: graphs whose costs are counted, their partitions, and the values that
lie in its released code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd

from workbench.exhibits import dials
from workbench.exhibits.base import Exhibit
from workbench.figures.rows import ESTIMATED, PUBLISHED, pick
from workbench.partition.graph import Graph
from workbench.partition.methods import Ask, Partition, partition
from workbench.partition.mpipe import Mpipe
from workbench.partition.t5 import Shape, t5_graph
from workbench.published.tables import FOLDER

DEVICES = 8
MIB = 2**20
MEMORY = 11_019 * MIB
"""Bytes of each published device."""
MIXED, FAITHFUL, CUT = "mpipe", "mpipe-faithful", "pipedream"
NAMES = {
    MIXED: "mixed", FAITHFUL: "mixed,\npublished rules", CUT: "contiguous", "acyclic": "acyclic",
    "2dbin": "2dbin", "metis": "metis", "exact": "exact",
}  # fmt: skip
"""Partitioner -> its name in figures."""
BLOCK = "T5Block"
HOW = "operations counted (partition/t5.py)"
MODELS = {
    "T5-3B": Shape(),
    "GPT-2 XL": Shape(layers=48, hidden=1600, inner=1600, feed=6400, heads=25, vocab=50257,
                      source=1024, target=0, batch=1),
    "BERT-large": Shape(hidden=1024, inner=1024, feed=4096, heads=16, vocab=30522, source=384,
                        target=0, batch=24, outputs=2),
    "BoolQ": Shape(batch=2), "RTE": Shape(source=320, target=8, batch=4),
    "WiC": Shape(source=64, batch=32),
}  # fmt: skip
"""Models of the published partitions, and T5-3B under its tasks, with published micro-batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    """The dials of runs that learn handwritten digits."""

    layers: int
    hidden: int
    ranks: int
    steps: int
    every: int
    """Steps between evaluations."""
    target: float
    """Accuracy."""
    ways: tuple[str, ...]
    cuts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Partitioner -> cut and map; where there are none, it finds them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The dials of a size."""

    name: str
    device: str = "cpu"
    operators: bool
    """Whether graphs have a node an operator, else one a transformer block."""
    models: tuple[str, ...]
    blocks: tuple[int, ...]
    """Numbers of blocks L."""
    stages: int
    """Stages of the pipelines whose staleness is shown."""
    digits: Digits


class FtpipeExhibit(Exhibit):
    """An exhibit that starts nothing."""

    runs, dials = False, staticmethod(partial(dials.named, "ftpipe", Size))
    labels: ClassVar[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
        {"method": lambda name: NAMES[name].replace("\n", " ")}
    )

    def published(self) -> pd.DataFrame:
        """Values of the released code: item, variant, method, metric, value, unit, source."""
        told = pd.read_csv(FOLDER / "ftpipe.csv", keep_default_na=False)
        return pick(told, exhibit=self.figure.removeprefix("ftpipe_"))


@cache
def graph(model: str, operators: bool) -> Graph:
    """A model's graph by operation counts."""
    return t5_graph(MODELS[model], blocks=not operators)


@cache
def cut(model: str, operators: bool, method: str, blocks: int = 0, devices: int = DEVICES,
        memory: float | None = MEMORY, in_flight: int = 0) -> Partition:  # fmt: skip
    """A partition of a model; `blocks`: L, where the method reads it. Raises ValueError where there
    is none."""
    packing = "faithful" if method == FAITHFUL else "best"
    L = (blocks,) if blocks else ()
    own = Mpipe(L=L, special_blocks=(BLOCK,), packing=packing)
    name = MIXED if method == FAITHFUL else method
    ask = Ask(method=name, devices=devices, memory=memory, in_flight=in_flight)
    return partition(graph(model, operators), ask, own if name == MIXED else None)


def tried(*asked: Any) -> tuple[Partition | None, str]:
    """`cut`, or why there is none, in a few words."""
    try:
        return cut(*asked), "ok"
    except ValueError as error:
        return None, "package missing" if "package" in str(error) else "nothing fits"


def mean_ms(model: str, operators: bool) -> float:
    """Milliseconds of the mean device."""
    every = graph(model, operators).nodes
    return sum(node.forward_ms + node.backward_ms for node in every) / DEVICES


def estimated(method: str, value: float | None, **more: Any) -> dict[str, Any]:
    """Columns of a value by counted operations."""
    about = {"method": method, "label": NAMES[method].replace("\n", " "), "source": ESTIMATED}
    return about | {"value": value, "status": "ok", "how": HOW} | more


def told(row: Any, **more: Any) -> dict[str, Any]:
    """Columns of a published value."""
    about = {"method": row.method, "source": PUBLISHED, "value": float(row.value), "unit": row.unit}
    about |= {"label": NAMES.get(row.method, row.method).replace("\n", " "), "status": "ok"}
    return about | {"how": row.source, "note": row.note, "sound": True} | more
