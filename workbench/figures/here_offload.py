"""What scarce device memory costs on the hardware this project measured, and what plans are worth.

Above: throughput of every method as a share of plain training, which has the whole GPU to itself,
by model, batch and cap. Below: predictions over measurements, of step time and of the device's
peak. The rows were measured by the benchmark and are committed; nothing runs for this exhibit, so
it is the same at every size.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures import draw as drawing
from workbench.figures.here_table import PLAIN, mean_deviation, own_ratios, preferred
from workbench.figures.style import GREY, HERE_LOOKS, PAGE_IN, Look, lighter
from workbench.published.here import LABELS

FIGURE, SECTION = "here_offload", "this project's goals"
TITLE = "Offloaded training on named hardware"
CLAIM = (
    "With 32 GiB of a GPU's memory STRONGHOLD keeps most of the speed that plain training has with "
    "all of it, and its planner says beforehand how fast and how large a run will be."
)
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
"""Of a panel's width, for the name of a model."""
CAP_SHARE = 0.055
"""The same for that of a cap."""
ABSENT = (
    "nothing to show: no results/published-here/<device>/offload.csv has been measured and "
    "committed yet"
)


def draw(figure: Any, rows: pd.DataFrame) -> None:
    """Shares by batch above, predictions below. `rows`: `here_table.table`, of one device."""
    figure.set_size_inches(PAGE_IN, HEIGHT_IN if len(rows) else 1.2)
    if rows.empty:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.text(0.5, 0.5, ABSENT, ha="center", va="center", color=GREY, wrap=True)
        return
    places = figure.subplot_mosaic(
        [[batch] * 2 for batch in BATCHES] + [["step", "peak"]], height_ratios=[1.1, 1.1, 1]
    )
    shown = shares_of(rows)
    for batch in BATCHES:
        _draw_shares(places[batch], shown[shown["batch"] == batch], batch)
    _draw_predictions(places["step"], rows, "step_seconds", "step_ratio", "step time", "s")
    _draw_predictions(places["peak"], rows, "peak_device_gib", "peak_ratio", "device peak", "GiB")
    _legend(figure, rows[rows["predicted_step_seconds"].notna()], shown)
    drawing.small_print(figure, rows.assign(sound=None, calibrated=None), *notes(rows))


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
    found = preferred(found)
    found = found.drop_duplicates([*case, "method", "variant"])
    own = found[~found["pinned"]]
    keys = [*case, "method"]
    known = set(own[keys].fillna(-1).itertuples(index=False, name=None))
    others = found[found["pinned"]].drop_duplicates(keys)
    extra = [key not in known for key in others[keys].fillna(-1).itertuples(index=False, name=None)]
    kept = pd.concat([own, others[extra]])
    places = {method: place for place, method in enumerate(LABELS)}
    return kept.assign(
        odd=[key != MODEL for key in kept[model[:3]].itertuples(index=False, name=None)],
        place=kept["method"].map(places),
    ).sort_values(
        ["batch", "odd", *model, "device_cap_gib", "place", "variant"],
        ascending=[True] * 6 + [False, True, True],
        na_position="first",  # no cap: the whole GPU
    )


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


def notes(rows: pd.DataFrame) -> list[str]:
    """The small print: where the numbers are from, what a bar and a point is, what is missing."""
    first, last = rows["date"].min(), rows["date"].max()
    days = f"{first}" if first == last else f"{first} to {last}"
    hidden, seq, dtype = MODEL
    out = [
        f"All bars and points are measured, on {rows['hardware'].iloc[0]}, {days}: hidden size "
        f"{hidden}, sequence {seq}, {dtype}, unless a model is named otherwise. B: billion "
        "parameters. Caps are of device memory. 100 % is the fastest plain training without a cap. "
        "A bar is the last run of its settings, with the lowest clipping limit that was run.",
        "A point is a run beside what its plan said before it: simulated over measured. Own runs: "
        "those on this project's runtime. Methods without points have no plan here. "
        f"The band is {WITHIN:.0%}.",
    ]
    absent = missing_cases(rows)
    if absent:
        out.append(f"Not measured: {'; '.join(absent)}.")
    return out


# -- bars -----------------------------------------------------------------------------------------


def _draw_shares(axes: Any, rows: pd.DataFrame, batch: int) -> None:
    """Bars of one batch: depths apart, caps within a depth, all bars equally wide."""
    from matplotlib.ticker import PercentFormatter

    axes.set_title(f"batch {batch}")
    axes.set_ylabel("share of plain training")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.tick_params(axis="x", length=0, labelsize=6, pad=8)
    if rows.empty:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, f"no run at batch {batch}", transform=axes.transAxes, ha="center")
        return
    ticks, x = {}, 0.0
    room = max(FEWEST, len(rows))
    least = NAME_SHARE * room
    for _, model in rows.groupby(["hidden", "seq", "dtype", "layers"], sort=False):
        caps = model.groupby("device_cap_gib", sort=False, dropna=False)
        slots = [max(len(group), CAP_SHARE * room) for _, group in caps]
        wide = sum(slots) + 0.8 * (len(slots) - 1)
        start, x = x, x + max(0.0, least - wide) / 2
        for slot, (cap, group) in zip(slots, caps, strict=True):
            middle = x + (slot - 1) / 2
            for i, run in enumerate(group.itertuples()):
                _bar(axes, run, middle + i - (len(group) - 1) / 2)
            ticks[middle] = "no cap" if pd.isna(cap) else f"{cap:g} GiB"
            x += slot + 0.8
        _name_model(axes, model, start + (max(least, wide) - 1) / 2)
        x = start + max(least, wide) + 2.0
    axes.set_xticks(list(ticks), list(ticks.values()))
    empty = max(0.0, FEWEST - x) / 2  # so that a few bars do not become walls
    axes.set_xlim(-0.9 - empty, x - 2.1 + empty)
    tall = rows["share"].max()
    axes.set_ylim(0, 1.55 * max(1.0, 0.0 if pd.isna(tall) else tall))
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--", zorder=0.5)


