"""Figures 13 and 21: losses of one device, data parallel and pipeline, on top of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.base import Exhibit
from workbench.exhibits.harmony import own_text
from workbench.exhibits.harmony.base import HarmonyExhibit
from workbench.exhibits.harmony.own_text import DEFAULT_TEXT
from workbench.exhibits.harmony.sizes import HARMONY, HarmonySize, Trained
from workbench.exhibits.harmony.table import PLAIN, measured, missing, table
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw
from workbench.figures.curves import differences, draw_curves, note
from workbench.figures.rows import label_of, pick
from workbench.model.corpus import STDLIB
from workbench.runs.store import Store

METHODS = (PLAIN, *HARMONY)
TOLERANCE = 1e-5
"""Largest relative difference of losses in fp32 that counts as equal: sums are taken in another
order."""
LEAST = 1e-9
"""Smaller differences count as this one."""
LEARNT = 0.02
"""By how much losses fall at least where something is learnt."""


def as_near(asked: Asked) -> Found:
    """The tolerance over a mode's worst difference; steps that a curve lacks count as not run."""
    shown = asked.rows.dropna(subset=["value"])
    plain, own = _curve(shown, PLAIN), _curve(shown, asked.given["method"])
    off = differences(own.to_list(), plain.to_list())
    if not off or not len(off) == len(own) == len(plain):
        return Found(None)
    why = f"largest relative difference {max(off):.1e}, tolerance 1e-5"
    return Found(TOLERANCE / max(*off, LEAST), why=why)


class Curves(HarmonyExhibit):
    """The curves over each other, and beside them how far each is from one device."""

    metrics = by_name(as_near)
    form: ClassVar[str]
    """Form of the texts that it reads, in words."""

    def sized(self, size: str, text: str = STDLIB) -> HarmonySize:
        """The dials, with the model of the exhibit training on the text."""
        return own_text.trained_on(super().sized(size), self.reads, text)

    def text_in(self, folder: Path, size: str) -> None:
        wanted = f"{self.words} reads a folder in the format of {self.form}"
        own_text.check(folder, self.reads, self.trained(self.sized(size)), wanted)

    def trained(self, size: HarmonySize) -> Trained:
        """The training that it shows."""
        return getattr(size, self.reads)

    def specs(self, size: HarmonySize) -> list[RunSpec]:
        """Plain training on one device, and both modes on the most devices."""
        trained, ranks = self.trained(size), size.most_here()
        return [size.spec(PLAIN, trained), *(size.spec(name, trained, ranks) for name in HARMONY)]

    def rows(self, records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
        """A row a step and method."""
        out: list[dict[str, Any]] = []
        for record in records:
            row = measured(record, "iteration_s", self.trained(size).name)
            row |= {"quantity": "loss", "unit": "nats", "value": None, "low": None, "high": None}
            row["how"] = f"mean loss of the step; {record.engine}"
            row["text"] = record.spec["text"]
            if record.status != "ok":
                out.append(row)
            out += [
                row | {"x": step, "value": loss} for step, loss in enumerate(record.losses, start=1)
            ]
        return table(out)

    def absent(self, size: HarmonySize, why: str) -> pd.DataFrame:
        """A row a method that did not run."""
        name = self.trained(size).name
        return table([missing(method, name, "loss", why) for method in METHODS])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        shown = rows.dropna(subset=["value"])
        draw.prepare(figure, 0.4 if shown.empty else 1.1)
        left, right = figure.subplots(1, 2)
        if shown.empty:
            why = next(iter(rows["note"]), "nothing was run at this size")
            draw.empty(left, f"losses measured here: {why}")
            draw.empty(right, "the paper's curves are not known; they are said to coincide")
            draw.small_print(figure, self.sentences["unknown"])
            return
        losses = {m: _curve(shown, m).to_list() for m in METHODS if m in set(shown["method"])}
        draw_curves(left, right, losses, PLAIN, most=1e-3)
        draw.title(left, f"{shown['model'].iloc[0]}: loss of every step, one on the other")
        draw.title(right, f"difference from {label_of(PLAIN)}")
        right.axhline(TOLERANCE, color="#888888", lw=0.8, ls="--")
        note(right, TOLERANCE, "counts\nas equal")
        draw.legend(figure, shown, as_lines=True)
        ranks = sorted({f"{n:g}" for n in pick(shown, method=HARMONY)["ranks"]})
        facts = {
            "ranks": ", ".join(ranks) or "?",
            "plain": label_of(PLAIN),
            "texts": ", ".join(map(_named, sorted(set(shown["text"])))),
            "hardly": self.sentences["hardly"] if hardly_falls(_curve(shown, PLAIN)) else "",
        }
        draw.small_print(figure, self.printed(**facts))

    def facts(self, at: Opened, rows: pd.DataFrame, records: list[RunRecord]) -> dict[str, str]:
        """No estimate and no plan, but the text."""
        told = {
            "reference": self.sentences["no_reference"],
            "text": own_text.described(self.trained(at.size), self.reads, at.text),
            **Exhibit.facts(self, at, rows, records),
        }
        return told | {"numbers": self.without_gpu[0]} if at.simulated else told


def hardly_falls(curve: pd.Series) -> bool:
    """Whether the last third of the losses is less than 2 % below the first."""
    third = max(1, len(curve) // 3)
    first, last = curve.iloc[:third].mean(), curve.iloc[-third:].mean()
    return bool(last > (1 - LEARNT) * first)


def _named(text: str) -> str:
    """A text in print, where the folders above it are nobody's business."""
    return DEFAULT_TEXT if text in ("", STDLIB) else f"{Path(text).name!r}, a text of the user's"


def _curve(rows: pd.DataFrame, method: str) -> pd.Series:
    part = pick(rows, method=method)
    return pd.Series(part["value"].to_numpy(), index=part["x"].astype(int).to_numpy())
