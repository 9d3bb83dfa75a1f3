"""Where the time of a step goes, and which lane or memory is full: measured steps, drawn.

A panel is one step of a run on named hardware: bars of what each lane did, and below them the
traffic of the host's memory, where copies both ways and host updates meet, beside the most that it
was seen to give. So a goal that is not reached is shown with the bound it hits. The steps are kept
by the benchmark and committed; nothing runs for this exhibit, so it is the same at every size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from workbench.exhibits.hardware.base import HardwareExhibit
from workbench.exhibits.hardware.lanes_table import (
    HOST_MEMORY,
    METHOD,
    NEAR,
    SHOWN,
    Span,
    folded,
    table,
    traffic,
)
from workbench.exhibits.hardware.table import OFFLOAD as RUNS
from workbench.exhibits.hardware.table import table as table_of
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.style import GREY, PAGE_IN
from workbench.published.here import OFFLOAD, Run, days
from workbench.published.lanes import STEPS, measured_steps
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, VISIT, lane_kind
from workbench.schedule.looks import LOOKS, ActionStyle

CASES = ("78-b4", "78-b16", "100-b4", "100-b16")
"""The panels, where there is such a step."""
ROUGH = 0.05
"""Steps of a run differ by as much, and so do their bounds."""
PANEL_IN = 1.95
LANES_TO_TRAFFIC = (1.25, 1)
"""Heights of bars and traffic."""
WORDS = {
    COMPUTE: "compute",
    VISIT: "updates on GPU",
    H2D: "copies to GPU",
    D2H: "copies to host",
    HOST: "updates on host",
}
"""Names of lanes for people."""
BOUNDS = {COMPUTE: "compute", DISK_IN: "disk reads", DISK_OUT: "disk writes"}
"""Lanes that a step may be as long as."""
FULL, CALM = "#444444", "#B8B8B8"
"""Traffic near the ceiling, and below."""


class LaneByLane(HardwareExhibit):
    """Bars of the lanes and the host memory's traffic, a panel each step."""

    file = STEPS.file

    def all_rows(self, at: Opened, *, repeated: bool = False) -> pd.DataFrame:
        return table(measured_steps(at.roots()), table_of(OFFLOAD.runs(at.roots()), RUNS))

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        return super().listed(rows.assign(case=rows["case"].map(case_words)))

    def paint(self, at: Opened, figure: Any, rows: pd.DataFrame) -> None:
        machines = set(rows["device"])
        self.draw(figure, rows, [s for s in measured_steps(at.roots()) if s.device in machines])

    def draw(self, figure: Any, rows: pd.DataFrame, steps: Sequence[Run] = ()) -> None:
        """A panel for each of `CASES` that is in `rows` (`lanes_table.table`), of the `steps`
        behind
        them."""
        shown = chosen(rows)
        figure.set_size_inches(PAGE_IN, PANEL_IN * len(shown) if len(shown) else 1.2)
        if shown.empty:
            axes = figure.subplots()
            axes.set_axis_off()
            axes.text(0.5, 0.5, self.absent, ha="center", va="center", color=GREY, wrap=True)
            return
        of_case = {step.case: step for step in steps if step.named == METHOD}
        ratios = {"height_ratios": LANES_TO_TRAFFIC * len(shown)}
        places = figure.subplots(2 * len(shown), 1, squeeze=False, gridspec_kw=ratios)[:, 0]
        kinds: set[str] = set()
        for place, row in enumerate(shown.itertuples()):
            above, below = places[2 * place : 2 * place + 2]
            _draw_lanes(above, row, of_case[row.case])
            _draw_traffic(below, row, traffic(of_case[row.case]))
            kinds |= {event.kind for event in of_case[row.case].events}
        _legend(figure, kinds)
        drawing.small_print(figure, self.printed(**facts_of(shown)))

    def judged(self, at: Opened, rows: pd.DataFrame) -> pd.DataFrame:
        """In words: what every step reached, what bounds it, and what the goal is."""
        columns = ["case", "measured", "goal", "at the bound", "bound by", "host memory", "so"]
        lines = [
            (
                f"{case_words(row.case)}, {row.label}",
                _speed(row.samples_per_second),
                _speed(row.goal_samples_per_second),
                _speed(row.bound_samples_per_second),
                _bound(row),
                when_full(row),
                _verdict(row),
            )
            for row in rows.itertuples()
        ]
        return pd.DataFrame(lines, columns=columns)


