"""Finishing of a drawn figure, for all exhibits alike: its headline, and axes whose words fit.

The headline names the paper and the figure's number, so that a picture that is cut out of a report
still says where it belongs. An axis that is logarithmic says so; a label that is longer than its
axis is broken into two lines, and printed smaller where that is not enough.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

HEAD_PT, LINE_IN = 8, 0.14
"""Size of a headline, and height of its lines."""
FULL = 0.94
"""Share of its axis that a label may take: axes become shorter where other labels are broken."""


def finish(figure: Any, headline: str) -> None:
    """Write the headline above all else, the figure growing by it, and fit words to their axes."""
    lines = textwrap.wrap(headline, int(figure.get_figwidth() * 14))
    head_in = 0.05 + LINE_IN * len(lines)
    height = figure.get_figheight() + head_in
    figure.set_figheight(height)
    top = 1 - head_in / height
    bold = {"fontsize": HEAD_PT, "fontweight": "bold", "va": "top"}
    figure.text(0.01, 1 - 0.04 / height, "\n".join(lines), **bold).set_in_layout(False)
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, 0, 1, top), figure.transFigure)
        top -= legend.get_window_extent().height / figure.bbox.height + 0.06 / height
    figure.get_layout_engine().set(rect=(0, 0, 1, top))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            label = axis.label.get_text()
            if axis.get_scale() == "log" and label and "log" not in label:
                told = f"{label[:-1]}, log)" if label.endswith(")") else f"{label} (log)"
                axis.set_label_text(told)
    fit_labels(figure)


def fit_labels(figure: Any) -> None:
    """Break labels that are longer than their axes, then print smaller those that still are. The
    figure keeps the layout that this ends in: to lay it out takes longer than to draw it."""
    engine = figure.get_layout_engine()
    for change in (_broken, _smaller, None):
        engine.execute(figure)
        long = [] if change is None else [*_too_long(figure)]
        for label, share in long:
            change(label, share)
        if not long:
            break
    figure.set_layout_engine("none")


def _too_long(figure: Any) -> Iterator[tuple[Any, float]]:
    """Labels, and the shares of their axes that they take."""
    for axes in figure.axes:
        for label, side in ((axes.xaxis.label, "width"), (axes.yaxis.label, "height")):
            if label.get_text():
                share = getattr(label.get_window_extent(), side) / getattr(axes.bbox, side)
                if share > FULL:
                    yield label, share


def _broken(label: Any, share: float) -> None:
    label.set_text(in_two_lines(label.get_text()))


def _smaller(label: Any, share: float) -> None:
    label.set_fontsize(label.get_fontsize() * FULL / share)


def in_two_lines(words: str) -> str:
    """Broken at the space next to the middle, if there is one.

    >>> in_two_lines("time per iteration (ms)")
    'time per\\niteration (ms)'
    """
    spaces = [i for i, letter in enumerate(words) if letter == " "]
    at = min(spaces, key=lambda i: abs(i - len(words) / 2), default=len(words))
    return "\n".join(filter(None, (words[:at], words[at + 1 :])))
