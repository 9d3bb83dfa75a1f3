"""Paths as people write them, and those that modules are found in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def user_path(written: str | Path) -> Path:
    """The path, with ``~`` and ``~somebody`` as home folders. Raises ValueError for a home folder
    that is not known, and for a path that no file can have."""
    if "\0" in str(written):
        raise ValueError(f"{str(written)!r} is no path: it holds a NUL")
    try:
        return Path(written).expanduser()
    except RuntimeError:
        home = Path(written).parts[0]
        raise ValueError(
            f"there is no home folder {home!r} for the path {str(written)!r}; write it out"
        ) from None


def import_path() -> dict[str, str]:
    """Variables by which a process of ours can import what this one can beyond its installation,
    but for the current folder: that stands after the library there (`custom.look_here`)."""
    own = (sys.prefix, sys.base_prefix)
    root = str(Path(__file__).resolve().parents[2])
    extra = [p for p in sys.path if p and not p.startswith(own) and p != os.getcwd()]
    path = os.pathsep.join(dict.fromkeys([root, *extra]))
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def as_text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields, a path among them as its text, also of what is kept in a file."""
    return {n: os.fspath(v) if isinstance(v, os.PathLike) else v for n, v in fields.items()}
