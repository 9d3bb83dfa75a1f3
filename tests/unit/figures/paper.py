"""Drawings as they will be printed: a figure, its words, and whether all of it is on the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from workbench.figures.finish import finish
from workbench.figures.style import PAGE_IN, styled
from workbench.report import sections

HEADLINE = "A paper (CONF'22), figure 1a: Effect of something on something else"


def printed(draw: Callable[..., None], *what: Any, width: float = PAGE_IN, **more: Any) -> Figure:
    """A figure that `draw` draws `what` on, finished and laid out."""
    with styled():
        paper = Figure(figsize=(width, 2.1), layout="constrained")
        draw(paper, *what, **more)
        finish(paper, HEADLINE)
        paper.draw_without_rendering()
    return paper


def in_report(exhibits: list) -> str:
    """HTML of the report for these exhibits: their figures, then their tables."""
    return "".join(sections.figures(exhibits, {}) + sections.tables(exhibits, lambda *_: None))


def words(paper: Figure) -> str:
    """All text on it, and what the report prints below it."""
    texts = [*(axes.get_legend() for axes in paper.axes), *paper.legends]
    texts = [text for legend in texts if legend for text in legend.get_texts()]
    for axes in paper.axes:
        texts += [*axes.texts, axes.title, axes._left_title, axes.yaxis.label]
        texts += axes.get_xticklabels()
        texts += [cell.get_text() for t in axes.tables for cell in t.get_celld().values()]
    return "\n".join([*(text.get_text() for text in texts), paper.get_label()])


def flat(paper: Figure) -> str:
    """All text on it, in one line."""
    return " ".join(words(paper).split())


def assert_nothing_leaves(paper: Figure) -> None:
    """All words are on the paper and in no other panel, labels are no longer than their axes,
    logarithms are said, the small print is of two lines and below the headline is no legend."""
    whole = paper.bbox
    *_, head = paper.texts
    assert head.get_text().replace("\n", " ") == HEADLINE
    assert len(paper.get_supxlabel().splitlines()) <= 2
    for axes in paper.axes:
        for text in (*axes.texts, axes.yaxis.label, axes.xaxis.label, axes.title, axes._left_title):
            if text.get_text():
                box = text.get_window_extent()
                inside = whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1
                assert inside, f"{text.get_text()!r} leaves the paper"
                assert whole.y0 - 1 <= box.y0
                assert box.y1 <= head.get_window_extent().y0 + 1
                box = box.padded(-1)
                entered = [o for o in paper.axes if o is not axes and box.overlaps(o.bbox)]
                assert not entered, f"{text.get_text()!r} enters another panel"
        for axis, side in ((axes.xaxis, "width"), (axes.yaxis, "height")):
            words, box = axis.label.get_text(), axis.label.get_window_extent()
            assert not words or getattr(box, side) <= getattr(axes.bbox, side) + 1, words
            assert axis.get_scale() != "log" or not words or "log" in words, words
    for legend in paper.legends:
        box = legend.get_window_extent()
        assert box.y1 <= head.get_window_extent().y0 + 2
        assert not any(box.overlaps(axes.bbox) for axes in paper.axes), "a legend lies on a panel"
