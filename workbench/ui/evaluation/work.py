"""Work of the evaluation in the helper process (helper_process.py): reading, planning, drawing.

Everything goes in and comes out as plain data. Nothing here runs a training.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

PUBLISHED = {"label": "method", "layers": "layers", "window": "window", "value": "value"}
"""Columns of the published numbers that are shown, if any row has them."""


def claim(figure: str, size: str, results: str) -> dict[str, Any]:
    """The claim, where the paper makes it, and its numbers."""
    from workbench.exhibits import open_exhibit

    session = open_exhibit(figure, size, results)
    exhibit = session.exhibit
    return {
        "name": session.name,
        "section": exhibit.section,
        "claim": exhibit.claim,
        "published": _published(exhibit.published()),
        "runs": exhibit.runs and not session.simulated,
    }


def preview(figure: str, size: str, results: str) -> list[dict[str, Any]]:
    """Runs that would be made, how long they take and what they need; a row a run, the last for
    all."""
    from workbench.exhibits import open_exhibit

    return _records(open_exhibit(figure, size, results).preview())


def show(figure: str, size: str, results: str) -> dict[str, Any]:
    """The figure of what there is so far, its verdicts, and where its numbers come from."""
    from workbench.exhibits import open_exhibit

    session = open_exhibit(figure, size, results)
    rows = session.rows()
    drawing = session.figure(rows)
    png = next(path for path in drawing.paths if path.suffix == ".png")
    sources = rows["source"].value_counts().to_dict() if "source" in rows else {}
    return {
        "png": base64.b64encode(png.read_bytes()).decode(),
        "width": drawing.width_px,
        "verdict": _records(session.verdict(rows)),
        "sources": {str(source): int(n) for source, n in sources.items()},
        "busy": sorted(set(rows["key"][rows["busy"] != ""])) if "busy" in rows else [],
        "provenance": _records(session.provenance()),
        "files": [path.name for path in drawing.paths],
    }


def doctor(results: str) -> list[dict[str, Any]]:
    """Report of `workbench doctor` on this machine; measures it if it was not measured before,
    which takes about half a minute."""
    from workbench.doctor import examine

    report = examine(Path(results), stored=True)
    parts = {"software": report.software, "methods": report.methods, "sizes": report.sizes}
    return [
        {"about": part, "what": found.name, "works": found.works, "how, or why not": found.detail}
        for part, findings in parts.items()
        for found in findings
    ]


def report(size: str, results: str) -> str:
    """Write the offline report of what there is at a size; returns where it lies."""
    from workbench.report import write_report

    return str(write_report(size, results))


def _published(rows: Any) -> list[dict[str, Any]]:
    if rows.empty:
        return []
    shown = rows[[name for name in PUBLISHED if rows[name].notna().any()]].copy()
    shown["value"] = [
        f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"
        for value, unit in zip(rows["value"], rows["unit"], strict=True)
    ]
    if "x" in rows and rows["x"].nunique() > 1 and "window" not in shown:
        shown.insert(1, "at", rows["x"])
    return _records(shown.rename(columns=PUBLISHED).drop_duplicates())


def _records(frame: Any) -> list[dict[str, Any]]:
    """Rows as people read them: short numbers, nothing where nothing is."""
    return [
        {str(name): _text(value) for name, value in row.items()} for row in frame.to_dict("records")
    ]


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
