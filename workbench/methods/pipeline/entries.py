"""Every order as a method: ``entries.NAME`` offers `plan`, `plan_sizes` and `train`."""

from __future__ import annotations

from workbench.methods.pipeline import planner
from workbench.methods.pipeline.orders import ORDERS
from workbench.training.on_ranks import OnRanks, on_ranks


def __getattr__(name: str) -> OnRanks:
    if name not in ORDERS:
        raise AttributeError(name)
    return on_ranks(planner, name)
