"""The drawing kit of all exhibits: bars in groups, lines over a number, legend and small print.

Sources stand side by side, never stacked into one mark; spread is an error bar; a value that is
missing says why in its place. Small marks at the numbers send the reader to the small print: a
dagger for a published run that did not train what it names, a double dagger for a point whose
published value calibrated the simulation. Marks at one x stand beside each other. The small print
has two lines; all of it is the figure's label, which the report prints below.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.methods import METHODS, Method
from workbench.figures.rows import HERE, label_of, part_of, series_of
from workbench.figures.style import GREY, ORDER, PAGE_IN, bar_look, line_look, look_of, name_of
from workbench.runs.columns import ENDINGS

UNSOUND, CALIBRATED, BUSY = "\u2020", "\u2021", "\u00a7"
NOTE_PT = 6
PLOT_IN = 2.0
"""Height of a row of panels on a page; legend and small print come on top."""
UPRIGHT_IN = 0.3
"""Width of a bar below which the number at it stands upright."""
APART_PT, BESIDE_PT = 3.5, 12.0
"""Between marks of two series at one x, and most between the first and the last, in points."""
PRINT_LINES, PRINT_IN = 2, 0.1
LONGEST_WORDS = 26
"""Letters in place of a missing value; a longer reason stands in the small print."""

SHORT = {status: ending.words for status, ending in ENDINGS.items()} | {"": "not run"}
"""Words in place of a value that is missing."""


def missing_words(status: str) -> str:
    """Why there is no value: by the status of a run, or in words that stand in its place."""
    return "no value" if status == "ok" else SHORT.get(status, status)


def upright_words(status: str) -> str:
    """Why there is no value, in the height of a panel."""
    words = missing_words(status)
    return words if len(words) <= LONGEST_WORDS else SHORT[""]


def names_of(methods: Mapping[str, Method]) -> dict[str, str]:
    """Names below bars, in two lines where they are long."""
    return {name: method.label.replace("-", "-\n", 1) for name, method in methods.items()}


def prepare(figure: Any, rows: float = 1) -> None:
    """Give an empty figure the size of so many rows of panels."""
    figure.set_size_inches(PAGE_IN, PLOT_IN * rows)


def title(axes: Any, words: str) -> None:
    """Above a panel, left."""
    axes.set_title(words, loc="left", fontsize=7.5)


def empty(axes: Any, words: str, letters: int = 34) -> None:
    """A panel without any value, which says why, in lines of so many letters."""
    axes.set_axis_off()
    place = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, textwrap.fill(words, letters), fontsize=7, color=GREY, **place)


def beside(
    axes: Any, words: str, at: tuple[float, float], apart_pt: tuple[float, float], **look: Any
) -> Any:
    """Words so many points right of and above a place of the axes' data, or of its `xycoords`."""
    return axes.annotate(words, at, xytext=apart_pt, textcoords="offset points", **look)


def bars(
    axes: Any,
    rows: pd.DataFrame,
    groups: dict[Any, str],
    ylabel: str,
    *,
    column: str = "method",
    number: str = "{:.3g}",
    bound: bool = False,
    colors: Mapping[str, Any] | None = None,
) -> None:
    """One group of bars per key of `groups` (its value is the tick's label): the rows whose
    `column` is that key, series by series, in each of them method by method.

    With `bound` the number at a bar is followed by the tier that decided it. `colors`: of labels,
    where methods do not tell bars apart.
    """
    order = {key: place for place, key in enumerate(series_of(rows))}
    parts = [
        sorted(
            rows[rows[column] == key].itertuples(),
            key=lambda row: (order[row.source, row.variant], ORDER.index(row.method), row.Index),
        )
        for key in groups
    ]
    width = 0.86 / max(1, *(len(part) for part in parts))
    panel_in = axes.figure.get_figwidth() / len(axes.figure.axes)
    upright = width * panel_in / len(groups) < UPRIGHT_IN * (2 if bound else 1)
    tall = pd.concat([rows["value"], rows["high"]]).max()
    top = 1.0 if pd.isna(tall) else float(tall)
    for place, part in enumerate(parts):
        for i, row in enumerate(part):
            x = place + (i - (len(part) - 1) / 2) * width
            words = f"{number.format(row.value)}{marks(row)}"
            words = f"{words} {row.bound}" if bound else words
            color = look_of(row.method).color if colors is None else colors[row.label]
            _bar(axes, row, x, width * 0.86, top, words, color, upright=upright)
    axes.set_xticks(range(len(groups)), list(groups.values()))
    axes.tick_params(axis="x", length=0, labelsize=6.3 if panel_in < 4 else 7)
    axes.set_xlim(-0.55, len(groups) - 0.45)
    axes.set_ylim(0, top * (1.55 if bound else 1.32 if upright else 1.18))
    axes.set_ylabel(ylabel)


