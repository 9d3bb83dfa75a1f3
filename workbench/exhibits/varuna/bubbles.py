"""Varuna's bubbles: the share of time that its first stage waits, by depth and micro-batches."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.varuna.base import VarunaExhibit
from workbench.figures import draw as drawing
from workbench.figures.rows import PUBLISHED, SIMULATED, pick
from workbench.figures.style import LOOKS, lighter
from workbench.methods.pipeline.orders import varuna_quanta
from workbench.published.tables import FOLDER

FILE = FOLDER / "varuna_bubbles.csv"
WRONG = (25, 10)
"""Depth, and micro-batches over it, of the published point that is wrong."""


@lru_cache(maxsize=256)
def bubble_percent(depth: int, micros: int) -> float:
    """Quanta of a step in which the first of `depth` stages waits, in percent of the step."""
    first = [served[0] for served in varuna_quanta(depth, micros)]
    return 100 * first.count(None) / (len(first) - 1)


def small(asked: Asked) -> float | None:
    """A limit over the largest bubbles with enough micro-batches a stage."""
    part = asked.of_series()
    many = part[part["x"] >= asked.given["enough"]]
    return asked.given["limit"] / many["value"].max() if len(many) else None


def near(asked: Asked) -> Found:
    """The share of published points, which have one decimal, that ours are near to."""
    theirs, ours = (pick(asked.rows, source=source) for source in (PUBLISHED, SIMULATED))
    both = theirs.merge(ours, on=["layers", "x"])
    apart = (both["value_x"] - both["value_y"].round(1)).round(6)
    share = float((apart.abs() <= asked.given["near"]).mean()) if len(both) else None
    return Found(share, names={"count": len(both)})


class Bubbles(VarunaExhibit):
    """54 published points, and the lists that they follow from."""

    metrics = by_name(small, near)
    runs = False

    def published(self) -> pd.DataFrame:
        """Depth, micro-batches over it, and the published bubbles in percent."""
        return pd.read_csv(FILE)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows: list[dict[str, Any]] = []
        known = {(p.depth, p.times): p.published_percent for p in self.published().itertuples()}
        asked = at.size.given
        depths = asked.get("ranks") or [*dict.fromkeys(depth for depth, _ in known)]
        several = asked.get("microbatches") or [*dict.fromkeys(times for _, times in known)]
        for depth, times in known if not asked else product(depths, several):
            here = {
                "method": "varuna", "label": f"{depth} stages", "layers": depth,
                "x": times, "unit": "%", "status": "ok",
            }  # fmt: skip
            if published := known.get((depth, times)):
                wrong = self.sentences["wrong"] if (depth, times) == WRONG else ""
                rows.append(
                    here | {"value": published, "source": PUBLISHED, "note": wrong,
                            "how": "tools/bubbles.pdf of the released code"}
                )  # fmt: skip
            value = bubble_percent(depth, depth * times)
            rows.append(here | {"value": value, "source": SIMULATED, "how": "quanta of the lists"})
        return self.tabled(at, rows)

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Points as published, lines as the lists give them; darker for deeper pipelines."""
        drawing.prepare(figure)
        axes = figure.subplots()
        depths = sorted(set(rows["layers"]))
        for number, depth in enumerate(depths):
            tone = lighter(LOOKS["varuna"].color, 0.35 + 0.65 * number / max(1, len(depths) - 1))
            ours, theirs = (
                pick(rows, source=source, layers=depth) for source in (SIMULATED, PUBLISHED)
            )
            axes.plot(ours["x"], ours["value"], "--", color=tone, lw=1.0, label=f"{depth:g} stages")
            axes.plot(
                theirs["x"], theirs["value"], "o", color=tone, ms=3.5,
                markerfacecolor="white", markeredgewidth=0.8,
            )  # fmt: skip
        axes.set_xlabel("micro-batches over pipeline depth")
        axes.set_ylabel("first stage waits (%)")
        axes.set_ylim(bottom=0)
        axes.legend(ncols=2, fontsize=6)
        published = "Hollow: published." if PUBLISHED in set(rows["source"]) else ""
        wrong = "".join(f"{why[0].upper()}{why[1:]}." for why in {*rows["note"]} - {""})
        drawing.small_print(figure, self.printed(published=published, wrong=wrong))
