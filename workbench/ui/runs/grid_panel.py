"""The list of runs: DataTables, as itables ships it, over rows that are replaced in place.

Nothing is fetched: script and style travel inside the notebook's own connection. Of itables this
takes the bundle and not its widget `ITable`, which makes a whole new table for each change: the
field in which somebody types would be gone, and pandas would be in every kernel.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import anywidget
import traitlets

HERE = Path(__file__).parent


def bundled(suffix: str) -> str:
    """The script or the style of DataTables in itables, which is found and not imported.

    What the script exports is an object ``itables`` for the code behind it.
    """
    (folder,) = find_spec("itables").submodule_search_locations
    text = (Path(folder) / "html" / f"dt_bundle.{suffix}").read_text(encoding="utf-8")
    return re.sub(r"export\{([^}]*)\};?", _as_object, text) if suffix == "js" else text


def _as_object(exports: re.Match[str]) -> str:
    pairs = (pair.split(" as ") for pair in exports[1].split(","))
    return f"const itables={{{','.join(f'{name}:{local}' for local, name in pairs)}}};"


class RunsGrid(anywidget.AnyWidget):
    """A table with one row a run; rows are chosen by clicking or by Space."""

    _esm = bundled("js") + (HERE / "runs_grid.js").read_text()
    _css = bundled("css") + (HERE / "runs_grid.css").read_text()
    columns = traitlets.List(traitlets.Dict()).tag(sync=True)
    """``name, title, number, shown`` of each; the first is the run's key."""
    rows = traitlets.Bytes().tag(sync=True)
    """JSON, compressed by gzip: a list a column, numbers as numbers, everything else as text; empty
    for no runs."""
    chosen = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Keys, the first chosen first."""
    listed = traitlets.List(traitlets.Unicode(), None, allow_none=True).tag(sync=True)
    """Keys that the filters keep, in the order shown; None without a filter."""
