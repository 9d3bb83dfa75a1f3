"""How the panels of an exhibit share its paper: absolute values, and ratios beside them.

Values of one machine share axes; those of another have axes of their own, since a GPU of 2023 would
flatten one of 2018. What compares machines is the panel of ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd

from workbench.figures import draw as drawing
from workbench.figures.rows import HERE
from workbench.figures.style import PAGE_IN

Panel = Callable[[Any, pd.DataFrame], None]
"""Draws rows on axes."""


def draw_panels(
    figure: Any,
    rows: pd.DataFrame,
    absolute: Panel,
    ratios: Panel,
    *,
    same_scale: bool,
    reduced: str,
    rowwise: bool = False,
) -> None:
    """One panel where everything is of one machine, else absolute values beside ratios.

    `same_scale`: the rows have the published size; `reduced` is what else they are called.
    `rowwise`: three panels stand side by side, instead of the ratios below the others.
    """
    of_here = (rows["source"] == "measured") | (rows["variant"] == HERE)
    if same_scale and not of_here.any():
        absolute(figure.subplots(), rows)
        return
    if not same_scale:
        left, right = figure.subplots(1, 2)
        absolute(left, drawing.without(rows, "published"))
        left.set_title(f"this machine, {reduced}")
    else:
        scale = 1.15 if rowwise else 2
        figure.set_size_inches(PAGE_IN, figure.get_figheight() * scale)
        above = [["there", "here", "ratios"]] if rowwise else [["there", "here"], ["ratios"] * 2]
        axes = figure.subplot_mosaic(above)
        absolute(axes["there"], rows[~of_here])
        axes["there"].set_title(_machine(rows[~of_here], "the published machine"))
        absolute(axes["here"], rows[of_here])
        axes["here"].set_title(_machine(rows[of_here], "measured here"))
        right = axes["ratios"]
    ratios(right, drawing.compared(rows))
    narrow = same_scale and rowwise
    right.set_title("as ratios" if narrow else "as ratios, beside the published ones")


def _machine(rows: pd.DataFrame, otherwise: str) -> str:
    """The device of these rows, if it is one, without cores and dates."""
    names = {text.split(",")[0] for text in rows["hardware"] if text}
    return f"on {names.pop()}" if len(names) == 1 else otherwise


def notes_of_measured(rows: pd.DataFrame) -> list[str]:
    """How the runs measured on named hardware were set up and where the published ones were not, a
    sentence a series: what most of its rows have, then what single methods have of their own."""
    out = []
    for source, variant in drawing.series_of(rows):
        if source != "measured" or not variant:
            continue
        part = drawing.part_of(rows, source, variant)
        told = [text.split("; ") for text in part["note"]]
        times = Counter(words for each in told for words in each if words)
        shared = [words for words, n in times.items() if n > len(part) / 2]
        sentence = f"Measured on {part['hardware'].iloc[0]}: {'; '.join(shared)}."
        for label in dict.fromkeys(part["label"]):
            own = dict.fromkeys(
                words
                for name, each in zip(part["label"], told, strict=True)
                for words in each
                if name == label and words in times and words not in shared
            )
            if own:
                sentence += f" {label}: {'; '.join(own)}."
        out.append(sentence)
    return out
