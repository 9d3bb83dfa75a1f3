"""What was measured on named hardware, as a part of the report: the goals, and every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.here_session import facts as facts_of
from workbench.report.page import Html, drawing, facts, table, tag
from workbench.session import Session

if TYPE_CHECKING:
    from workbench.report import Outcome

COLUMNS = {
    "label": "method",
    "layers": "layers",
    "batch": "batch",
    "dtype": "type",
    "clip": "clip",
    "device_cap_gib": "device cap (GiB)",
    "host_cap_gib": "host cap (GiB)",
    "status": "status",
    "samples_per_second": "samples/s",
    "share": "of plain",
    "step_ratio": "step: predicted / measured",
    "peak_device_gib": "device peak (GiB)",
    "peak_ratio": "peak: predicted / measured",
    "host_gib": "host (GiB)",
    "disk_gib": "disk (GiB)",
    "final_loss": "final loss",
    "how": "how",
}
"""Columns of the rows, as the report names them."""


def measured_on(tables: Iterable[pd.DataFrame]) -> str:
    """The named hardware whose committed rows stand in these figures; empty where none does."""
    found = {
        row.hardware
        for rows in tables
        for row in rows[(rows["source"] == "measured") & (rows["variant"] != "")].itertuples()
    }
    return "; ".join(sorted(found))


def here_section(
    session: Session, outcome: Outcome | None, cell: Callable[[str, Any], Html | None]
) -> list[Html]:
    """Figure, goals and rows; where nothing was measured, that."""
    exhibit, rows = session.exhibit, session.rows()
    out = [
        tag("h2", exhibit.TITLE, id=session.name),
        tag("p", exhibit.CLAIM),
        tag("p", "Rows of this project's benchmark, measured and committed: nothing runs for them, "
            "and they are the same at every size.", class_="soft"),
    ]  # fmt: skip
    if outcome is not None and not outcome.ok:
        out.append(tag("p", f"It did not run to its end: {outcome.message}", class_="warn"))
    if len(rows):
        out.append(drawing(session.draw(rows), f"{exhibit.TITLE}: {exhibit.CLAIM}"))
    shown = rows.reindex(columns=list(COLUMNS)).rename(columns=COLUMNS)
    listed = tag("details", tag("summary", f"Data: {len(rows)} settings"), table(shown))
    return [
        *out,
        tag("h3", "Goals"),
        table(session.verdict(rows), cell),
        facts(facts_of(rows)),
        listed if len(rows) else Html(),
    ]
