"""Cost of scarce device memory on the hardware this project measured, and worth of its plans.

Above: throughput of every method as a share of plain training, which has the whole GPU to itself,
by model, batch and cap. Below: predictions over measurements, of step time and of the device's
peak. The rows were measured by the benchmark and are committed; nothing runs for this exhibit, so
it is the same at every size.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.exhibits.claims import Goal
from workbench.exhibits.hardware import marks
from workbench.exhibits.hardware.base import GoalsExhibit
from workbench.exhibits.hardware.offload_goals import METRICS, of_setting, told
from workbench.exhibits.hardware.table import OFFLOAD as COLUMNS
from workbench.exhibits.hardware.table import OWN_RUNTIME, PLAIN, ordered, preferred, table
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.style import GREY, LOOKS, PAGE_IN
from workbench.published.here import OFFLOAD, days

BATCHES = (4, 16)
MODEL = (2048, 1024, "bf16")
"""Hidden size, sequence and type of the benchmark's models; others are named."""
CASES = ((32, 4), (78, 4), (100, 4), (78, 16), (100, 16))
"""Layers and batch that the goals are about."""
WITHIN = 0.05
"""The band of good predictions."""
HEIGHT_IN = 6.2
FEWEST = 24.0
"""Bars for which a panel has room at least."""
NAME_SHARE = 0.18
"""Share of a panel's width for the name of a model."""
CAP_SHARE = 0.055
"""Share of a panel's width for the name of a cap."""


class Offload(GoalsExhibit):
    """Shares of plain training by batch above, predictions below."""

    file, metrics = OFFLOAD.file, METRICS

    def all_rows(self, at: Opened, *, repeated: bool = False) -> pd.DataFrame:
        return table(OFFLOAD.runs(at.roots()), COLUMNS, repeated=repeated)

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Shares by batch above, predictions below. `rows`: `table.OFFLOAD`, of one
        device."""
        figure.set_size_inches(PAGE_IN, HEIGHT_IN if len(rows) else 1.2)
        if rows.empty:
            drawing.empty(figure.subplots(), self.absent)
            return
        places = figure.subplot_mosaic(
            [[batch] * 2 for batch in BATCHES] + [["step", "peak"]], height_ratios=[1.1, 1.1, 1]
        )
        shown = shares_of(rows)
        for batch in BATCHES:
            _draw_shares(places[batch], shown[shown["batch"] == batch], batch)
        judged = of_setting(rows)
        for place, of in (("step", marks.STEP), ("peak", marks.PEAK)):
            marks.draw_predictions(places[place], rows, of, OWN_RUNTIME, WITHIN, judged)
        there = {*rows[rows["predicted_step_seconds"].notna()]["method"], *shown["method"]}
        marks.legend(figure, OFFLOAD.labels, there, marks.kept(shown))
        lacking = "; ".join(missing_cases(rows))
        facts = {"hardware": rows["hardware"].iloc[0], "when": days(rows["date"]), "within": WITHIN}
        absent = f"Not measured: {lacking}." if lacking else ""
        drawing.small_print(figure, self.printed(absent=absent, **facts))

    def goals(self, rows: pd.DataFrame, repeated: pd.DataFrame | None = None) -> list[Goal]:
        """In their setting only."""
        every = None if repeated is None else of_setting(repeated)
        return super().goals(told(of_setting(rows)), every)


def shares_of(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each bar: of equal settings the run that stands for them.

    Runs that pin what the planner would choose are figures 8b's and 9's and the sweep's, and stand
    here only for a method that has no other. The runs of a search for the largest model, and those
    that nothing but such a sweep has beside them, compare with nothing and are left out.
    """
    model = ["hidden", "seq", "dtype", "layers"]
    case = ["batch", *model, "device_cap_gib"]
    of_model = rows.groupby([*model, "batch"])
    only_swept = of_model["pinned"].transform("any") & (
        of_model["method"].transform("nunique") == 1
    )
    found = rows[~only_swept & rows["host_cap_gib"].isna() & rows["batch"].isin(BATCHES)]
    found = preferred(found).drop_duplicates([*case, "method", "variant"])
    alike = found.groupby([*case, "method"], dropna=False)["pinned"]
    only_one = alike.transform("all") & (alike.cumcount() == 0)
    kept = found[~found["pinned"] | only_one]
    odd = [key != MODEL for key in kept[model[:3]].itertuples(index=False, name=None)]
    return ordered(kept.assign(odd=odd), OFFLOAD.labels, ["batch", "odd", *model])


def missing_cases(rows: pd.DataFrame) -> list[str]:
    """Models and batches that lack STRONGHOLD, plain training, or both."""
    hidden, seq, dtype = MODEL
    rows = rows[(rows["hidden"] == hidden) & (rows["seq"] == seq) & (rows["dtype"] == dtype)]
    out = []
    for layers, batch in CASES:
        part = rows[(rows["layers"] == layers) & (rows["batch"] == batch)]
        absent = [name for name in (PLAIN, "stronghold") if not (part["method"] == name).any()]
        if absent:
            out.append(f"{layers} layers at batch {batch} ({', '.join(absent)})")
    return out


# -- bars -----------------------------------------------------------------------------------------


def _draw_shares(axes: Any, rows: pd.DataFrame, batch: int) -> None:
    """Bars of one batch: depths apart, caps within a depth, all bars equally wide."""
    from matplotlib.ticker import PercentFormatter

    axes.set_title(f"batch {batch}")
    axes.set_ylabel("share of plain training")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if rows.empty:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, f"no run at batch {batch}", transform=axes.transAxes, ha="center")
        return
    room = max(FEWEST, len(rows))
    model = ["hidden", "seq", "dtype", "layers"]
    groups, end = marks.arranged(rows, model, least=NAME_SHARE * room, least_cap=CAP_SHARE * room)
    for group in groups:
        for cap in group.caps:
            for x, run in cap.bars:
                _bar(axes, run, x)
        marks.name(axes, _name_of(group.rows), group.middle)
    marks.frame(axes, groups, end, FEWEST)
    tall = rows["share"].max()
    axes.set_ylim(0, 1.55 * max(1.0, 0.0 if pd.isna(tall) else tall))
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--", zorder=0.5)


def _name_of(model: pd.DataFrame) -> str:
    """The model, with the absolute speed that is its 100 %."""
    first = model.iloc[0]
    size = model["parameters"].dropna()
    words = f"{first['layers']} layers" + (f", {size.iloc[0] / 1e9:.1f} B" if len(size) else "")
    plain = model["plain"].dropna()
    words += f"\nplain: {plain.max():.3g} samples/s" if len(plain) else "\nno plain run"
    if first["odd"]:
        words += f"\nhidden size {first['hidden']}, {first['dtype']}"
    return words


def _bar(axes: Any, run: Any, x: float) -> None:
    look = LOOKS[run.method]
    if pd.isna(run.share):
        marks.bar(axes, look, x, run.share, marks.why_missing(run.status, "no plain run"))
        return
    words = f"{run.share:.0%}" if run.share >= 0.1 else f"{run.share:.1%}"
    words = f"{words}{marks.variant_words(run.variant)}"
    marks.bar(axes, look, x, run.share, words, pale=bool(run.variant))
