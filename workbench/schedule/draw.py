"""Timelines as figures: who does what when, and what it holds.

One row a lane, ranks kept together, colours as in looks.py. Simulated bars are hatched and measured
ones filled, as everywhere in the project. Only events are read, so a prediction and a measurement
are drawn by the same code, one above the other at one scale.

Figures are made without pyplot: nothing global is touched, and nothing needs a display. Places are
inches from the top, since a row of print must stay legible whatever the number of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from workbench.schedule.action import COMPUTE, LANES, lane_kind
from workbench.schedule.looks import LOOKS, ActionStyle
from workbench.schedule.schedule import TIERS, Schedule
from workbench.schedule.simulate import Event, memory_timeline
from workbench.schedule.waits import told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Source = Literal["simulated", "measured"]
COLUMN_IN = 3.3
"""Width of a column in print."""
LEFT_IN, RIGHT_IN, TITLE_IN, ROW_IN = 0.6, 0.1, 0.3, 0.15
MEMORY_IN, AXIS_IN, LEGEND_IN = 0.5, 0.33, 0.13
LABEL_PT = 5.0
"""Letters in boxes. Smaller ones cannot be read in print: a box that is too small stays empty."""


RC = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.35,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "workbench",
}


def draw_timeline(
    events: Iterable[Event],
    *,
    source: Source,
    title: str = "",
    schedule: Schedule | None = None,
    steps: Iterable[int] | None = None,
    width_in: float = COLUMN_IN,
    unit: str = "",
) -> Figure:
    """One timeline; with its schedule, also the memory of each tier that changes or has a budget.

    `steps` picks some steps of a long run; `unit` names that of the events' times, where these are
    no seconds. Raises ValueError when there is nothing to draw.
    """
    import matplotlib as mpl

    shown = _chosen(events, steps)
    with mpl.rc_context(RC):
        page = _Page(told_apart(shown), width_in, _span(shown), unit)
        page.lanes(told_apart(shown), source, f"{title + ', ' if title else ''}{source}")
        for rank, tier in _tiers(schedule, shown) if schedule else ():
            page.memory(schedule, shown, source, tier, rank)
        return page.figure()


def draw_comparison(
    predicted: Iterable[Event],
    measured: Iterable[Event],
    *,
    title: str = "",
    steps: Iterable[int] | None = None,
    width_in: float = COLUMN_IN,
) -> Figure:
    """A simulated timeline above a measured one, both from their own start and at one scale."""
    import matplotlib as mpl

    above, below = (told_apart(_chosen(each, steps)) for each in (predicted, measured))
    ends = [end - start for start, end in (_span(above), _span(below))]
    with mpl.rc_context(RC):
        page = _Page([*above, *below], width_in, (0.0, max(ends)))
        ahead = f"{title}, " if title else ""
        page.lanes(above, "simulated", f"{ahead}simulated: {page.time(ends[0])}")
        ratio = f" ({ends[1] / ends[0]:.2f}x)" if ends[0] else ""
        page.lanes(below, "measured", f"{ahead}measured: {page.time(ends[1])}{ratio}")
        return page.figure()


def _chosen(events: Iterable[Event], steps: Iterable[int] | None) -> list[Event]:
    wanted = None if steps is None else set(steps)
    chosen = [event for event in events if wanted is None or event.step in wanted]
    if not chosen:
        where = "" if wanted is None else f" in steps {sorted(wanted)}"
        raise ValueError(f"there is no event to draw{where}")
    return chosen


def _span(events: Sequence[Event]) -> tuple[float, float]:
    return min(event.start_s for event in events), max(event.end_s for event in events)


def _tiers(schedule: Schedule, events: list[Event]) -> list[tuple[int, str]]:
    """(rank, tier) of all memory worth a panel."""
    ranks = sorted({event.rank for event in events})
    lines = {
        (rank, tier): memory_timeline(schedule, events, tier, rank)
        for rank in ranks
        for tier in TIERS
    }
    return [
        key
        for key, line in lines.items()
        if len(line) > 1 or (line[0][1] and key[1] in schedule.budgets)
    ]


class _Page:
    """Panels one below the other, on one time axis."""

    def __init__(
        self,
        events: list[Event],
        width_in: float,
        span_s: tuple[float, float],
        unit: str = "",
    ) -> None:
        from matplotlib.figure import Figure

        self.canvas = Figure(figsize=(width_in, 1.0))
        self.width_in = width_in
        self.inside_in = width_in - LEFT_IN - RIGHT_IN
        self.span_s = span_s
        self.unit, self.per_s = (unit, 1.0) if unit else _time_unit(span_s[1] - span_s[0])
        self.panels: list[tuple[Axes, float, float]] = []
        """Axes, distance from the top and height, in inches."""
        self.below_in = 0.0
        self.kinds = {event.kind for event in events}
        self.rows = _rows(events)

    def time(self, seconds: float) -> str:
        return f"{seconds * self.per_s:.3g} {self.unit}"

    def _panel(self, gap_in: float, height_in: float) -> Axes:
        axes = self.canvas.add_axes((0, 0, 1, 1), label=f"panel {len(self.panels)}")
        self.panels.append((axes, self.below_in + gap_in, height_in))
        self.below_in += gap_in + height_in
        start, end = self.span_s
        axes.set_xlim(0, ((end - start) or 1.0) * self.per_s)
        axes.tick_params(width=0.6, length=2, pad=1.5)
        return axes

    def lanes(self, events: list[Event], source: Source, title: str) -> None:
        """Bars of all events, in this page's rows."""
        depth = max(self.rows.values()) + 1
        axes = self._panel(TITLE_IN, ROW_IN * depth)
        axes.set_ylim(depth - 0.5, -0.5)
        ranks = {rank for rank, _ in self.rows}
        names = [f"{rank}:{lane}" if len(ranks) > 1 else lane for rank, lane in self.rows]
        axes.set_yticks(list(self.rows.values()), names)
        axes.tick_params(axis="y", length=0)
        axes.set_title(title, loc="left", pad=9)
        origin = _span(events)[0]
        point = (axes.get_xlim()[1] / self.inside_in) / 72  # of print, on the time axis
        bars: dict[tuple[float, ActionStyle], list[tuple[float, float]]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.start_s):
            look, row = LOOKS[event.kind], self.rows[event.rank, event.lane]
            left = (event.start_s - origin) * self.per_s
            width = (event.end_s - event.start_s) * self.per_s
            gap = 0.4 * point if width > 3 * point else 0.0  # keeps neighbours apart
            same = bars[row, look]
            if not gap and same and abs(left - sum(same[-1])) < 0.1 * point:
                same[-1] = (same[-1][0], left + width - same[-1][0])  # no seam between thin ones
            else:
                same.append((left, width - gap))
                _label(axes, event, left + (width - gap) / 2, row, (width - gap) / point, look.ink)
        for (row, look), spans in bars.items():
            # Unsnapped, bars thinner than a dot blend instead of hiding one another.
            axes.broken_barh(spans, (row - 0.42, 0.84), snap=False, **fill(look.color, source))
        self._step_marks(axes, events, origin, point)

    def _step_marks(self, axes: Axes, events: list[Event], origin: float, point: float) -> None:
        """A line and a number where each step's computation starts."""
        starts: dict[int, float] = {}
        for event in events:
            if lane_kind(event.lane) == COMPUTE:
                starts[event.step] = min(event.start_s, starts.get(event.step, event.start_s))
        marks = sorted((start, step) for step, start in starts.items())
        free_from = float("-inf")
        for start, step in marks if len(marks) > 1 else ():
            x = (start - origin) * self.per_s
            axes.axvline(x, color="black", lw=0.5, ls=(0, (3, 2)), zorder=0.5)
            if x >= free_from:
                text = f"step {step}"
                axes.annotate(
                    text, (x, 1), xycoords=("data", "axes fraction"), xytext=(1, 1),
                    textcoords="offset points", fontsize=LABEL_PT, va="bottom",
                )  # fmt: skip
                free_from = x + letters_pt(text) * point

    def memory(
        self, schedule: Schedule, events: list[Event], source: Source, tier: str, rank: int
    ) -> None:
        """Bytes over time of one tier, with its budget."""
        axes = self._panel(0.17, MEMORY_IN)
        line = memory_timeline(schedule, events, tier, rank)
        peak, budget = max(nbytes for _, nbytes in line), schedule.budgets.get(tier)
        unit, per_byte = _byte_unit(max(peak, 1))
        origin, end = self.span_s
        times = [max(0.0, at - origin) * self.per_s for at, _ in line] + [
            (end - origin) * self.per_s
        ]
        heights = [nbytes * per_byte for _, nbytes in line] + [line[-1][1] * per_byte]
        axes.fill_between(times, heights, step="post", **fill("#B0B0B0", source))
        axes.step(times, heights, where="post", color="black", lw=0.6)
        whose = f"rank {rank} " if schedule.num_ranks > 1 else ""
        words = f"{whose}{tier} memory, peak {peak * per_byte:.4g} {unit}"
        top = peak
        if budget is not None:
            words += f", budget {budget * per_byte:.4g} {unit}"
            if budget <= 3 * peak:  # a far higher line would flatten the curve
                top = max(peak, budget)
                axes.axhline(budget * per_byte, color="#D55E00", lw=0.8, ls="--")
        axes.set_ylim(0, max(top, 1) * per_byte * 1.08)
        axes.set_ylabel(unit)
        axes.yaxis.set_label_coords(-0.42 / self.inside_in, 0.5)
        axes.locator_params(axis="y", nbins=3)
        axes.annotate(
            words, (0, 1), xycoords="axes fraction", xytext=(0, 1.5),
            textcoords="offset points", fontsize=6, va="bottom",
        )  # fmt: skip

    def figure(self) -> Figure:
        """Puts everything in its place, with a time axis and a legend below."""
        from matplotlib.patches import Patch

        looks = list(dict.fromkeys(LOOKS[kind] for kind in LOOKS if kind in self.kinds))
        columns = max(1, int(self.width_in / 0.8))
        depth = -(-len(looks) // columns)
        height_in = self.below_in + AXIS_IN + LEGEND_IN * depth
        self.canvas.set_size_inches(self.width_in, height_in)
        for axes, top_in, panel_in in self.panels:
            axes.set_position(
                (
                    LEFT_IN / self.width_in,
                    1 - (top_in + panel_in) / height_in,
                    self.inside_in / self.width_in,
                    panel_in / height_in,
                )
            )
            axes.tick_params(labelbottom=axes is self.panels[-1][0])
        self.panels[-1][0].set_xlabel(f"time ({self.unit})", labelpad=1)
        self.canvas.legend(
            handles=[Patch(color=look.color, label=look.words) for look in looks],
            loc="lower center",
            ncols=columns,
            frameon=False,
            borderpad=0.2,
            labelspacing=0.25,
            handlelength=1.0,
            handleheight=0.8,
            handletextpad=0.4,
            columnspacing=0.9,
        )
        return self.canvas


def _rows(events: list[Event]) -> dict[tuple[int, str], float]:
    """(rank, lane) -> its row; half a row stays free between ranks."""
    keys = sorted(
        {(event.rank, event.lane) for event in events},
        key=lambda key: (key[0], LANES.index(lane_kind(key[1])), key[1]),
    )
    ranks = sorted({rank for rank, _ in keys})
    return {key: i + 0.5 * ranks.index(key[0]) for i, key in enumerate(keys)}


def fill(color: str, source: Source) -> dict[str, Any]:
    """Simulated bars are hatched, measured ones filled."""
    look: dict[str, Any] = {"facecolor": color, "linewidth": 0}
    if source == "simulated":
        look |= {"hatch": "//////", "edgecolor": (1, 1, 1, 0.55)}
    return look


def _label(axes: Axes, event: Event, x: float, row: float, width_pt: float, ink: str) -> None:
    """The action's name in its box, or its unit, or nothing, as it fits."""
    for text in (event.name.partition(":")[2] or event.name, str(event.unit)):
        if letters_pt(text) <= width_pt:
            axes.text(x, row, text, color=ink, fontsize=LABEL_PT, ha="center", va="center_baseline")
            return


def letters_pt(text: str) -> float:
    """Width of a text in a box, in points."""
    return 0.62 * LABEL_PT * len(text) + 1


def _time_unit(seconds: float) -> tuple[str, float]:
    for unit, per_s in (("s", 1.0), ("ms", 1e3)):
        if seconds * per_s >= 1:
            return unit, per_s
    return "us", 1e6


def _byte_unit(nbytes: int) -> tuple[str, float]:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 2**power:
            return unit, 2.0**-power
    return "B", 1.0
