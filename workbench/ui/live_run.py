"""Runs as they go on, below a notebook's cell: the newest line of progress, and losses."""

from __future__ import annotations

import io
import time
from html import escape
from typing import Any

from IPython.display import HTML, SVG, display
from matplotlib.figure import Figure

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.curves import draw_training
from workbench.figures.style import as_svg, styled
from workbench.runs.events import Event
from workbench.runs.progress import Progress
from workbench.runs.sweep import Sweep

EVERY_S = 2.0
"""Between two drawings: each takes a tenth of a second of the processor that may train."""
WORDS_S = 0.25
"""Between two lines of steps."""


class LiveRun(Progress):
    """Progress of one run, or of a sweep's runs one after the other."""

    def __init__(self, spec: RunSpec | None = None, sweep: Sweep | None = None) -> None:
        super().__init__(io.StringIO(), spec, sweep)
        self._losses: dict[int, float] = {}
        self._held: dict[int, float] = {}
        self._drawn = self._told = 0.0
        self._places: dict[type, Any] = {}
        """Kind of what is shown -> its place below the cell."""

    def on_event(self, event: Event) -> None:
        """Tell of it; take up a step or an evaluation."""
        super().on_event(event)
        if event["event"] == "point":
            self._losses, self._held = {}, {}
        elif event["event"] == "step":
            self._losses[event["step"] + 1] = float(event["loss"])
        elif event["event"] == "evaluated":
            self._held[event["step"]] = float(event["loss"])
        if self._losses and time.monotonic() - self._drawn > EVERY_S:
            self._draw()

    def finish(self, record: RunRecord) -> None:
        """Show the whole run, also one that was kept from before."""
        super().finish(record)
        self._losses = dict(enumerate(map(float, record.losses), start=1))
        self._held = {one["step"]: float(one["loss"]) for one in record.evaluations}
        if self._losses:
            self._draw()

    def line(self, text: str) -> None:
        """The newest line takes the place of the one before."""
        self._show(HTML(f"<p>{escape(text)}</p>"))
        self._told = time.monotonic()

    def passing(self, text: str, *, last: bool = False) -> None:
        """As `line`, where the last is not of just now."""
        if last or time.monotonic() - self._told > WORDS_S:
            self.line(text)

    def _draw(self) -> None:
        with styled():
            figure = Figure(figsize=(6, 2.6), layout="constrained")
            draw_training(figure.subplots(), self._losses, self._held)
        self._show(SVG(as_svg(figure)))
        self._drawn = time.monotonic()

    def _show(self, shown: HTML | SVG) -> None:
        place = self._places.get(type(shown))
        if place is None:
            self._places[type(shown)] = display(shown, display_id=True)
        else:
            place.update(shown)
