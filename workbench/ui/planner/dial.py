"""One value with a slider for the hand and a box for exact text.

The library's own sliders have no name that a screen reader could say; these are the browser's, with
a label each. What a place of the slider means is a `Scale`, which needs no widget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log2
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.core.bytesize import format_bytes, parse_bytes

HERE = Path(__file__).parent
GIB = 1 << 30
RATE = 1e9
"""Links are sold by the GB/s."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Between places of a slider, values, and text; each of them may mean "none in particular"."""

    low: float
    high: float
    step: float
    value_at: Callable[[float], Any]
    place_of: Callable[[Any], float | None]
    """None where a value has no place of its own: the slider stays."""
    parse: Callable[[str], Any]
    """Raises ValueError with one sentence."""
    show: Callable[[Any], str]


def whole(low: int, high: int, *, doubling: bool = False, most: float = inf) -> Scale:
    """Whole numbers; `doubling` gives each power of two the same length. Text may exceed `high`,
    but not `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text.replace(",", ""))
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if value < low:
            raise ValueError(f"{value} is too small; it must be at least {low}")
        if value > most:
            raise ValueError(f"{value:,} is too large; at most {most:,} can be planned here")
        return value

    return Scale(
        low=log2(low) if doubling else low,
        high=log2(high) if doubling else high,
        step=1,
        value_at=lambda place: round(2**place) if doubling else round(place),
        place_of=lambda value: log2(value) if doubling else value,
        parse=parse,
        show=str,
    )


def memory(high: float, *, nothing: str) -> Scale:
    """Bytes on a line of GiB, a bare number being GiB; `nothing` is the word for None."""

    def parse(text: str) -> int | None:
        text = text.strip()
        if text.lower() in ("", nothing):
            return None
        try:
            value = parse_bytes(f"{float(text):f}GiB")
        except ValueError:
            value = parse_bytes(text)
        if not value:
            raise ValueError(f"{text!r} is no budget; write {nothing}, or more than 0")
        return value

    step = 0.5 if high > 16 else 0.125
    return Scale(
        low=step,
        high=high,
        step=step,
        value_at=lambda place: round(place * GIB),
        place_of=lambda value: None if value is None else value / GIB,
        parse=parse,
        show=lambda value: nothing if value is None else format_bytes(value),
    )


def link(own: float, *, slowest: float = 1 / 32) -> Scale:
    """Bytes a second each way, from a part of the machine's `own` rate to all of it, which is None.

    Every halving has the same length. Text is in GB/s.
    """

    def parse(text: str) -> float | None:
        words = text.lower().removesuffix("/s").strip()
        if words in ("", "its own"):
            return None
        try:
            value = float(words) * RATE
        except ValueError:
            value = float(parse_bytes(words))
        if not 0 < value < inf:
            raise ValueError(f"{text!r} is no speed of a link; write GB/s, or: its own")
        return value

    return Scale(
        low=log2(slowest),
        high=0.0,
        step=0.125,
        value_at=lambda place: own * 2**place if place < 0 and own else None,
        place_of=lambda value: 0.0 if value is None or not own else min(0.0, log2(value / own)),
        parse=parse,
        show=lambda value: "its own" if value is None else f"{value / RATE:.3g} GB/s",
    )


class Dial(anywidget.AnyWidget):
    """`value` as the slider or the box last said; `changed` is called after each change by hand."""

    _esm = HERE / "planner_dial.js"
    _css = HERE / "planner_dial.css"
    label = traitlets.Unicode().tag(sync=True)
    help = traitlets.Unicode().tag(sync=True)
    low = traitlets.Float().tag(sync=True)
    high = traitlets.Float().tag(sync=True)
    step = traitlets.Float().tag(sync=True)
    position = traitlets.Float().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    wrong = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self, label: str, help: str, scale: Scale, value: Any, changed: Callable[[], None]
    ) -> None:
        super().__init__(label=label, help=help)
        self.error = ""
        """One sentence, where the text in the box means nothing."""
        self.value, self.scale = value, scale
        self._changed, self._setting = changed, False
        self.rescale(scale)
        self.observe(self._slid, "position")
        self.observe(self._typed, "text")

    def put(self, value: Any, place: float | None = None) -> None:
        """Show a value; nobody is told. One that has no place of its own is shown at `place`."""
        self.value, self.error = value, ""
        own = self.scale.place_of(value)
        self._show(place if own is None else own)

    def rescale(self, scale: Scale, place: float | None = None) -> None:
        """Another scale for the same value."""
        self.scale, self._setting = scale, True
        self.low, self.high, self.step = scale.low, scale.high, scale.step
        self._setting = False
        if not self.error:
            self.put(self.value, place)

    def _show(self, place: float | None) -> None:
        self._setting = True
        if place is not None:
            self.position = min(max(place, self.scale.low), self.scale.high)
        self.text, self.wrong = self.scale.show(self.value), False
        self._setting = False

    def _slid(self, _: Any) -> None:
        if not self._setting:
            self.value, self.error = self.scale.value_at(self.position), ""
            self._show(None)
            self._changed()

    def _typed(self, _: Any) -> None:
        if self._setting:
            return
        try:
            self.put(self.scale.parse(self.text))
        except ValueError as error:
            self.error, self.wrong = f"{self.label}: {error}", True
        self._changed()
