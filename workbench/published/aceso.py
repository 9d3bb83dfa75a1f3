"""Aceso's published small database, plans and numbers, as they are committed here.

Profiles, plans and values are of `microsoft/SuperScaler`, branch EuroSys24AE at 53d0036, MIT
licence (aceso_licence.txt): profiles are its files, plans and costs come out of its search and
its cost model on them.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).resolve().parent
DATABASE = FOLDER / "aceso_small.csv.gz"
"""79 files: GPT 1.3B, T5 770M, Wide-ResNet 1B and their collectives on 4 V100 GPUs of a server."""
PLANS = FOLDER / "aceso_plans.csv.gz"
"""12 plans: the best of its search for numbers of stages, and of its grid."""

SEARCHES = FOLDER / "aceso_searches.csv"
"""This project's own: plans of the large settings, found on the published profiles of GPT."""


def costs() -> pd.DataFrame:
    """What its cost model says of each stage of those plans; milliseconds with two decimals."""
    return pd.read_csv(FOLDER / "aceso_costs.csv")


def values() -> pd.DataFrame:
    """Published values: ``figure`` (``small`` for the README's), ``model``, ``size``, ``layers``,
    ``gpus``, ``series``, ``quantity``, ``value``, ``unit``, ``source``, ``note``."""
    return pd.read_csv(FOLDER / "aceso.csv", dtype={"figure": str, "layers": "Int64"})


def searches(setting: str) -> pd.DataFrame:
    """The plan that each search found: ``large`` (five sizes of GPT) or ``scale`` (GPT of 8 to
    1,024 layers on 8 devices), with the seconds that it took on one core. Columns: ``setting``,
    ``model``, ``size``, ``layers``, ``gpus``, ``search`` (megatron, alpa, faithful or ours),
    ``stages``, ``micro``, ``fits``, ``iteration_ms``, ``normal_mb`` and ``reserved_mb`` of the
    fullest device, ``explored``, ``cpu_seconds``, ``hardware``."""
    every = pd.read_csv(SEARCHES)
    return every[every["setting"] == setting]
