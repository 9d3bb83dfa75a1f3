"""Work of the results page in the helper process (helper_process.py): drawing, reading, writing.

Arguments and answers are plain data. `keys`: runs by key; None for all.
"""

from __future__ import annotations

import base64
import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.host import give_back_heap
from workbench.figures.style import styled
from workbench.runs.columns import Row, find_fields
from workbench.runs.store import Store
from workbench.schedule.trace import trace_events
from workbench.ui.previewer import index_of
from workbench.ui.runs.compare import compare, losses_of
from workbench.ui.runs.files import export, export_rows, inside, save_figure
from workbench.ui.runs.plot import Plot, draw, draw_losses, plot_rows, words_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Links = list[dict[str, str]]
"""``name, data``: files to download, in base64; without data where a link cannot hold them."""
SCREEN_DPI = 150
"""A page-wide figure is then 1050 pixels wide: sharp at 1280 x 720 and on a projector."""
LINK_BYTES = 1_500_000
"""Browsers take links of up to 2 MB."""


def picture(root: str, keys: list[str] | None, plot: list[Any], pointed: bool) -> Row:
    """A plot of some runs, and its words."""
    found, fields = _points(root, keys, plot)
    figure = draw(Plot(*plot), found, fields)
    return _shown(figure, words_of(Plot(*plot), found, fields), pointed)


def losses(root: str, keys: list[str], pointed: bool) -> Row:
    """The losses of some runs over each other, and their names."""
    found, figure = _overlaid(root, keys)
    none = "; ".join(name for name, values in found.items() if not values)
    words = f"Losses over steps of {'; '.join(found)}." + (f" No step yet: {none}." if none else "")
    return _shown(figure, words, pointed)


def _overlaid(root: str, keys: list[str]) -> tuple[Row, Figure]:
    """Losses of some runs by name, and their drawing."""
    store = Store(root)
    found, records = losses_of(store, keys), map(store.find, keys)
    return found, draw_losses(found, [record.method if record else "" for record in records])


def compared(root: str, keys: list[str]) -> list[Row]:
    """The table of `compare`."""
    return compare(Store(root), keys)


def timeline(root: str, key: str) -> dict[str, Any]:
    """Plain data of a run's timeline; raises ValueError where it kept none."""
    from workbench.ui.timeline.run import run_timeline

    return run_timeline(Store(root), key)


def save_plot(root: str, keys: list[str] | None, plot: list[Any], name: str) -> Links:
    """A plot as PDF and PNG, and the rows that it draws as CSV."""
    found, fields = _points(root, keys, plot)
    return _links(save_figure(Store(root), draw(Plot(*plot), found, fields), found, name))


def save_compared(root: str, keys: list[str], name: str) -> Links:
    """Losses of some runs as PDF and PNG, and all that is compared as CSV."""
    return _links(
        save_figure(Store(root), _overlaid(root, keys)[1], compare(Store(root), keys), name)
    )


def save_table(root: str, keys: list[str] | None, form: str, name: str) -> Links:
    """Some rows as CSV, JSONL or logs of TensorBoard."""
    return _links(export_rows(Store(root), _rows(root, keys), form, name))


def save_trace(root: str, keys: list[str], name: str) -> Links:
    """The measured timelines of runs as one trace, for ui.perfetto.dev."""
    from workbench.ui.timeline.run import read_timeline

    store, rows = Store(root), []
    kept = [key for key in keys if (store.folder(key) / "timeline.json").exists()]
    for place, key in enumerate(kept or keys):
        events = read_timeline(store, key).events
        rows += trace_events(events, source=f"measured, run {key}", first_pid=1000 * place)
    text = json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}, allow_nan=False)
    files = export(
        store, name, lambda stem: stem.with_name(f"{stem.name}.trace.json").write_text(text)
    )
    return _links(files)


def reports(root: str, name: str, keys: list[str] | None) -> Links:
    """The reports that lie in the results folder; raises ValueError where there is none."""
    store = Store(root)
    found = [inside(store, path) for path in sorted(store.root.glob("reports/*/report.html"))]
    if not found:
        raise ValueError("there is no report yet; `workbench reproduce` writes one")
    return [{**link, "name": f"{path.parent.name}-{link['name']}"} for path in found
            for link in _links([path])]  # fmt: skip


def _rows(root: str, keys: list[str] | None) -> list[Row]:
    index = index_of(root)
    index.refresh()
    rows = index.rows()
    if keys is None:
        return rows
    by_key = {row["key"]: row for row in rows}
    return [by_key[key] for key in keys if key in by_key]


def _points(root: str, keys: list[str] | None, plot: list[Any]) -> tuple[list[Row], Row]:
    rows = _rows(root, keys)
    fields = find_fields(rows)
    points = plot_rows(Plot(*plot), rows, fields)
    del rows
    give_back_heap()
    return points, fields


def _links(paths: list[Path]) -> Links:
    found = []
    for path in paths:
        name, data = path.name, path.read_bytes() if path.is_file() else b""
        if len(data) > LINK_BYTES:
            name, data = f"{name}.gz", gzip.compress(data)
        kept = base64.b64encode(data if len(data) <= LINK_BYTES else b"").decode()
        found.append({"name": name, "data": kept})
    return found


def _shown(figure: Figure, words: str, pointed: bool) -> Row:
    """As PNG in base 64, or as plotly's data to point at; and in words."""
    if pointed:
        from plotly.tools import mpl_to_plotly

        return {"words": words, "plotly": json.loads(mpl_to_plotly(figure).to_json())}
    data = BytesIO()
    with styled():
        figure.savefig(data, format="png", dpi=SCREEN_DPI, metadata={"Software": None})
    return {"words": words, "png": base64.b64encode(data.getvalue()).decode()}
