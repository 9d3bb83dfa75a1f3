"""A plan of operators as a picture: stages side by side in the model's order, as wide as their
operators are many and as high as their devices are, coloured by tp x dp.

It is drawn from plain data: the keys of a plan's file (``num_gpus``, and by stage and operator
``model_parallel_size_of_each_op``, ``data_parallel_size_of_each_op``, ``recompute_ops``,
``algo_of_each_op``), and the costs of its stages, where they are known. Neighbours that are alike
are one box. Recomputed operators are a strip below their boxes, operators whose weights are cut
along the other dimension one above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from workbench.figures.draw import NOTE_PT, patch
from workbench.figures.style import GREY

COLOURS = {
    (1, 1): "#C8C8C8", (1, 2): "#9AD0F2", (1, 4): "#56A5D8", (1, 8): "#0072B2",
    (2, 1): "#F5C542", (4, 1): "#E69F00", (8, 1): "#B45F06", (2, 2): "#E3A6C6",
    (2, 4): "#CC79A7", (4, 2): "#8E5A9E",
}  # fmt: skip
"""(tp, dp) -> colour: dp alone is blue, tp alone yellow, both purple, darker for more devices."""
OTHER = "#777777"
"""Colour of any other pair."""
AGAIN, TURNED = "#004D40", "#D55E00"
"""Colours of recomputed operators, and of those cut along the other dimension."""
STRIP, WORDS, LINE = 0.11, 0.18, 0.17
"""Height of a strip, place of the words below the stages, and height of a line of them, of that of
the highest stage."""
LETTERS = 120
"""Of words in a page's width."""
APART = 0.004
"""Between stages, of all operators."""


def draw_plan(
    axes: Any, plan: Mapping[str, Any], cost: Mapping[str, Any] | None = None, *,
    limit_mb: float | None = None,
) -> None:  # fmt: skip
    """Draw a plan, a dictionary as its file has it, on axes a page wide. `cost` has
    ``iteration_ms``, ``memory_mb`` and ``stages``, each with its own of both, which stand below the
    stages, those of the slowest in bold. `limit_mb`: memory of a device, for the heading."""
    gpus, counts = plan["num_gpus"], plan["num_ops_in_each_stage"]
    total, tall, first = sum(counts), max(gpus), 0
    strip, apart = STRIP * tall, APART * total
    flags = plan["recompute_ops"], plan["algo_of_each_op"]
    narrow = min(counts) * LETTERS < total * len(f"stage 0: {total} operators,")
    costs = cost["stages"] if cost else [{}] * len(gpus)
    slowest = max(each.get("iteration_ms", 0) for each in costs)
    for index, (high, size, own) in enumerate(zip(gpus, counts, costs, strict=True)):
        for begin, wide, pair in _runs(_pairs(plan, index)):
            shown = min(wide, size - apart - begin)
            _bar(axes, first + begin, shown, 0, high, _colour(pair))
            words = "{}x{}".format(*pair)
            if LETTERS * wide > total * (len(words) + 1):
                place = first + begin + wide / 2, high / 2
                axes.text(*place, words, ha="center", va="center", fontsize=NOTE_PT)
        for each, bottom, color in zip(flags, (-strip, high), (AGAIN, TURNED), strict=True):
            for begin, wide, flag in _runs(each[index]):
                if flag:
                    wide = min(wide, size - apart - begin)
                    _bar(axes, first + begin, wide, bottom, strip, color)
        box = {"facecolor": "none", "edgecolor": "black", "lw": 0.8, "align": "edge"}
        axes.bar(first, high, size - apart, **box)
        words, weight = _words(index, size, flags[0][index], own, narrow), "normal"
        if own and own["iteration_ms"] == slowest:
            weight = "bold"
        axes.text(first + size / 2, -WORDS * tall, words, ha="center", va="top",
                  fontsize=NOTE_PT, fontweight=weight)  # fmt: skip
        first += size
    below = WORDS + LINE * (1 + words.count("\n"))
    axes.set(xlim=(-apart, total), ylim=(-below * tall, (1 + STRIP) * tall), xticks=[])
    axes.set_yticks(sorted({0, *gpus}))
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_ylabel("GPUs")
    axes.set_title(heading(plan, cost, limit_mb), loc="left", fontsize=7.5)


def heading(
    plan: Mapping[str, Any], cost: Mapping[str, Any] | None = None, limit_mb: float | None = None
) -> str:
    """A plan in a line: model, micro-batch, and what it costs."""
    words = f"{plan['model_name']} {plan['model_size'].replace('_', '.')}, micro-batches of "
    words += f"{plan['micro_batch_size']} of {plan['global_batch_size']}"
    if cost:
        ms = cost["iteration_ms"]
        most = f" of {limit_mb:,.0f}" if limit_mb else ""
        rate = plan["global_batch_size"] / ms * 1000
        words += f": {ms:,.0f} ms, {rate:,.2f} samples/s, {cost['memory_mb']:,.0f}{most} MB"
    return words


def keys(plans: Sequence[Mapping[str, Any]]) -> list[tuple[Any, str]]:
    """Handles and names, for a legend, of what these plans show."""
    indices = [(plan, index) for plan in plans for index in range(len(plan["num_gpus"]))]
    pairs = sorted({pair for plan, index in indices for pair in _pairs(plan, index)})
    edge = {"edgecolor": GREY, "lw": 0.5}
    found = [
        (patch(facecolor=_colour(pair), **edge), "tp {}, dp {}".format(*pair)) for pair in pairs
    ]
    strips = (
        ("recompute_ops", AGAIN, "recomputed (rc)"),
        ("algo_of_each_op", TURNED, "weights cut along the other dimension"),
    )
    for key, color, name in strips:
        if any(any(flags) for plan in plans for flags in plan[key]):
            found.append((patch(color=color), name))
    return found


def _pairs(plan: Mapping[str, Any], index: int) -> list[tuple[int, int]]:
    """(tp, dp) of each operator of a stage."""
    kinds = (plan[f"{kind}_parallel_size_of_each_op"][index] for kind in ("model", "data"))
    return [*zip(*kinds, strict=True)]


def _colour(pair: tuple[int, int]) -> str:
    return COLOURS.get(pair, OTHER)


def _runs(values: Iterable[Any]) -> Iterator[tuple[int, int, Any]]:
    """Begin, size and value of neighbours that are equal."""
    at = 0
    for value, run in groupby(values):
        size = len([*run])
        yield at, size, value
        at += size


def _bar(axes: Any, left: float, wide: float, bottom: float, high: float, color: str) -> None:
    axes.bar(left, high, wide, bottom, align="edge", color=color, lw=0)


def _words(
    index: int, size: int, again: Sequence[int], cost: Mapping[str, Any], narrow: bool
) -> str:
    if narrow:
        words = f"#{index}\n{size} ops\n{sum(again)} rc"
        held = (
            f"\n{cost['iteration_ms'] / 1e3:.3g} s\n{cost['memory_mb'] / 1024:.1f} GiB"
            if cost
            else ""
        )
        return words + held
    words = f"stage {index}: {size} operators,\n{sum(again)} recomputed"
    return words + (
        f"\n{cost['iteration_ms']:,.0f} ms, {cost['memory_mb']:,.0f} MB" if cost else ""
    )
