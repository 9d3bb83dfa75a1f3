"""Made-up records: what figures do must not depend on how a run came about."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from tests.forks.server import FOLDER
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits import find
from workbench.exhibits.stronghold import sizes
from workbench.figures import rows as tidy
from workbench.runs.search import at_layers

SMOKE = sizes.named("smoke")
LARGEST = {"megatron-lm": 6, "l2l": 20, "zero-offload": 16, "zero-infinity": 14}
"""Layers that a search found."""


@cache
def paper_rows(figure: str) -> pd.DataFrame:
    """Published and simulated values of a figure; do not change them."""
    return tidy.join(tidy.published(figure), simulated(figure))


def simulated(figure: str, make: Callable[[str], pd.DataFrame] = tidy.simulated) -> pd.DataFrame:
    """Made once for all workers of a run of tests: figure 6a takes five seconds."""
    file = Path(os.environ[FOLDER], f"simulated-{figure}")
    with file.with_suffix(".lock").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        if not file.exists():
            make(figure).to_pickle(file)
    return pd.read_pickle(file)


def specs_of(figure: str, size: sizes.StrongholdSize) -> list[RunSpec]:
    """The runs of a figure; of 7a at the sizes that searches found."""
    exhibit = find(figure)
    return exhibit.specs(size, LARGEST) if figure == "7a" else exhibit.specs(size)


def record(spec: RunSpec, seconds: float = 0.5, /, **changes: Any) -> RunRecord:
    """A run of the spec that took `seconds` a step and was predicted to take a tenth more."""
    ok = changes.get("status", "ok") == "ok"
    window = getattr(spec.options, "window", "auto")
    values = {
        "key": f"{spec.method}-{spec.model.layers}-{window}-{spec.steps}",
        "method": spec.method,
        "status": "ok",
        "spec": spec.to_dict(),
        "losses": [5.0, 4.5, 4.2] if ok else [],
        "step_seconds": [9.0, seconds * 0.9, seconds, seconds * 1.1] if ok else [],
        "peak_bytes": {"device": 2**20, "host": 2**21, "disk": 0} if ok else {},
        "moved_bytes": {"load": 10, "store": 5, "read": 0, "write": 0} if ok else {},
        "parameters": spec.model.parameters if ok and spec.model.family == "gpt" else None,
        "window": None if window == "auto" else window,
        "predicted": {
            "step_seconds": seconds * 1.1,
            "peak_bytes": {"device": 2**20, "host": 2**21, "disk": 0},
            "moved_bytes": {"load": 10, "store": 5, "read": 0, "write": 0},
            "binding": "compute: busy 90% of a step",
        }
        if ok
        else {},
        "engine": "workbench",
        "started": "2026-11-21T06:00:00+00:00",
        "seconds": 12.0,
        "provenance": {"cpu": "Made-up", "cores": 2, "gpus": [], "packages": {}},
    }
    return RunRecord(**{**values, **changes})


def out_of_memory(spec: RunSpec, tier: str = "host") -> RunRecord:
    message = f"the {tier} tier is out of memory"
    return record(spec, status=f"oom_{tier}", message=message, refused=True)


def with_layers(spec: RunSpec, layers: int) -> RunSpec:
    return at_layers(spec, layers)
