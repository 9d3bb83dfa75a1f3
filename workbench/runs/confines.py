"""Confines a page that others than its owner may use to names that it may give.

All that people type in a page becomes a sweep as plain data (ui/sweeps/control.py); so does a file
they choose. `confine` looks at all of it before a spec, a digest, a preview or a process is
made of it: paths must lie in the results folder, links followed, no function may be named, and no
other machine. A user of a notebook may name anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.core.model_spec import FUNCTION, GPT_FAMILY, MODULES
from workbench.model.corpus import BUNDLED
from workbench.model.named import NAMED
from workbench.model.tokenizer_folder import is_folder

INSIDE = "here it must lie in the results folder"


def confine(data: Any, root: Path, name: str = "") -> None:
    """Raise ValueError for the first value in a sweep's plain data, at whatever depth, that names
    what a page may not."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            confine(value, root, str(key).removeprefix("model."))
    elif isinstance(data, list | tuple):
        for value in data:
            confine(value, root, name)
    elif isinstance(data, str) and (refused := _refused(name, data, root)):
        raise ValueError(f"{name} is {data!r}; {refused}")


def inside(path: Path, root: Path) -> bool:
    """Whether a path leads into the folder, its links followed."""
    try:
        return path.expanduser().resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a circle of links, nobody's home, a NUL
        return False


def _refused(name: str, value: str, root: Path) -> str:
    """Why a field may not have the value."""
    path = Path(value)
    match name:
        case "family" if FUNCTION.fullmatch(value):
            return "here no function can be named; start it from a notebook or the command line"
        case "executor" if value != "local":  # a cluster of Ray listens on all interfaces
            return "here it must be local"
        case "start_from":  # a folder, else a key among the same results
            folder = os.path.isdir(os.path.expanduser(value))
            fits = not value or inside(path if folder else root / "runs" / path, root)
        case "results":
            fits = inside(root / path, root)
        case "family":
            fits = value in (GPT_FAMILY, *MODULES, *NAMED) or inside(path, root)
        case "plan":  # a file, else one that a run kept among the same results
            kept = root / "plans" / f"{value}.json"
            fits = not value or (inside(kept, root) and (kept.is_file() or inside(path, root)))
        case "pretrained":
            fits = not value or inside(path, root)
        case "weights":  # a place, else a key among the same results
            key = inside(root / "runs" / path, root) and not path.exists()
            fits = value in ("auto", "random") or key or inside(path, root)
        case "tokenizer":
            fits = not is_folder(value) or inside(path, root)
        case _:
            named = name in ("text", "eval_text") and value not in ("", *BUNDLED)
            fits = not named or inside(path, root)
    return "" if fits else INSIDE
