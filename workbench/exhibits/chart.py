"""A chart of passes: a row a rank or a stage, a box a pass with the number of its micro-batch."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures.style import PAGE_IN
from workbench.schedule.draw import LABEL_PT, fill, letters_pt
from workbench.schedule.looks import LOOKS


def draw_chart(axes: Any, passes: pd.DataFrame, until: float, *, row: str, letters: bool) -> None:
    """Draw rows with a `rank`, a `kind`, a `micro`, a `start` and an `end` on a page's width,
    from 0 to `until`. `row` is what a rank is called; `letters`: whether the kind is told."""
    point = until / (PAGE_IN - 0.6) / 72
    for each in passes.itertuples():
        look, width = LOOKS[each.kind], each.end - each.start
        axes.barh(
            each.rank, width - min(0.5 * point, width / 3), left=each.start, height=0.84,
            **fill(look.color, each.source),
        )  # fmt: skip
        words = f"{each.kind.lower() if letters else ''}{each.micro:g}"
        if letters_pt(words) <= width / point:
            axes.text(
                each.start + width / 2, each.rank, words, color=look.ink, fontsize=LABEL_PT,
                ha="center", va="center", bbox={"fc": look.color, "lw": 0, "pad": 0.4},
            )  # fmt: skip
    ranks = 1 + int(passes["rank"].max())
    axes.set(xlim=(0, until * 1.005), ylim=(ranks - 0.5, -0.5))
    axes.set_yticks(range(ranks), [f"{row} {rank}" for rank in range(ranks)])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