def _bar(
    axes: Any,
    row: Any,
    x: float,
    width: float,
    top: float,
    words: str,
    color: Any,
    *,
    upright: bool,
) -> None:
    place: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": NOTE_PT}
    if pd.isna(row.value):
        axes.text(x, top * 0.02, upright_words(row.status), rotation=90, color=color, **place)
        return
    axes.bar(x, row.value, width, **bar_look(color, row.source, row.variant))
    end, above = row.value, 2.5
    if not pd.isna(row.high):
        low = row.value if pd.isna(row.low) else row.low
        error = [[row.value - low], [row.high - row.value]]
        axes.errorbar(x, row.value, yerr=error, color="black", capsize=1.5, lw=0.7, capthick=0.7)
        end, above = max(end, row.high), 3.5
    beside(axes, words, (x, end), (0, above), rotation=90 if upright else 0, **place)


def marks(row: Any) -> str:
    """The daggers of a row."""
    unsound = row.source == "published" and row.sound is False
    calibrated = getattr(row, "calibrated", None) is True
    return UNSOUND * unsound + CALIBRATED * calibrated + BUSY * bool(getattr(row, "busy", ""))


def lines(
    axes: Any,
    rows: pd.DataFrame,
    xlabel: str,
    ylabel: str,
    *,
    log: str = "",
    ticks: Iterable[float] = (),
) -> None:
    """Value over x, a line per method, source and variant, with its spread. `log` names axes that
    are logarithmic: ``x``, ``y``, ``xy``. `ticks`: of x, else whole numbers."""
    methods = [method for method in ORDER if method in set(rows["method"])]
    known = rows.dropna(subset=["value"]).sort_values("x")
    parts = [
        (part, line_look(method, *series))
        for series in series_of(rows)
        for method in methods
        if len(part := part_of(known[known["method"] == method], *series))
    ]
    apart = min(APART_PT, BESIDE_PT / len(parts)) if parts else 0.0
    for place, (part, look) in enumerate(parts):
        _line(axes, part, look, apart * (place - (len(parts) - 1) / 2))
    _mark_points(axes, known)
    absent = rows[rows["value"].isna() & rows["x"].notna()]
    for (x, status), part in absent.groupby(["x", "status"], sort=False):
        place = {"xycoords": ("data", "axes fraction"), "rotation": 90, "fontsize": NOTE_PT}
        whose = {look_of(method).color for method in part["method"]}
        color = whose.pop() if len(whose) == 1 else GREY
        axes.annotate(upright_words(status), (x, 0.02), ha="center", va="bottom", color=color,
                      **place)  # fmt: skip
    if "x" in log:
        axes.set_xscale("log", base=2)
    if "y" in log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    if ticks:
        axes.set_xticks(list(ticks), [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    elif (rows["x"].dropna() % 1 == 0).all():
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.margins(x=0.12 if ticks else 0.08)


def _line(axes: Any, part: pd.DataFrame, look: dict[str, Any], aside_pt: float) -> None:
    """A line, so many points beside its place, where the marks of others are."""
    from matplotlib.transforms import ScaledTranslation

    drawn = axes.plot(part["x"], part["value"], clip_on=False, **look)  # whole marks at 0, too
    spread = part.dropna(subset=["high"])
    if len(spread):
        low = spread["low"].fillna(spread["value"])
        error = [spread["value"] - low, spread["high"] - spread["value"]]
        thin = {"fmt": "none", "color": look["color"], "capsize": 1.5, "lw": 0.7}
        drawn += axes.errorbar(spread["x"], spread["value"], yerr=error, **thin).get_children()
    aside = ScaledTranslation(aside_pt / 72, 0, axes.figure.dpi_scale_trans)
    for mark in drawn:
        mark.set_transform(axes.transData + aside)


def _mark_points(axes: Any, known: pd.DataFrame) -> None:
    """Say below all marks of an x, where no whisker is, which of them calibrate, or were measured
    on a busy machine."""
    look = {"fontsize": 7, "ha": "center", "va": "top"}
    for x, there in known.groupby("x"):
        signs = {*"".join(map(marks, there.itertuples()))} - {UNSOUND}
        if signs:
            lowest = there[["value", "low"]].min(axis=None)
            beside(axes, "".join(sorted(signs)), (x, lowest), (0, -4), **look)


def legend(
    figure: Any,
    rows: pd.DataFrame,
    *,
    as_lines: bool = False,
    methods: bool = True,
    more: Iterable[tuple[Any, str]] = (),
) -> None:
    """Above the axes: each method by its colour (where not every mark names it), then each source
    by its fill, then `more` (handle, name). The figure grows by it."""
    entries: list[tuple[Any, str]] = []
    there = [method for method in ORDER if method in set(rows["method"])]
    for method in there if methods else ():
        look = look_of(method)
        line = {"color": look.color, "marker": look.marker, "markersize": 4.5, "linewidth": 0.9}
        entries.append((stroke(**line) if as_lines else patch(color=look.color), label_of(method)))
    for source, variant in series_of(rows):
        if as_lines:
            color = {"color": GREY} if methods else {}
            handle = stroke(**line_look(there[0], source, variant) | color)
        else:
            handle = patch(**bar_look(GREY, source, variant))
        entries.append((handle, _series_name(part_of(rows, source, variant))))
    place_legend(figure, [*entries, *more])


def stroke(**look: Any) -> Any:
    """A line or mark in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def patch(**look: Any) -> Any:
    """A filled box in a legend."""
    from matplotlib.patches import Patch

    return Patch(**look)


def place_legend(figure: Any, entries: list[tuple[Any, str]]) -> None:
    """Above it all, in as few even rows as the width allows; the figure grows by them."""
    from matplotlib.legend_handler import HandlerTuple

    handles, names = zip(*entries, strict=True) if entries else ((), ())
    letters = figure.get_figwidth() * 17  # of 7 point
    wide = [len(name) + 7 for name in names]
    columns = next(
        (n for n in range(len(names), 1, -1) if sum(map(max, np.array_split(wide, n))) <= letters),
        1,
    )
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.15 * rows)
    figure.legend(
        handles, names, loc="outside upper center", ncols=-(-len(names) // max(1, rows)),
        columnspacing=1.3, borderpad=0.1, handlelength=2.2,
        handler_map={tuple: HandlerTuple(ndivide=None)},
    )  # fmt: skip


def _series_name(part: pd.DataFrame) -> str:
    """A series in words, with its hardware where that is one, and a dagger where it is not
    sound."""
    first = part.iloc[0]
    devices = [name for name in dict.fromkeys(part["hardware"]) if name]
    name = name_of(first["source"], first["variant"], devices[0] if len(devices) == 1 else "")
    unsound = first["source"] == "published" and not part["sound"].any()
    return f"{name} {UNSOUND}" if unsound else name


def small_print(figure: Any, *sentences: str) -> None:
    """Under the axes and what stands there, the figure growing by it: the sentences that fit two
    lines, in order. The figure's label has all of them, for the report."""
    told = " ".join(text for text in sentences if text)
    figure.set_label(" ".join(filter(None, [figure.get_label(), told])))
    width = int(figure.get_figwidth() * 20.5)  # characters of 6 point
    found: list[str] = []
    for sentence in re.split(r"(?<=[.;]) (?=[A-Z\u2020\u2021])", told):
        longer = textwrap.wrap(" ".join([*found, sentence]), width)
        if len(longer) > PRINT_LINES:
            break
        found = longer
    if found:
        figure.set_figheight(figure.get_figheight() + PRINT_IN * len(found))
        found = [*filter(None, [figure.get_supxlabel()]), *found]
        figure.supxlabel("\n".join(found), fontsize=NOTE_PT, color=GREY, ha="left", x=0.01)


def daggers(rows: pd.DataFrame) -> list[str]:
    """Sentences on the marks of rows: why a published value is not sound, what calibrates."""
    out = []
    unsound = rows[[UNSOUND in marks(row) for row in rows.itertuples()]]
    if len(unsound):
        told = [f"{METHODS[name].label}: {_defects(name)}" for name in unsound["method"].unique()]
        out = [f"{UNSOUND} published run not sound.", ". ".join(told) + "."]
    if any(CALIBRATED in marks(row) for row in rows.itertuples()):
        out.insert(1, f"{CALIBRATED} its published value calibrates the simulation.")
    return out


def _defects(method: str) -> str:
    from workbench.published.tables import defects, published

    table = published()
    ids = " ".join(table[(table["method"] == method) & ~table["sound"]]["defects"]).split()
    short = defects()["short"]
    return ", ".join(words for name, words in short.items() if words and name in ids)


def relative_to_method(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Each series' values over its own value of one method; as published where it has none.

    A simulation of our own runtime has no Megatron-LM of its own: the published system is its too.
    """

    def base_of(part: pd.DataFrame) -> pd.Series:
        own = part[part["method"] == method]["value"].dropna()
        if own.empty and "simulated" in set(part["source"]):
            own = rows[(rows["source"] == "simulated") & (rows["method"] == method)]["value"]
        return own.dropna()

    return _relative(rows, base_of)


def relative_to_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Each series' values over its own value at the smallest x."""
    known = rows.dropna(subset=["value"]).sort_values("x")
    return _relative(known, lambda part: part["value"])


def _relative(rows: pd.DataFrame, base_of: Callable[[pd.DataFrame], pd.Series]) -> pd.DataFrame:
    """Each series' values over the first of its base; without a base, nothing."""
    out = []
    for series in series_of(rows):
        part = part_of(rows, *series)
        if len(base := base_of(part)):
            columns = {name: part[name] / float(base.iloc[0]) for name in ("value", "low", "high")}
            out.append(part.assign(**columns))
    return pd.concat(out) if out else rows.iloc[:0]


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that a panel of ratios compares: everything but predictions of the runs shown beside
    it."""
    return rows[rows["variant"] != HERE]
