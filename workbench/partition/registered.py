"""Registered partitions: the stages of a model, on disk, for runs to train.

    RESULTS/partitions/NAME.json

A file holds the graph, the stage and the device of each node, their analysis, and the model and
sizes that they hold for, under a checksum. It is written whole or not at all.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from workbench.core.files import FileLock
from workbench.core.model_spec import ModelSpec
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed, write_sealed
from workbench.partition.analysis import Analysis
from workbench.partition.graph import GraphRows, graph_of_rows
from workbench.partition.methods import Ask

FORMAT = 1
NAME = re.compile(r"[^\W_][\w.+-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A partition with all that it holds for. Raises ValueError for parts that do not fit."""

    format: int
    name: str
    task: str
    model: ModelSpec
    samples: int
    """In the micro-batch whose costs the graph has."""
    dtype: str
    ask: Ask
    """Settings that every method has."""
    settings: dict[str, str | int | float | bool | list[str | int] | None]
    """Settings of the method."""
    costs: str
    """How the costs were obtained."""
    graph: GraphRows
    stage: dict[str, int]
    """Of each node."""
    device: dict[str, int]
    """Of each node."""
    cut: list[int]
    """Units of each stage, where stages are runs of a model's units; else empty."""
    map: list[int]
    """Device of each stage."""
    analysis: Analysis
    checked: str
    """How the stages were compared with the module, or why they were not."""
    calls: str = ""
    """Calls of each stage (core/call_sets.py), where stages are such and no runs of units."""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format}; this version reads {FORMAT}")
        graph, stages = graph_of_rows(self.graph, "its graph"), range(len(self.map))
        if {node.id for node in graph.nodes} != {*self.stage} or {*self.stage.values()} != {
            *stages
        }:
            raise ValueError("stage must have each node of the graph and each stage of the map")
        if self.device != {name: self.map[stage] for name, stage in self.stage.items()}:
            raise ValueError("the devices of the map are not those of the nodes")
        counts = Counter(self.stage.values())
        if self.cut and self.cut != [counts[stage] for stage in stages]:
            raise ValueError("the cut is not that of the nodes' stages")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"model": self.model.to_dict()}

    def stages_for(self, model: ModelSpec, ranks: int) -> dict[str, Any]:
        """Model, cut and map for a run, as a spec has them. Raises ValueError where the partition
        is of another model, for other ranks, or of stages that no run can have."""
        told = f"the partition {self.name!r}"
        for field in fields(ModelSpec):
            own, other = getattr(self.model, field.name), getattr(model, field.name)
            if own != other and (other or field.name != "config_digest"):  # not looked at yet
                raise ValueError(
                    f"{told} is of another model: {field.name} is {own!r} there, and {other!r} in "
                    "this run"
                )
        cut, places = self.stages_on(ranks)
        found: dict[str, Any] = {"cut": cut, "map": places}
        return found | ({"model": replace(model, calls=self.calls)} if self.calls else {})

    def stages_on(self, ranks: int) -> tuple[str, str]:
        """Cut and map, whatever the model is; each set of calls is a unit. Raises ValueError as
        `stages_for`."""
        told = f"the partition {self.name!r}"
        if self.ask.devices != ranks:
            raise ValueError(
                f"{told} is for {self.ask.devices} ranks, and the run has {ranks}; partition again "
                f"with -p {ranks}"
            )
        if not self.cut and not self.calls:
            why = "one stage" if len(self.map) < 2 else "calls that an older version did not note"
            raise ValueError(f"{told} is of {why}, and no run trains it; partition again")
        cut = self.cut or [1] * len(self.map)
        return " ".join(map(str, cut)), " ".join(map(str, self.map))


def path_of(results: Path, name: str) -> Path:
    """File of a partition. Raises ValueError for a name that no file should have."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a partition; use letters, digits, and . _ + - after the first"
        )
    return results / "partitions" / f"{name}.json"


def known(results: Path) -> list[str]:
    """Names of the partitions that are registered."""
    return sorted(path.stem for path in (results / "partitions").glob("*.json"))


def read(results: Path, name: str) -> Registered:
    """The partition of that name. Raises ValueError where there is none, naming those that there
    are, and where its file is damaged or of another format."""
    if not NAME.fullmatch(name) or not (path := path_of(results, name)).is_file():
        names = ", ".join(known(results)) or "none; workbench partition TASK makes one"
        raise ValueError(f"partition is {name!r}; registered: {names}")
    where = f"the partition {path}"
    return read_as(Registered, read_sealed(path, where, needed=True), where)


def check_free(results: Path, name: str) -> Path:
    """File of a new partition. Raises ValueError where there is one of that name."""
    path = path_of(results, name)
    if path.exists():
        raise ValueError(
            f"there is a partition {name!r} already; give another name with -o, or --force"
        )
    return path


def made(**values: Any) -> Registered:
    """Make one of its fields, whose parts may be as in a file."""
    return read_as(Registered, {"format": FORMAT, **values}, "the partition")


def write(results: Path, one: Registered, *, force: bool = False) -> Path:
    """Register a partition, whole or not at all; returns its file. Raises ValueError as
    `check_free`, unless `force`; OSError."""
    path = path_of(results, one.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock.take(path.parent / ".lock", wait=True):
        if not force:
            check_free(results, one.name)
        write_sealed(path, one.to_dict())
    return path
