"""Rows of the benchmark of real models: who trains which configuration how (real_models.toml)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, Self

DATA = tomllib.loads(Path(__file__).with_name("real_models.toml").read_text())
SMOKE = DATA["smoke"]
FREE = "0g"
"""Part of a name of what has no cap."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training, in a process of its own."""

    case: str
    name: str
    how: str
    """Loop of one's own (real_loops.py), ``run`` or ``needs``."""
    model: str
    """Name of a configuration."""
    about_s: float
    """Seconds it may take on an H200, a folder of weights left out."""
    method: str = "stronghold"
    batch: int = 4
    seq: int = 2048
    microbatches: int = 1
    """0 where the planner is to choose."""
    dtype: str = "bf16"
    compile: str = "auto"
    """Whether `workbench run` compiles layers."""
    steps: int = 8
    ranks: int = 1
    gib: float = 0
    """Budget of each device; 0 for all there is."""
    host: str = ""
    """Budget of the host, in words."""
    splits: Sequence[int] = ()
    """Numbers of micro-batches to try in turn while the device's memory does not suffice: peers
    compute activations again, so that the fewest are the fastest."""
    text: str = ""
    """``rows`` for rows of documents."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of TrainStream's."""
    smoke: bool = False
    folder: str = ""
    """Folder of the weights, one above which is all else that trainings share."""
    began: float = 0.0
    """When its process was started, seconds since 1970."""

    @property
    def label(self) -> str:
        return f"{self.case}/{self.name}"

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration, as transformers reads it."""
        return config_of(self.model, smoke=self.smoke)

    @property
    def cap(self) -> str | None:
        """Budget of the device, in words."""
        if not self.gib:
            return None
        return f"{self.gib * SMOKE['mib_per_gib']:g}MiB" if self.smoke else f"{self.gib:g}GiB"

    def small(self) -> Self:
        """On any machine, in seconds."""
        steps, gib = SMOKE["steps"] * (1 + (self.steps > 100)), self.gib
        if self.method == "fsdp":  # whose memory nobody can cap without a GPU
            gib = 0
        how = {"seq": SMOKE["seq"], "host": "", "about_s": 60.0, "smoke": True}
        return replace(self, steps=steps, gib=gib, **how)

    def to_json(self) -> str:
        """Words for the command line of a process."""
        return json.dumps(asdict(self))


def config_of(model: str, *, smoke: bool = False) -> dict[str, Any]:
    """Configuration of a model; of a tiny one of its kind."""
    return DATA["models"][model] | (SMOKE["config"] if smoke else {})


def rows(only: Sequence[str] = (), *, smoke: bool = False) -> list[Row]:
    """Rows whose case, or ``case/name``, matches a pattern, in the order of the patterns; all where
    there are none, and of those for `smoke` one of each kind. Raises ValueError for a pattern that
    matches nothing."""
    every = [row for told in DATA["rows"] for row in _each(told)]
    for pattern in only:
        if not any(_matches(row, pattern) for row in every):
            known = ", ".join(dict.fromkeys(row.case for row in every))
            raise ValueError(f"nothing matches {pattern!r}; cases are {known}, and see --list")
    found = {row.label: row for pattern in only for row in every if _matches(row, pattern)}
    if not only:
        found = {row.label: row for row in every}
    if smoke and not only:
        kinds = {(row.how, row.method, row.text): row for row in reversed(every)}
        found = {row.label: row for row in reversed(kinds.values())}
    return [row.small() if smoke else row for row in found.values()]


def _matches(row: Row, pattern: str) -> bool:
    return fnmatchcase(row.case, pattern) or fnmatchcase(row.label, pattern)


def _each(told: Mapping[str, Any]) -> Iterator[Row]:
    each = told.get("each", {})
    for values in product(*each.values()):
        own = {**told, **dict(zip(each, values, strict=True))}
        own.pop("each", None)
        name = own["name"].format(**own).replace(FREE, "free")
        yield Row(**own | {"name": name})
