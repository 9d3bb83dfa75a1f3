"""Drawings as they will be printed: a figure, its words, and whether all of it is on the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from workbench.figures.style import PAGE_IN, styled


def printed(draw: Callable[..., None], *what: Any, width: float = PAGE_IN, **more: Any) -> Figure:
    """A figure that `draw` draws `what` on, laid out."""
    with styled():
        paper = Figure(figsize=(width, 2.1), layout="constrained")
        draw(paper, *what, **more)
        paper.draw_without_rendering()
    return paper


def words(paper: Figure) -> str:
    """All text on it."""
    texts = [*(axes.get_legend() for axes in paper.axes), *paper.legends]
    texts = [text for legend in texts if legend for text in legend.get_texts()]
    for axes in paper.axes:
        texts += [*axes.texts, axes.title, axes._left_title, axes.yaxis.label]
        texts += axes.get_xticklabels()
        texts += [cell.get_text() for t in axes.tables for cell in t.get_celld().values()]
    return "\n".join([*(text.get_text() for text in texts), paper.get_supxlabel()])


def flat(paper: Figure) -> str:
    """All text on it, in one line."""
    return " ".join(words(paper).split())


def assert_nothing_leaves(paper: Figure) -> None:
    whole = paper.bbox
    for axes in paper.axes:
        for text in (*axes.texts, axes.yaxis.label, axes.xaxis.label, axes.title, axes._left_title):
            if text.get_text():
                box = text.get_window_extent()
                inside = whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1
                assert inside, f"{text.get_text()!r} leaves the paper"
                assert whole.y0 - 1 <= box.y0
                assert box.y1 <= whole.y1 + 1
