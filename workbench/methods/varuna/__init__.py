"""Varuna (Athlur et al., EuroSys 2022): a user's module as an elastic pipeline.

    from workbench.methods.varuna import CutPoint, Varuna

The names are imported when they are used: planning needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HOMES = {"CutPoint": "cut_point", "Varuna": "pipeline"}
"""Public name -> its module."""
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
