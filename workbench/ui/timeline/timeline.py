"""The timeline of a run as a widget: predicted above measured, at one scale, to zoom into.

    from workbench.runs.store import Store
    from workbench.ui.timeline.timeline import timeline_of

    timeline_of(Store(), "0303d1c12d2f75e2")

The script and the style travel inside the notebook's own connection: nothing is fetched, and
nothing is sent back while somebody zooms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.runs.store import Store
from workbench.ui.timeline import page as timeline_page
from workbench.ui.timeline.data import timeline_data
from workbench.ui.timeline.run import run_timeline


class Timeline(anywidget.AnyWidget):
    """Events of one or two sources over time. Raises ValueError as `timeline_data` does."""

    _esm = timeline_page.script()
    _css = timeline_page.style()
    data = traitlets.Dict().tag(sync=True)
    """Data made by `timeline_data`; another value shows another run in this widget."""

    def __init__(self, *, data: dict[str, Any] | None = None, **events: Any) -> None:
        """Arguments of `timeline_data`, `measured` and `predicted` events and more; or `data` that
        is ready-made."""
        super().__init__(data=timeline_data(**events) if data is None else data)

    def save_html(self, path: str | Path) -> Path:
        """Write the view as one file that works offline; returns its path."""
        return timeline_page.save_html(self.data, path)


def timeline_of(store: Store, key: str) -> Timeline:
    """The timeline of a run in the store, predicted above measured.

    Raises ValueError, in one sentence, where the run kept no timeline.
    """
    return Timeline(data=run_timeline(store, key))
