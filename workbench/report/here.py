"""What was measured on named hardware, as parts of the report: goals and rows, steps and lanes."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from workbench.exhibits.here import HereSession
from workbench.figures.lanes_table import NEAR, SHOWN
from workbench.report.outcomes import Outcome
from workbench.report.page import Cell, Html, drawing, facts, table, tag

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
LANES_COLUMNS = {
    "case": "case",
    "label": "method",
    "step_seconds": "step (s)",
    "samples_per_second": "samples/s",
    **{f"{lane}_share": f"{lane} busy" for lane in SHOWN},
    "traffic_bytes_per_s": "host memory, mean (B/s)",
    "ceiling_bytes_per_s": "its ceiling (B/s)",
    "full_share": f"above {NEAR:.0%} of it",
    "bound_samples_per_second": "bound (samples/s)",
    "goal_samples_per_second": "goal (samples/s)",
    "commit": "commit",
}
"""The same of the steps that are shown lane by lane; shares are of the step."""


SERVERS_COLUMNS = {
    "label": "method",
    "ranks": "GPUs",
    "layers": "layers",
    "hidden": "hidden",
    "batch": "minibatch",
    "dtype": "type",
    "clip": "clip",
    "device_cap_gib": "cap of a GPU (GiB)",
    "host_cap_gib": "host cap (GiB)",
    "status": "status",
    "samples_per_second": "samples/s",
    "share": "of data parallel",
    "step_ratio": "step: predicted / measured",
    "peak_device_gib": "device peak (GiB)",
    "peak_ratio": "peak: predicted / measured",
    "host_gib": "host (GiB)",
    "moved": "host links (weights)",
    "planned_moved": "planned (weights)",
    "final_loss": "final loss",
    "how": "how",
}
"""The same of the runs on several GPUs."""


def measured_on(tables: Iterable[pd.DataFrame]) -> str:
    """The named hardware whose committed rows stand in these figures; empty where none does."""
    found = {
        row.hardware
        for rows in tables
        for row in rows[(rows["source"] == "measured") & (rows["variant"] != "")].itertuples()
    }
    return "; ".join(sorted(found))


def here_section(
    session: HereSession,
    outcome: Outcome | None,
    cell: Cell,
    columns: dict[str, str] = COLUMNS,
) -> list[Html]:
    """Figure, goals and rows (their `columns`); where nothing was measured, that."""
    rows = session.rows()
    about = (
        "Rows of this project's benchmark, measured and committed: nothing runs for them, and they "
        "are the same at every size."
    )
    goals = [tag("h3", "Goals"), table(session.verdict(rows), cell)]
    return _section(session, outcome, rows, about, goals, columns)


def lanes_section(session: HereSession, outcome: Outcome | None) -> list[Html]:
    """Figure, bounds and shares; where no step was measured, that."""
    rows = session.rows()
    about = (
        "Single steps of this project's benchmark, measured and committed: nothing runs for them, "
        "and they are the same at every size."
    )
    bounds = [tag("h3", "Bounds"), table(session.verdict(rows))] if len(rows) else []
    return _section(session, outcome, rows, about, bounds, LANES_COLUMNS)


def _section(
    session: HereSession,
    outcome: Outcome | None,
    rows: pd.DataFrame,
    about: str,
    judged: list[Html],
    columns: dict[str, str],
) -> list[Html]:
    exhibit = session.exhibit
    out = [
        tag("h2", exhibit.TITLE, id=session.name),
        tag("p", exhibit.CLAIM),
        tag("p", about, class_="soft"),
    ]
    if outcome is not None and not outcome.ok:
        out.append(tag("p", f"It did not run to its end: {outcome.message}", class_="warn"))
    if len(rows):
        out.append(drawing(session.draw(rows), f"{exhibit.TITLE}: {exhibit.CLAIM}"))
    shown = rows.reindex(columns=list(columns)).rename(columns=columns)
    counted = f"Data: {len(rows)} {session.COUNTED}"
    listed = tag("details", tag("summary", counted), table(shown)) if len(rows) else Html()
    return [*out, *judged, facts(session.facts(rows)), listed]
