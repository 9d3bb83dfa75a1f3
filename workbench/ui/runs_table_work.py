"""Work of the runs table in the helper process (helper_process.py): drawing, planning, writing.

Arguments and answers are plain data. Nothing is kept between two questions.
"""

from __future__ import annotations

import base64
import json
from io import BytesIO
from typing import Any

from matplotlib.figure import Figure

from workbench.figures.style import styled
from workbench.runs.store import Store
from workbench.ui.runs_table import RunsTable
from workbench.ui.runs_table_compare import Comparison
from workbench.ui.runs_table_draw import draw
from workbench.ui.runs_table_plot import Plot
from workbench.ui.runs_table_query import Query

SCREEN_DPI = 150
"""A page-wide figure is then 1050 pixels wide: sharp at 1280 x 720 and on a projector."""


def picture(order: str) -> str:
    """A plot as PNG, in base 64, of its order as JSON."""
    return _png(draw(json.loads(order)))


def save_plot(root: str, plot: dict[str, Any], query: dict[str, Any], name: str) -> list[str]:
    """`RunsTable.save` by the folder's path; returns file names."""
    return [path.name for path in _runs_table(root).save(Plot(**plot), name, _query(query))]


def save_table(root: str, query: dict[str, Any], name: str) -> list[str]:
    """The rows of a query as CSV; returns the file's name."""
    return [_runs_table(root).export_csv(name, _query(query)).name]


def compared(root: str, key_a: str, key_b: str) -> dict[str, Any]:
    """Everything of a `Comparison`, and its figure."""
    pair = Comparison(Store(root), key_a, key_b)
    return {
        "names": list(pair.names),
        "notes": pair.notes(),
        "settings": pair.settings(),
        "results": pair.results(),
        "bytes": pair.bytes_moved(),
        "lanes": pair.lanes(),
        "png": _png(pair.figure()),
    }


def save_compared(root: str, key_a: str, key_b: str, name: str) -> list[str]:
    """A comparison's figure and table as files; returns their names."""
    return [path.name for path in Comparison(Store(root), key_a, key_b).save(name)]


def timeline(root: str, key: str) -> dict[str, Any]:
    """Plain data of a run's timeline; raises ValueError where it kept none."""
    from workbench.ui.timeline_run import run_timeline

    return run_timeline(Store(root), key)


def _runs_table(root: str) -> RunsTable:
    runs_table = RunsTable(Store(root))
    runs_table.refresh()
    return runs_table


def _query(data: dict[str, Any]) -> Query:
    return Query(**{**data, "columns": tuple(data["columns"])})


def _png(figure: Figure) -> str:
    data = BytesIO()
    with styled():
        figure.savefig(data, format="png", dpi=SCREEN_DPI, metadata={"Software": None})
    return base64.b64encode(data.getvalue()).decode()
