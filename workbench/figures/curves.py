"""Losses of several methods over each other, and how far each is from plain training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.figures import draw
from workbench.figures.style import GREY, look_of

EQUAL = 1e-10
"""Where the drawing puts a difference of nothing, which a logarithm has no place for."""
HALF_UNIT = 2**-24
"""Relative rounding error of fp32."""


def differences(losses: Sequence[float], plain: Sequence[float]) -> list[float]:
    """Relative difference of losses from those of plain training, by step, as far as both go."""
    return [abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=False) if b]


def draw_curves(
    left: Any, right: Any, losses: Mapping[str, Sequence[float]], plain: str, most: float = 1e-2
) -> None:
    """Losses by method, one on the other, and beside them their differences from `plain`, up to
    `most`."""
    for place, (method, values) in enumerate(losses.items()):
        look = look_of(method)
        style = {"color": look.color, "marker": look.marker, "markevery": -(-len(values) // 12)}
        # Equal curves hide each other: each later one is drawn thinner, with a larger marker.
        thin = {"markersize": 4 + 2 * place, "markerfacecolor": "none", "lw": max(0.6, 3 - place)}
        left.plot(range(1, len(values) + 1), values, clip_on=False, **style, **thin)
        off = differences(values, losses.get(plain, ()))
        if method != plain and off:
            shown = [max(value, EQUAL) for value in off]
            right.semilogy(range(1, len(off) + 1), shown, **style, ms=4, lw=0.9)
    right.axhline(HALF_UNIT, color="#888888", lw=0.8, ls=":")
    note(right, HALF_UNIT, "half a unit\nof fp32")
    left.set(xlabel="step", ylabel="loss (nats)")
    right.set(xlabel="step", ylabel="relative difference", ylim=(EQUAL / 3, most))
    right.set_yticks([EQUAL, 1e-7, 1e-5, 1e-3], ["equal", "1e-7", "1e-5", "1e-3"])
    right.minorticks_off()
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)


def note(axes: Any, level: float, words: str) -> None:
    """Words on a level beside the axes, where no point is."""
    place = {"xycoords": axes.get_yaxis_transform(), "va": "center", "annotation_clip": False}
    axes.annotate(words, (1.01, level), fontsize=draw.NOTE_PT, color=GREY, **place)


def draw_held_out(
    axes: Any, runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], name: str
) -> None:
    """A figure of evaluations by step, a line a run: (label, evaluations); runs of one label look
    alike, as other seeds of one algorithm do."""
    labels = dict.fromkeys(label for label, _ in runs)
    colors = {label: f"C{place % 10}" for place, label in enumerate(labels)}
    for label, evaluations in runs:
        points = [(one["step"], float(one[name])) for one in evaluations if name in one]
        if points:
            shown = label if label in labels else None  # once in the legend
            labels.pop(label, None)
            axes.plot(*zip(*points, strict=True), "o-", ms=3, color=colors[label], label=shown)
    axes.set(xlabel="step", ylabel=f"held-out {name}")
    axes.legend(fontsize=draw.NOTE_PT)


def draw_training(axes: Any, losses: Mapping[int, float], held: Mapping[int, float]) -> None:
    """Losses of one run by step, and those of held-out data."""
    axes.plot([*losses], [*losses.values()], "-", lw=1, color="C0", label="trained on")
    if held:
        axes.plot([*held], [*held.values()], "o-", ms=4, color="C1", label="held out")
    axes.set(xlabel="step", ylabel="loss of a token (nats)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=draw.NOTE_PT)
