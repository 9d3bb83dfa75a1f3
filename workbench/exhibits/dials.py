"""Reads the sizes of a system's exhibits: tables in ``sizes/*.toml``, a dial a field.

* ``smoke``: any laptop, no GPU, a few seconds a run.
* ``small``: the GPUs there are, minutes.
* ``paper``: the published models and budgets. Without a GPU they are not run but simulated.

Tests have a fourth, ``tiny``, of seconds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.core.bytesize import parse_bytes
from workbench.core.schema import read_as

SIZES = ("smoke", "small", "paper")
FOLDER = Path(__file__).with_name("sizes")
MEMORY = "memory"
"""How fields end that are written as ``64MiB`` and read in bytes."""


def named(
    system: str,
    kind: type,
    size: str,
    made: Callable[[dict[str, Any]], dict[str, Any]] = lambda dials: dials,
) -> Any:
    """The dials of a size, as `kind`, whose fields are `made` of the table's. Raises ValueError for
    an unknown size, naming the known ones, and for a field that does not fit."""
    known = tomllib.loads((FOLDER / f"{system}.toml").read_text())
    if size not in known:
        raise ValueError(f"unknown size {size!r}; known: {', '.join(SIZES)}")
    return read_as(kind, made(_in_bytes(known[size])) | {"name": size}, f"the size {size}")


def _in_bytes(told: dict[str, Any]) -> dict[str, Any]:
    found = {name: _in_bytes(v) if isinstance(v, dict) else v for name, v in told.items()}
    return {
        name: parse_bytes(value) if name.endswith(MEMORY) and isinstance(value, str) else value
        for name, value in found.items()
    }
