"""Losses of a run, drawn anew below a notebook's cell while it goes on."""

from __future__ import annotations

import time
from typing import Any

from IPython.display import SVG, display
from matplotlib.figure import Figure

from workbench.core.record import RunRecord
from workbench.figures.curves import draw_training
from workbench.figures.style import as_svg, styled
from workbench.runs.events import Event

EVERY_S = 2.0
"""Between two drawings: each takes a tenth of a second of the processor that may train."""


class LiveCurve:
    """One run's; hand `on_event` to what trains, and the record to `end`."""

    def __init__(self) -> None:
        self._losses: dict[int, float] = {}
        self._held: dict[int, float] = {}
        self._drawn = 0.0
        self._shown: Any = None

    def on_event(self, event: Event) -> None:
        """Take up a step or an evaluation."""
        if event["event"] == "step":
            self._losses[event["step"] + 1] = float(event["loss"])
        elif event["event"] == "evaluated":
            self._held[event["step"]] = float(event["loss"])
        if self._losses and time.monotonic() - self._drawn > EVERY_S:
            self._draw()

    def end(self, record: RunRecord) -> None:
        """Show the whole run, also one that was kept from before."""
        self._losses = dict(enumerate(map(float, record.losses), start=1))
        self._held = {one["step"]: float(one["loss"]) for one in record.evaluations}
        self._draw()

    def _draw(self) -> None:
        with styled():
            figure = Figure(figsize=(6, 2.6), layout="constrained")
            draw_training(figure.subplots(), self._losses, self._held)
        picture = SVG(as_svg(figure))
        if self._shown is None:
            self._shown = display(picture, display_id=True)
        else:
            self._shown.update(picture)
        self._drawn = time.monotonic()
