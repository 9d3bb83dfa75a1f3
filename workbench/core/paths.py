"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path


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
