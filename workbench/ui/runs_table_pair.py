"""Two runs in one figure: their losses over each other, their lanes beside each other."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from workbench.figures.style import GREY, PAGE_IN, bar_look, styled

COLOURS = ("#0072B2", "#D55E00")
MARKERS = ("o", "s")
COLUMNS = (("predicted_a", 0, "simulated"), ("a", 0, "measured"), ("predicted_b", 1, "simulated"),
           ("b", 1, "measured"))  # fmt: skip
"""Bars of a group, from above: the prediction above the measurement."""


def draw_pair(order: dict[str, Any]) -> Figure:
    """The figure of what `Comparison.order` made; a part without data is left out."""
    lanes = order["lanes"]
    bars = [column for column in COLUMNS if any(row[column[0]] is not None for row in lanes)]
    with styled():
        height = max(2.6, 0.5 + 0.13 * len(lanes) * (len(bars) + 1))
        figure = Figure(figsize=(PAGE_IN, height), layout="constrained")
        if bars:
            left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
            _lanes(right, lanes, bars)
        else:
            left = figure.subplots()
        _losses(left, order["losses"])
        _legend(figure, order, bars)
    return figure


def _losses(axes: Any, losses: list[list[float | None]]) -> None:
    for place, values in enumerate(losses):
        points = [(step, value) for step, value in enumerate(values, 1) if value is not None]
        if not points:
            continue
        # Equal curves hide each other: the second is thinner and dashed, its marks are smaller.
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[place],
            marker=MARKERS[place] if len(points) <= 60 else None,
            markersize=(5, 3)[place],
            linewidth=(2, 1)[place],
            linestyle=("-", "--")[place],
        )
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.set_title("loss")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if not any(value is not None for values in losses for value in values):
        axes.annotate("no losses", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)


def _lanes(axes: Any, lanes: list[dict[str, Any]], bars: list[tuple[str, int, str]]) -> None:
    ranks = len({row["rank"] for row in lanes}) > 1
    thick = 0.8 / len(bars)
    largest = max(row[name] for row in lanes for name, *_ in bars if row[name] is not None)
    unit, factor = ("s", 1.0) if largest >= 1 else ("ms", 1e3)
    for place, row in enumerate(lanes):
        for number, (name, run, source) in enumerate(bars):
            at = place + (number - (len(bars) - 1) / 2) * thick
            if row[name] is None:
                continue
            axes.barh(at, row[name] * factor, thick * 0.86, **bar_look(COLOURS[run], source))
            axes.annotate(f"{row[name] * factor:.3g}", (row[name] * factor, at), xytext=(2, 0),
                          textcoords="offset points", fontsize=5.5, va="center")  # fmt: skip
    labels = [f"{row['words']}, rank {row['rank']}" if ranks else row["words"] for row in lanes]
    axes.set_yticks(range(len(lanes)), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.margins(x=0.12)
    axes.set_xlabel(f"busy ({unit} a step)")
    axes.set_title("lanes")


def _legend(figure: Figure, order: dict[str, Any], bars: list[tuple[str, int, str]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for place, name in enumerate(order["names"]):
        handles.append(
            Line2D([], [], color=COLOURS[place], marker=MARKERS[place], markersize=4, label=name,
                   linestyle=("-", "--")[place])
        )  # fmt: skip
    for source in sorted({source for *_, source in bars}, reverse=True):
        handles.append(Patch(label=source, **bar_look(GREY, source)))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
