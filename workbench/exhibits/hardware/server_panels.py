"""The panels of `here_servers`: throughput and bytes in bars, scaling in lines.

Bars of a setting (GPUs, minibatch) stand together, those without a cap on a grey ground. A model is
a panel; one with many settings is several, and small panels share a line, so that all bars of the
figure are about equally wide.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workbench.core.record import RESULTS
from workbench.exhibits.hardware import marks
from workbench.exhibits.hardware.server_goals import XL
from workbench.exhibits.hardware.table import HARMONY, MODEL, ROOF, ordered, preferred
from workbench.figures.style import GREY, LOOKS
from workbench.published.here import SERVERS

SETTING = ["ranks", "batch"]
ROOM = 34.0
"""Bars for which a line of panels has room."""
AXIS = 3.0
"""Width of an axis and its words on a line, in bars."""
LEAST, LEAST_CAP = 3.2, 1.7
"""Widths of the names of a setting and of a cap, in bars."""
ROUGH = 0.5
"""By which panels of one model may differ, in bars."""
LETTER = 0.046
"""Share of a panel's height for a letter at a bar."""
GROUND = "#efefef"
"""Behind bars without a cap."""
LETTERS_A_BAR, SCALING_LETTERS = 3.1, 35
"""Letters of a title for which there is room in a line: above bars, and above a panel of
scaling."""
PLANNED = {
    "marker": "D", "markersize": 3.8, "linestyle": "none", "color": "black", "fillstyle": "left",
    "markerfacecoloralt": "white", "markeredgewidth": 0.7,
}  # fmt: skip
"""Mark of a plan's prediction: half filled, as all that is simulated."""
WHISKER = {"color": "black", "linewidth": 0.7, "marker": "_", "markersize": 3.5}
"""Mark of a bar's spread."""
IDEAL = {"color": GREY, "linewidth": 0.8, "linestyle": "--"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Bars of some settings of one model."""

    draw: Callable[[Any, pd.DataFrame, float], None]
    """On axes that have room for so many bars."""
    rows: pd.DataFrame
    width: float
    """In bars, with its axis."""


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each bar, in order: of equal settings the run that stands for them.

    Settings of which no run came to an end (`unfinished`) have none. Smaller models first; within
    one fewer GPUs, then smaller minibatches; no cap before caps.
    """
    case = [*MODEL, *SETTING, "device_cap_gib", "method", "variant"]
    kept = preferred(rows[~_unfinished(rows)]).drop_duplicates(case)
    size = kept.groupby(list(MODEL))["parameters"].transform("max")
    kept = kept.assign(size=size.fillna(0))
    return ordered(kept, SERVERS.labels, ["size", *MODEL, *SETTING]).drop(columns="size")


def unfinished(rows: pd.DataFrame) -> list[str]:
    """Settings that have runs, but none that came to an end: too few GPUs, say."""
    lost = rows[_unfinished(rows)]
    return [
        f"{model_words(part)} on {_gpus(part['ranks'].iloc[0])} at minibatch "
        f"{part['batch'].iloc[0]}"
        for _, part in lost.groupby([*MODEL, *SETTING], sort=False)
    ]


def _unfinished(rows: pd.DataFrame) -> pd.Series:
    told = rows["status"].isin(RESULTS).groupby([rows[name] for name in (*MODEL, *SETTING)])
    return ~told.transform("any")


def _gpus(ranks: int) -> str:
    return "1 GPU" if ranks == 1 else f"{ranks} GPUs"


def lines_of(rows: pd.DataFrame) -> list[list[Panel]]:
    """Panels of `shown` rows, line by line: throughput of a model, its bytes, then the next."""
    lines: list[list[Panel]] = []
    for _, model in rows.groupby(list(MODEL), sort=False):
        for panel in _panels(model, draw_speeds) + _panels(moving(model), draw_moved):
            if lines and sum(each.width for each in lines[-1]) + panel.width <= ROOM + 2 * AXIS:
                lines[-1].append(panel)
            else:
                lines.append([panel])
    return lines


def _panels(rows: pd.DataFrame, draw: Callable[[Any, pd.DataFrame, float], None]) -> list[Panel]:
    """A model in as many panels as its settings need, which are about equally wide."""
    parts: list[pd.DataFrame] = []
    total = _wide(rows)
    most = total / max(1, -(-total // (ROOM + AXIS))) + ROUGH
    for _, setting in rows.groupby(SETTING, sort=False):
        more = pd.concat([*parts[-1:], setting])
        if parts and _wide(more) <= most:
            parts[-1] = more
        else:
            parts.append(setting)
    return [Panel(draw=draw, rows=part, width=_wide(part) + AXIS) for part in parts]


def _wide(rows: pd.DataFrame) -> float:
    return _arranged(rows)[1]


def _arranged(rows: pd.DataFrame) -> tuple[list[marks.Group], float]:
    return marks.arranged(rows, SETTING, least=LEAST, least_cap=LEAST_CAP)


# -- bars -----------------------------------------------------------------------------------------


def draw_speeds(axes: Any, rows: pd.DataFrame, room: float) -> None:
    """Samples/s of every run, and its share of data parallelism without a cap."""
    tops = [_speed_bar(axes, run, x) for x, run in _grounded(axes, rows, room)]
    axes.set_ylim(0, max(tops, default=1.0) or 1.0)
    axes.set_ylabel("samples/s")
    _title(axes, f"throughput, measured: {model_words(rows)}", LETTERS_A_BAR * room)


def _speed_bar(axes: Any, run: Any, x: float) -> float:
    """Draw it; return how high the axes have to be for it and its words."""
    look = LOOKS[run.method]
    if run.status != "ok":
        marks.bar(axes, look, x, float("nan"), marks.why_missing(run.status, "no value"))
        return 0.0
    speed = f"{run.samples_per_second:.3g}"
    itself = run.method == ROOF and run.share == 1.0
    share = "" if itself or pd.isna(run.share) else f", {run.share:.0%}"
    words = f"{speed}{share}{marks.variant_words(run.variant)}"
    low, high = between(run.samples_per_second, run.spread_seconds)
    at = (high, 2.5)
    marks.bar(axes, look, x, run.samples_per_second, words, pale=bool(run.variant), words_at=at)
    if low < high:
        axes.plot([x, x], [low, high], **WHISKER)
    return _top(high, words)


def between(speed: float, spread: float) -> tuple[float, float]:
    """Speeds at the quartiles of the step times, of which the distance over the median is known and
    not how it lies about it: half to each side. Both are the speed where no spread is known."""
    half = 0.0 if pd.isna(spread) else spread / 2
    return speed / (1 + half), speed / (1 - half) if half < 1 else speed


def moving(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs with bytes over the host links, counted or planned. What keeps all on the GPUs moves
    none."""
    known = (rows["moved"] > 0) | rows["planned_moved"].notna()
    return rows[known & (rows["status"] == "ok")]


def draw_moved(axes: Any, rows: pd.DataFrame, room: float) -> None:
    """Bytes of a step over the host links in multiples of the weights: counted as bars, planned as
    markers."""
    tops = [_moved_bar(axes, run, x) for x, run in _grounded(axes, rows, room)]
    axes.set_ylim(0, max(tops))
    axes.set_ylabel("moved a step (x weights)")
    _title(axes, f"over the host links: {model_words(rows)}", LETTERS_A_BAR * room)


def _moved_bar(axes: Any, run: Any, x: float) -> float:
    words = (
        "not counted"
        if pd.isna(run.moved)
        else f"{run.moved:.3g}{marks.variant_words(run.variant)}"
    )
    high = max(value for value in (run.moved, run.planned_moved) if not pd.isna(value))
    look = LOOKS[run.method]
    marks.bar(axes, look, x, run.moved, words, pale=bool(run.variant), words_at=(high, 5.5))
    if not pd.isna(run.planned_moved):
        axes.plot(x, run.planned_moved, **PLANNED)
    return _top(high, words)


def _top(height: float, words: str) -> float:
    """Top of axes in which a bar of that height has room for its words."""
    return height / (1 - min(0.75, LETTER * (len(words) + 2)))


def _grounded(axes: Any, rows: pd.DataFrame, room: float) -> list[tuple[float, Any]]:
    """Lay out settings and caps, and name them; x and run of every bar."""
    groups, end = _arranged(rows)
    for group in groups:
        ranks, batch = group.rows.iloc[0][SETTING]
        marks.name(axes, f"{_gpus(ranks)}\nminibatch {batch}", group.middle)
        for cap in group.caps:
            if cap.gib is None:
                first, last = cap.bars[0][0], cap.bars[-1][0]
                axes.axvspan(first - 0.65, last + 0.65, color=GROUND, zorder=0, linewidth=0)
    marks.frame(axes, groups, end, room)
    return [bar for group in groups for cap in group.caps for bar in cap.bars]


def model_words(rows: pd.DataFrame) -> str:
    """The model of these rows, which all have the same."""
    first = rows.iloc[0]
    sizes = rows["parameters"].dropna()
    size = f", {sizes.iloc[0] / 1e9:.2g}\u00a0B" if len(sizes) else ""
    if all(first[name] == value for name, value in XL.items()):
        return f"GPT-2 XL{size}"
    seq = "" if first["seq"] == XL["seq"] else f", sequence {first['seq']}"
    dtype = "" if first["dtype"] == XL["dtype"] else f", {first['dtype']}"
    return f"{first['layers']} layers of {first['hidden']}{size}{seq}{dtype}"


def _title(axes: Any, words: str, letters: float) -> None:
    """Above a panel, left, in as many lines as it takes."""
    axes.set_title(textwrap.fill(words, max(12, int(letters))), loc="left", fontsize=7)


# -- lines ----------------------------------------------------------------------------------------


SAME = [*MODEL, "batch", "clip", "device_cap_gib"]
"""Columns that runs of one line have in common, besides their round: the code and the machine of
the day would be in its slope else."""


def series_of(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs of Harmony of one model, minibatch, cap and round, where there are several numbers
    of GPUs for a method; of `shown` rows."""
    own = rows["method"].isin(HARMONY) & (rows["status"] == "ok") & (rows["variant"] == "")
    return [
        part
        for _, part in rows[own].groupby([*SAME, "round"], sort=False, dropna=False)
        if _several(part)
    ]


def one_scale(drawn: Iterable[tuple[Any, Panel]]) -> None:
    """One height and one title for all panels of equal bars of a model."""
    alike: dict[tuple, list[Any]] = defaultdict(list)
    for axes, panel in drawn:
        alike[panel.draw, model_words(panel.rows)].append(axes)
    for every in alike.values():
        top = max(axes.get_ylim()[1] for axes in every)
        for place, axes in enumerate(every):
            axes.set_ylim(0, top)
            axes.set_title("" if place else axes.get_title("left"), loc="left", fontsize=7)


def _several(rows: pd.DataFrame) -> bool:
    """Whether a method has several numbers of GPUs."""
    return bool((rows.groupby("method")["ranks"].nunique() > 1).any())


def draw_scaling(axes: Any, rows: pd.DataFrame) -> None:
    """Samples/s over the number of GPUs; dashed, what the fewest would be worth in proportion."""
    # The run on the fewest GPUs, harmony-pp's where there is one.
    order = rows.assign(other=rows["method"] != HARMONY[-1]).sort_values(["ranks", "other"])
    base = order.iloc[0]
    most = rows["ranks"].max()
    per_gpu = base["samples_per_second"] / base["ranks"]
    axes.plot([base["ranks"], most], [base["samples_per_second"], per_gpu * most], **IDEAL)
    for method in HARMONY:
        part = rows[rows["method"] == method].sort_values("ranks")
        if part.empty:
            continue
        look = LOOKS[method]
        line = {"color": look.color, "marker": look.marker, "markersize": 4, "linewidth": 0.9}
        axes.plot(part["ranks"], part["samples_per_second"], **line)
    _say_gain(axes, rows[rows["method"] == base["method"]], base)
    ticks = sorted(set(rows["ranks"]))
    axes.set_xticks(ticks, [str(ranks) for ranks in ticks])
    axes.set_xlim(0.5, most * 1.12)
    axes.set_ylim(0, per_gpu * most * 1.12)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("samples/s")
    cap = rows["device_cap_gib"].iloc[0]
    words = "no limit" if pd.isna(cap) else f"{cap:g} GiB a GPU"
    setting = f"{model_words(rows)}, {words}, minibatch {rows['batch'].iloc[0]}"
    _title(axes, f"scaling, measured: {setting}", SCALING_LETTERS)


def _say_gain(axes: Any, rows: pd.DataFrame, base: pd.Series) -> None:
    """How many times as fast the most GPUs are, where no line is."""
    last = rows.loc[rows["ranks"].idxmax()]
    if last["ranks"] == base["ranks"]:
        return
    gain = last["samples_per_second"] / base["samples_per_second"]
    words = f"{last['ranks']} GPUs are {gain:.1f} times {base['ranks']}"
    look = {"ha": "right", "fontsize": 6.5, "color": LOOKS[base["method"]].color}
    axes.text(0.98, 0.05, words, transform=axes.transAxes, **look)