def _name_model(axes: Any, model: pd.DataFrame, x: float) -> None:
    """The model below its caps, with the absolute speed that is its 100 %."""
    first = model.iloc[0]
    size = model["parameters"].dropna()
    words = f"{first['layers']} layers" + (f", {size.iloc[0] / 1e9:.1f} B" if len(size) else "")
    plain = model["plain"].dropna()
    words += f"\nplain: {plain.iloc[0]:.3g} samples/s" if len(plain) else "\nno plain run"
    if first["odd"]:
        words += f"\nhidden size {first['hidden']}, {first['dtype']}"
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    look = {"ha": "center", "va": "top", "fontsize": 6.5, "linespacing": 1.1}
    axes.annotate(words, (x, 0), xytext=(0, -18), **place, **look)


def _bar(axes: Any, run: Any, x: float) -> None:
    """A bar, and below it the method's marker, which a grey print leaves to tell methods apart."""
    look = HERE_LOOKS[run.method]
    foot = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(x, -0.045, **_point(look, 3.2), **foot)
    text = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 5.5}
    if pd.isna(run.share):
        why = drawing.missing_words(run.status) if run.status != "ok" else "no plain run"
        axes.text(x, 0.02, why, color=look.color, **text)
        return
    face = lighter(look.color) if run.variant or look.pale else look.color
    axes.bar(x, run.share, 0.86, facecolor=face, edgecolor=look.color, linewidth=0.8)
    words = f"{run.share:.0%}" if run.share >= 0.1 else f"{run.share:.1%}"
    words = f"{words} {run.variant}".rstrip()
    axes.annotate(words, (x, run.share), xytext=(0, 2.5), textcoords="offset points", **text)


# -- predictions ----------------------------------------------------------------------------------


def _point(look: Look, size: float) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a method's marker, in points."""
    face = lighter(look.color) if look.pale else look.color
    look_of_it = {"markerfacecolor": face, "markeredgecolor": look.color, "markeredgewidth": 0.7}
    return {"marker": look.marker, "linestyle": "none", "markersize": size, **look_of_it}


def _draw_predictions(
    axes: Any, rows: pd.DataFrame, column: str, ratio: str, words: str, unit: str
) -> None:
    """Predicted over measured, over what was measured, with the band of good ones."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("log")
    axes.set_xlabel(f"measured {words} ({unit})")
    axes.set_ylabel("predicted / measured")
    axes.axhspan(1 - WITHIN, 1 + WITHIN, color="#eeeeee", zorder=0)
    axes.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--", zorder=0.5)
    known = rows[(rows["status"] == "ok") & rows[ratio].notna() & (rows[column] > 0)]
    if known.empty:
        axes.set_xticks([])
        axes.text(0.5, 0.8, "no run has a prediction", transform=axes.transAxes, ha="center")
        return
    for method, part in known.groupby("method", sort=False):
        look = HERE_LOOKS[method]
        axes.plot(part[column], part[ratio], **_point(look, 4))
    far = max(1.6 * WITHIN, 1.15 * float((known[ratio] - 1).abs().max()))
    axes.set_ylim(1 - far, 1 + far)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    _set_ticks(axes, known[column])
    own = own_ratios(rows, ratio)
    runs = "own run" if len(own) == 1 else "own runs"
    mean = f": {mean_deviation(own):.1%} off on the mean of {len(own)} {runs}" if len(own) else ""
    axes.set_title(f"{words}{mean}", fontsize=7)


def _set_ticks(axes: Any, values: pd.Series) -> None:
    """1, 2 and 5 of each decade: on a logarithm over less than one there may be no tick at all."""
    from matplotlib.ticker import NullLocator

    low, high = values.min() / 1.15, values.max() * 1.15
    ticks = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    axes.set_xlim(low, high)
    seen = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(seen or [values.max()])
    axes.xaxis.set_minor_locator(NullLocator())


def _legend(figure: Any, predicted: pd.DataFrame, shown: pd.DataFrame) -> None:
    """Above it all: every method once, with its marker."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = {*predicted["method"], *shown["method"]}
    looks = {LABELS[name]: HERE_LOOKS[name] for name in LABELS if name in there}
    handles = []
    for look in looks.values():
        face = lighter(look.color) if look.pale else look.color
        patch = Patch(facecolor=face, edgecolor=look.color)
        handles.append((patch, Line2D([], [], **_point(look, 4))))
    columns = 5
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-len(looks) // columns))
    figure.legend(
        handles,
        list(looks),
        loc="outside upper center",
        ncols=columns,
        columnspacing=1.2,
        handler_map={tuple: HandlerTuple(ndivide=None)},
        handlelength=2.2,
        borderpad=0.1,
    )