def case_words(case: str) -> str:
    """A case's code in words.

    >>> case_words("78-b4-16g-calm")
    '78 layers, batch 4, 16 GiB, limit never reached'
    """
    told = {"calm": "limit never reached", "noclip": "no clipping", "fits": "fits the GPU"}
    forms = {r"(\d+)": r"\1 layers", r"b(\d+)": r"batch \1", r"(\d+)g": r"\1 GiB"}
    words = [told.get(part, part) for part in case.split("-")]
    for form, said in forms.items():
        words = [re.sub(f"^{form}$", said, word) for word in words]
    return ", ".join(words)


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are panels, in their order."""
    own = rows[(rows["method"] == METHOD) & rows["case"].isin(CASES)]
    return own.sort_values("case", key=lambda cases: cases.map(CASES.index))


def headline(row: Any) -> str:
    """Title of a step: its setting, how fast it was, and how fast it should be."""
    words = (
        f"{row.layers} layers, batch {row.batch}: one step of {1e3 * row.step_seconds:.0f} ms, "
        f"measured; {row.samples_per_second:.3g} samples/s"
    )
    goal = row.goal_samples_per_second
    if pd.isna(goal):
        return words
    return f"{words}, goal {goal:.3g} ({row.goal_share:.0%} of plain)"


def reason(row: Any) -> str:
    """In words, what bounds the step, and when the host's memory is full."""
    most = f"{row.bound_samples_per_second:.3g} samples/s at most"
    missed = row.samples_per_second < row.goal_samples_per_second
    beside = f": the goal is {_reach(row)}" if missed else ""
    return f"Bound by {_bound(row)}, so {most}{beside}.\n{when_full(row)}"


def _bound(row: Any) -> str:
    if row.bound == HOST_MEMORY:
        seconds = row.host_bytes / row.ceiling_bytes_per_s
        at = f"{1e3 * seconds:.0f} ms at its ceiling"
        return f"{HOST_MEMORY}, {row.host_bytes / 1e9:.1f} GB or {at}"
    seconds = row.batch / row.bound_samples_per_second
    return f"{BOUNDS[row.bound]}, busy {1e3 * seconds:.0f} ms"


def _reach(row: Any) -> str:
    """Where a goal lies that was missed."""
    share = row.bound_samples_per_second / row.goal_samples_per_second
    if share < 1 - ROUGH:
        return "out of this plan's reach"
    return "about at the bound" if share < 1 + ROUGH else "within the bound"


def when_full(row: Any) -> str:
    """How much of the step host memory is at its ceiling, and when."""
    if pd.isna(row.ceiling_bytes_per_s):
        return "The ceiling of host memory was not measured."
    words = f"Host memory is over {NEAR:.0%} of its ceiling for {row.full_share:.0%} of the step"
    if pd.isna(row.full_from_s):
        return f"{words}."
    start, end, period = (1e3 * s for s in (row.full_from_s, row.full_to_s, row.step_seconds))
    until = f"{end:.0f} ms" if end <= period else f"{end - period:.0f} ms of the next"
    rate = f"{row.full_bytes_per_s / 1e9:.0f} GB/s"
    return f"{words}; from {start:.0f} ms to {until} it moves {rate}."


def _speed(value: float) -> str:
    return "none" if pd.isna(value) else f"{value:.3g} samples/s"


def _verdict(row: Any) -> str:
    if pd.isna(row.goal_samples_per_second):
        return "no goal"
    reached = row.samples_per_second >= row.goal_samples_per_second
    return "reached" if reached else f"missed, {_reach(row)}"


