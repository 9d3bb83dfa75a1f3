"""The two drawings all five exhibits need: bars in groups, and lines over a number.

Sources stand side by side, never stacked into one mark; spread is an error bar; a value that is
missing says why in its place. Small marks at the numbers send the reader to the small print: a
dagger for a published run that did not train what it names, a double dagger for a point whose
published value calibrated the simulation.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd

from workbench.figures.rows import HERE, SOURCES, part_of, series_of
from workbench.figures.style import GREY, LOOKS, bar_look, line_look, name_of
from workbench.runs.methods import METHODS, Method

UNSOUND, CALIBRATED = "\u2020", "\u2021"

SHORT = {
    "oom_device": "out of device memory",
    "oom_host": "out of host memory",
    "oom_disk": "out of disk",
    "timeout": "timed out",
    "cancelled": "cancelled",
    "diverged": "diverged",
    "error": "failed",
    "": "not run",
}
"""What stands where a value is missing."""

DEFECTS = {
    "row-adam": "updates 0.09 % of an offloaded layer",
    "races": "copies not ordered with compute",
    "partial-lr": "learning rate and clipping reach one layer",
    "not-l2l": "not the published algorithm, its loss never falls",
    "killed": "killed after 10 iterations",
}
"""Why a published run is not sound, in the space a figure has."""


def missing_words(status: str) -> str:
    """Why there is no value."""
    return SHORT.get(status, "no value")


def names_of(methods: Mapping[str, Method]) -> dict[str, str]:
    """Names below bars, in two lines where they are long."""
    return {name: method.label.replace("-", "-\n", 1) for name, method in methods.items()}


def bars(
    axes: Any,
    rows: pd.DataFrame,
    groups: dict[str, str],
    ylabel: str,
    *,
    column: str = "method",
    number: str = "{:.3g}",
    bound: bool = False,
) -> None:
    """One group of bars per key of `groups` (its value is the tick's label).

    A group holds the rows whose `column` is its key, the baseline before STRONGHOLD in each series.
    With `bound` the number at a bar is followed by the tier that decided it.
    """
    series = series_of(rows)
    parts = {key: _ordered(rows[rows[column] == key], key, series) for key in groups}
    width = 0.86 / max(1, *(len(part) for part in parts.values()))
    upright = width < (0.6 if bound else 0.3)
    tall = pd.concat([rows["value"], rows["high"]]).max()
    top = 1.0 if pd.isna(tall) else float(tall)
    for place, part in enumerate(parts.values()):
        for i, row in enumerate(part):
            x = place + (i - (len(part) - 1) / 2) * width
            words = f"{number.format(row.value)}{marks(row)}"
            words = f"{words} {row.bound}" if bound else words
            _bar(axes, row, x, width, top, words, upright=upright)
    axes.set_xticks(range(len(groups)), list(groups.values()))
    narrow = axes.figure.get_figwidth() / len(axes.figure.axes) < 4
    axes.tick_params(axis="x", length=0, labelsize=6.3 if narrow else 7)
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, top * (1.55 if bound else 1.3 if upright else 1.16))
    axes.set_ylabel(ylabel)


def _ordered(part: pd.DataFrame, key: str, series: list[tuple[str, str]]) -> list[Any]:
    def place(row: Any) -> tuple[int, bool]:
        return series.index((row.source, row.variant)), row.method != key

    return sorted(part.itertuples(), key=place)


def _bar(
    axes: Any, row: Any, x: float, width: float, top: float, words: str, *, upright: bool
) -> None:
    if pd.isna(row.value):
        why = missing_words(row.status)
        axes.text(x, top * 0.02, why, rotation=90, ha="center", va="bottom", fontsize=6, color=GREY)
        return
    axes.bar(
        x, row.value, width * 0.86, **bar_look(LOOKS[row.method].color, row.source, row.variant)
    )
    end, above = row.value, 2.5
    if not (pd.isna(row.low) or pd.isna(row.high)):
        error = [[row.value - row.low], [row.high - row.value]]
        axes.errorbar(x, row.value, yerr=error, color="black", capsize=1.5, lw=0.7, capthick=0.7)
        end, above = row.high, 3.5
    axes.annotate(
        words,
        (x, end),
        xytext=(0, above),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=6,
        rotation=90 if upright else 0,
    )


def marks(row: Any) -> str:
    """The daggers of a row."""
    unsound = UNSOUND if row.source == "published" and row.sound is False else ""
    return unsound + (CALIBRATED if row.calibrated is True else "")


def lines(axes: Any, rows: pd.DataFrame, xlabel: str, ylabel: str) -> None:
    """Value over x, one line per (source, variant), quartiles as error bars."""
    for source, variant in series_of(rows):
        part = part_of(rows, source, variant).sort_values("x")
        shown = part.dropna(subset=["value"])
        if not shown.empty:
            look = line_look(shown["method"].iloc[0], source, variant)
            axes.plot(shown["x"], shown["value"], label=_series_name(shown), **look)
            _spread(axes, shown, look["color"])
            for row in shown.itertuples():
                if row.calibrated is True:
                    place = {"xytext": (4, 3), "textcoords": "offset points", "fontsize": 7}
                    axes.annotate(CALIBRATED, (row.x, row.value), **place)
        for row in part[part["value"].isna()].itertuples():
            axes.annotate(
                missing_words(row.status),
                (row.x, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize=6,
                ha="center",
                va="bottom",
                color=GREY,
            )
    if (rows["x"].dropna() % 1 == 0).all():
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.04)
    axes.margins(x=0.04)


def _spread(axes: Any, shown: pd.DataFrame, color: str) -> None:
    spread = shown.dropna(subset=["low", "high"])
    if len(spread):
        error = [spread["value"] - spread["low"], spread["high"] - spread["value"]]
        axes.errorbar(
            spread["x"], spread["value"], yerr=error, fmt="none", color=color, capsize=1.5, lw=0.7
        )


def _series_name(part: pd.DataFrame) -> str:
    first = part.iloc[0]
    name = name_of(first["source"], first["variant"], first["hardware"])
    unsound = first["source"] == "published" and not part["sound"].any()
    return f"{name} {UNSOUND}" if unsound else name


def legend_of_bars(figure: Any, rows: pd.DataFrame, *, pairs: bool = False) -> None:
    """Above the axes: which mark is published, simulated, measured; in `pairs`, whose bar it is."""
    from matplotlib.patches import Patch

    handles, names = [], []
    for source, variant in series_of(rows):
        part = part_of(rows, source, variant)
        handles.append(Patch(**bar_look(GREY, source, variant)))
        names.append(_series_name(part))
    if pairs:
        handles += [
            Patch(color="#bbbbbb"),
            Patch(color=LOOKS["stronghold"].color),
        ]
        names += ["the baseline named below", METHODS["stronghold"].label]
    _place_legend(figure, handles, names)


def legend_of_lines(figure: Any) -> None:
    """Above the axes: every line once."""
    known: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(name, handle)
    names = sorted(known, key=lambda name: SOURCES.index(name.split()[0].rstrip(":")))
    _place_legend(figure, [known[name] for name in names], names)


def _place_legend(figure: Any, handles: list[Any], names: list[str]) -> None:
    """In as few even rows as the width allows; the figure grows by them."""
    letters = figure.get_figwidth() * 17  # of 7 point
    longest = max((len(name) + 6 for name in names), default=1)
    columns = max(1, min(len(names), int(letters // longest)))
    rows = -(-len(names) // columns)
    columns = -(-len(names) // rows)
    figure.set_figheight(figure.get_figheight() + 0.15 * rows)
    figure.legend(
        handles, names, loc="outside upper center", ncols=columns, columnspacing=1.4, borderpad=0.1
    )


def small_print(figure: Any, rows: pd.DataFrame, *more: str) -> None:
    """Under the axes, the figure growing by it: what the marks mean, why a published value is not
    sound, and `more`."""
    sentences = [*more]
    unsound = rows[[UNSOUND in marks(row) for row in rows.itertuples()]]
    if len(unsound):
        told = [f"{METHODS[name].label}: {_defects(name)}" for name in unsound["method"].unique()]
        sentences.append(f"{UNSOUND} published run not sound. " + ". ".join(told) + ".")
    if any(CALIBRATED in marks(row) for row in rows.itertuples()):
        sentences.append(f"{CALIBRATED} its published value calibrates the simulation.")
    if not sentences:
        return
    width = int(figure.get_figwidth() * 22)  # characters of 6 point
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, width)]
    figure.set_figheight(figure.get_figheight() + 0.1 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=6, color=GREY, ha="left", x=0.01)


def _defects(method: str) -> str:
    from workbench.published.tables import published

    table = published("stronghold")
    ids = " ".join(table[(table["method"] == method) & ~table["sound"]]["defects"]).split()
    return ", ".join(words for name, words in DEFECTS.items() if name in ids)


def relative_to_method(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Each series' values over its own value of one method; as published where it has none.

    A simulation of our own runtime has no Megatron-LM of its own: the published system is its too.
    """
    out = []
    for source, variant in series_of(rows):
        part = part_of(rows, source, variant).copy()
        base = part[part["method"] == method]["value"].dropna()
        if base.empty and source == "simulated":
            base = rows[(rows["source"] == source) & (rows["method"] == method)]["value"].dropna()
        if base.empty:
            continue
        for column in ("value", "low", "high"):
            part[column] = part[column] / float(base.iloc[0])
        out.append(part)
    return pd.concat(out) if out else rows.iloc[:0]


def relative_to_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Each series' values over its own value at the smallest x."""
    out = []
    for source, variant in series_of(rows):
        part = part_of(rows, source, variant).dropna(subset=["value"]).sort_values("x").copy()
        if part.empty:
            continue
        base = float(part["value"].iloc[0])
        for column in ("value", "low", "high"):
            part[column] = part[column] / base
        out.append(part)
    return pd.concat(out) if out else rows.iloc[:0]


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """What a panel of ratios compares: everything but predictions of the runs shown beside it."""
    return rows[rows["variant"] != HERE]
