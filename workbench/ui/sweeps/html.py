"""A sweep in words and tables: its state, its runs, a log's end, what it will need.

All text is escaped in html.py. A state is a word and a sign, never a colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from workbench.core.readable import format_seconds
from workbench.ui import html
from workbench.ui.sweeps.preview import Preview
from workbench.ui.watch import SweepWatch, Tail, WatchedPoint

SIGNS = {"done": "✓ finished", "failed": "✗ failed", "running": "▶ running", "pending": "○ to run"}
OUT_OF = {
    "oom_device": "⊘ out of device memory",
    "oom_host": "⊘ out of host memory",
    "oom_disk": "⊘ out of disk",
    "diverged": "≁ diverged",
    "timeout": "✗ over its time limit",
}
"""Statuses that say more than the state."""
KEEP = "keep running when this page or notebook closes"
KEPT = (
    "Otherwise a sweep stops if this page or notebook closes. Either way finished runs stay, and "
    "the sweep can be resumed later."
)
MOST_ROWS = 100
MOST_REASONS = 8


def state_words(sweep: SweepWatch | None) -> str:
    """One line on the sweep: its state, its counts, and the time left."""
    if sweep is None:
        return ""
    status, counts = sweep.status, sweep.counts()
    parts = [f"{sweep.name}: {word_of(status.state)}"]
    if status.text:
        said = status.state in status.text
        parts = [f"{sweep.name}: {status.text}" if said else f"{parts[0]}, {status.text}"]
    total = sum(counts.values())
    if total:
        parts.append(f"{total} runs: {counted(counts)}")
    if sweep.live and status.seconds_left is not None:
        parts.append(f"about {format_seconds(status.seconds_left)} left")
    if sweep.live:
        after = "goes on" if status.detached else "stops"
        parts.append(f"it {after} if this page or notebook closes")
    if sweep.outdated and not sweep.live:
        parts.append(f"the code behind {sweep.outdated} of them has changed since they ran")
    if sweep.problem:
        parts.append(sweep.problem)
    return "; ".join(parts)


def word_of(state: str) -> str:
    """A state in the word that tables have for it."""
    return SIGNS[state].partition(" ")[2] if state in SIGNS else state


def counted(counts: Mapping[str, int]) -> str:
    """``2 finished, 1 to run``."""
    return ", ".join(f"{counts[state]} {word_of(state)}" for state in SIGNS if counts.get(state))


def points_table(points: list[WatchedPoint]) -> str:
    """The runs; of many those that matter now."""
    numbered = list(enumerate(points, start=1))
    if len(points) > MOST_ROWS:
        order = {"running": 0, "failed": 1, "pending": 2, "done": 3}
        numbered = sorted(numbered, key=lambda pair: order[pair[1].state])[:MOST_ROWS]
    rows = [
        {
            "": number,
            "run": point.what,
            "state": state_of(point),
            "where": point.where,
            "step": f"{point.step} of {point.steps}" if point.state == "running" else "",
            "loss": "" if point.loss is None else f"{point.loss:.4f}",
            "left": "" if point.seconds_left is None else format_seconds(point.seconds_left),
            "took": "" if point.seconds is None else format_seconds(point.seconds),
            "samples/s": (
                "" if point.samples_per_second is None else f"{point.samples_per_second:.4g}"
            ),
            "why": point.message,
        }
        for number, point in numbered
    ]
    caption = "Runs"
    if len(points) > MOST_ROWS:
        caption = f"{MOST_ROWS} of {len(points):,} runs: what runs, failed, or comes next"
    return html.table(rows, caption)


def state_of(point: WatchedPoint) -> str:
    """Sign and word."""
    if point.state in ("done", "failed") and point.status in OUT_OF:
        return OUT_OF[point.status]
    return SIGNS[point.state]


def tail_html(tail: Tail) -> str:
    """The cause and the last lines of a run."""
    if not tail.key:
        return ""
    head = html.paragraph(f"Log of {tail.what} (run {tail.key}), last lines:", "soft")
    cause = html.paragraph(tail.cause, "bad")
    return cause + head + html.log("\n".join(tail.lines) or "(empty)", f"log of {tail.what}")


def preview_html(preview: Preview) -> str:
    """Needs of the form's sweep, and the runs that cannot fit and why, as HTML."""
    sentences, cannot = preview.sentences(), preview.cannot
    if not sentences:
        return ""
    kind = "bad" if preview.text else ""
    rows = [{"run": point.what, "why": point.why} for point in cannot[:MOST_REASONS]]
    if len(cannot) > MOST_REASONS:
        rows.append({"run": f"and {len(cannot) - MOST_REASONS} more", "why": ""})
    reasons = sorted({point.why for point in preview.unplanned})
    return "".join(
        [
            html.live(" ".join(_ended(sentence) for sentence in sentences), kind),
            html.table(rows, "Cannot fit"),
            *(html.paragraph(f"Not planned: {why}", "soft") for why in reasons[:MOST_REASONS]),
        ]
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", ":", "...")) else f"{sentence}."
