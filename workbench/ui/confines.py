"""The one door of a page that others than its owner may use: what it may name.

All that people type in a page becomes a sweep as plain data (sweep_control.py), as a sweep file is
that they choose. `confine` looks at all of it before a spec, a digest, a preview or a process
is made of it: paths must lie in the results folder, links followed, no function may be named, and
no other machine. Whoever has a notebook names what they like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.model.custom import is_custom
from workbench.model.spec import GPT_FAMILY, MODULES

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
    elif isinstance(data, str) and (refused := RULES.get(name, _anything)(data, root)):
        raise ValueError(f"{name} is {data!r}; {refused}")


def inside(path: Path, root: Path) -> bool:
    """Whether a path leads into the folder, its links followed."""
    try:
        return path.expanduser().resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a circle of links, nobody's home, a NUL
        return False


def _anything(value: str, root: Path) -> str:
    return ""


def _text(value: str, root: Path) -> str:
    return "" if value == "stdlib" or inside(Path(value), root) else INSIDE


def _family(value: str, root: Path) -> str:
    if value in (GPT_FAMILY, *MODULES):
        return ""
    if is_custom(value):
        return "here no function can be named; start it from a notebook or the command line"
    return "" if inside(Path(value), root) else INSIDE


def _run(value: str, root: Path) -> str:
    """A folder, else a key among the same results, as `History` takes it."""
    if not value:
        return ""
    try:
        named = Path(value).expanduser()
        path = named if named.is_dir() else root / "runs" / value
    except (OSError, RuntimeError, ValueError):
        return INSIDE
    return "" if inside(path, root) else INSIDE


def _results(value: str, root: Path) -> str:
    return "" if inside(root / value, root) else INSIDE


def _executor(value: str, root: Path) -> str:
    return "here it must be local or ray" if value.startswith("ray:") else ""


RULES: dict[str, Callable[[str, Path], str]] = {
    "text": _text,
    "family": _family,
    "start_from": _run,
    "results": _results,
    "executor": _executor,
}
"""Fields of a spec, its model and a sweep file that name a path, code or a machine -> why a value
is refused, empty where it is not. A tokenizer names nothing."""