def facts_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Facts of the rows, for the small print."""
    caps = ", ".join(f"{cap:g} GiB" for cap in sorted(set(rows["device_cap_gib"].dropna())))
    clips = ", ".join(f"a norm of {clip:g}" for clip in sorted(set(rows["clip"].dropna())))
    absent = [case for case in CASES if case not in set(rows["case"])]
    return {
        "hardware": rows["hardware"].iloc[0],
        "when": days(rows["date"]),
        "label": rows["label"].iloc[0],
        "caps": f", capped at {caps}" if caps else "",
        "clips": f", clipped at {clips}" if clips else "",
        "near": NEAR,
        "looseness": _looseness(rows),
        "absent": f"Not measured: {'; '.join(map(case_words, absent))}." if absent else "",
    }


def _looseness(rows: pd.DataFrame) -> str:
    """By how much host memory did better than its ceiling, for longer."""
    most = (rows["full_bytes_per_s"] / rows["ceiling_bytes_per_s"]).max()
    words = f"; it is as rough as that ceiling, of which up to {most:.0%} was seen for longer"
    return words if most > 1.005 else ""


# -- panels ---------------------------------------------------------------------------------------


def _draw_lanes(axes: Any, row: Any, step: Run) -> None:
    """A row of bars for each lane, with its busy share."""
    axes.set_title(headline(row), loc="left", fontweight="bold", fontsize=7.5, pad=21)
    look = {"fontsize": 6.8, "va": "bottom", "linespacing": 1.15, "xycoords": "axes fraction"}
    drawing.beside(axes, reason(row), (0, 1), (0, 3), **look).set_in_layout(False)
    bars: dict[tuple[int, ActionStyle], list[Span]] = defaultdict(list)
    for event in step.events:
        if lane_kind(event.lane) in SHOWN:
            span = Span(event.start_s, event.end_s, 1.0)
            place = SHOWN.index(lane_kind(event.lane))
            bars[place, LOOKS[event.kind]] += folded([span], step.step_seconds)
    for (place, look), spans in bars.items():
        ranges = [(1e3 * start, 1e3 * (end - start)) for start, end, _ in sorted(spans)]
        # Unsnapped, bars thinner than a dot blend instead of hiding one another.
        axes.broken_barh(ranges, (place - 0.4, 0.8), facecolor=look.color, linewidth=0, snap=False)
    axes.set_yticks(range(len(SHOWN)), [WORDS[lane] for lane in SHOWN])
    axes.set_ylim(len(SHOWN) - 0.5, -0.5)
    axes.set_xlim(0, 1e3 * row.step_seconds)
    axes.grid(False)
    axes.tick_params(axis="y", length=0, labelsize=6.5)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    for place, lane in enumerate(SHOWN):
        _beside(axes, place, f"{getattr(row, f'{lane}_share'):.0%} busy", "center")


def _draw_traffic(axes: Any, row: Any, spans: list[Span]) -> None:
    """GB/s over the step, with the ceiling and the mean."""
    ceiling, mean = row.ceiling_bytes_per_s / 1e9, row.traffic_bytes_per_s / 1e9
    times = [1e3 * span.start_s for span in spans] + [1e3 * spans[-1].end_s]
    rates = [span.value / 1e9 for span in spans] + [spans[-1].value / 1e9]
    axes.fill_between(times, rates, step="post", facecolor=CALM, linewidth=0)
    if not pd.isna(ceiling):
        near = [rate if rate > NEAR * ceiling else 0.0 for rate in rates]
        axes.fill_between(times, near, step="post", facecolor=FULL, linewidth=0)
        axes.axhline(ceiling, color="#D55E00", linewidth=1.0, linestyle="--")
        _beside(axes, ceiling, f"ceiling {ceiling:.0f}", "bottom", color="#A34700")
    axes.axhline(mean, color="#0072B2", linewidth=1.0)
    _beside(axes, mean, f"mean {mean:.0f}", "top", color="#0072B2")
    axes.set_xlim(0, times[-1])
    axes.set_ylim(0, 1.05 * max([*rates, 0.0 if pd.isna(ceiling) else 1.15 * ceiling]))
    axes.set_ylabel("host memory\n(GB/s)", fontsize=6.5)
    axes.set_xlabel("time in the step (ms)", fontsize=6.5, labelpad=1)
    axes.tick_params(labelsize=6.5, length=2, pad=1.5)
    axes.locator_params(axis="y", nbins=4)


def _beside(axes: Any, y: float, words: str, va: str, **look: Any) -> None:
    """Words right of the axes at a height of its data."""
    place = {"xycoords": ("axes fraction", "data"), "fontsize": 6.5, "va": va}
    drawing.beside(axes, words, (1, y), (3, 0), **place, **look)


def _legend(figure: Any, kinds: set[str]) -> None:
    """Above it all: each kind of work once."""
    looks = list(dict.fromkeys(look for kind, look in LOOKS.items() if kind in kinds))
    columns = 9
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-len(looks) // columns))
    figure.legend(
        handles=[drawing.patch(color=look.color, label=look.words) for look in looks],
        loc="outside upper center", ncols=columns, columnspacing=1.2, handlelength=1.2,
        borderpad=0.1,
    )  # fmt: skip
