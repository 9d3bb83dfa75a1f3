"""Varuna (Athlur et al., EuroSys 2022): a user's module as an elastic pipeline.

    from workbench.methods.varuna import AutoConfig, CutPoint, Varuna

The names are imported when they are used: planning needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES = {
    "AutoConfig": f"{__name__}.autoconfig",
    "CutPoint": "workbench.model.cut_point",
    "Profiler": f"{__name__}.profiler",
    "Varuna": f"{__name__}.pipeline",
    "get_this_rank_config_varuna": f"{__name__}.autoconfig",
    "get_varuna_config": f"{__name__}.autoconfig",
}
"""Public name -> its module."""
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
