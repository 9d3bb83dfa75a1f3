"""Proofs from runs besides the figures: that every method trains, and that plans come true.

A method that does not train is not fast, so the losses of all methods that are compared are drawn
together and measured against plain training on the same samples. A prediction is worth what its
error is, so every run's plan stands beside what happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench.core.methods import METHODS, known
from workbench.core.record import RunRecord, steady_step_seconds
from workbench.figures.curves import differences, draw_curves
from workbench.figures.finish import finish
from workbench.figures.rows import MEASURED
from workbench.figures.style import PAGE_IN, styled
from workbench.figures.verdict import Verdict, at_least

PLAIN = "megatron-lm"
"""Everything on the device: plain training, which the others must equal."""
LIMITS = {"step": 30.0, "device": 5.0, "host": 5.0, "bytes": 0.0}
"""Percent by which a plan may be off: the range that plans print of a step, of peaks, of bytes."""
WORDS = {"step": "step time", "device": "device peak", "host": "host peak", "bytes": "bytes moved"}


def losses_of(records: Iterable[RunRecord]) -> dict[str, list[float]]:
    """Losses by method, of the runs that trained."""
    return {r.method: r.losses for r in records if r.status == "ok" and r.losses}


def loss_table(records: Iterable[RunRecord]) -> pd.DataFrame:
    """First and last loss of each method, and how far it was from plain training at most."""
    records = [record for record in records if record.status == "ok" and record.losses]
    plain = losses_of(records).get(PLAIN, [])
    rows = []
    for record in records:
        off = differences(record.losses, plain)
        rows.append(
            {
                "method": METHODS[record.method].label,
                "run by": record.engine,
                "first loss": f"{record.losses[0]:.6f}",
                "last loss": f"{record.losses[-1]:.6f}",
                "steps": len(record.losses),
                "largest relative difference": _difference(off),
            }
        )
    return pd.DataFrame(rows)


def draw_losses(losses: dict[str, list[float]]) -> Figure:
    """The curves over each other, and beside them how far each is from plain training."""
    with styled():
        figure = Figure(figsize=(PAGE_IN, 2.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_curves(left, right, losses, PLAIN)
        left.set_title("loss of every method, same samples and seed")
        right.set_title(f"difference from plain training ({METHODS[PLAIN].label}'s place)")
        names = [METHODS[method].label for method in losses]
        figure.legend(left.lines, names, loc="outside upper center", ncols=len(losses))
        finish(figure, "This project: losses of all methods of figure 8a, measured")
    return figure


def prediction_table(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Predicted beside measured: step time, peak of the tiers, bytes moved; one row for each run
    that trained and had a prediction, whatever its method and however it ended."""
    rows = []
    for record in records:
        plan, seconds = record.predicted, steady_step_seconds(record.step_seconds)
        if not plan.get("step_seconds") or not seconds:
            continue
        peaks, expected = record.peak_bytes, plan.get("peak_bytes", {})
        row: dict[str, Any] = {
            "run": _name(record),
            "ranks": record.spec["ranks"],
            "layers": record.spec["model"]["layers"],
            "step: plan (ms)": plan["step_seconds"] * 1e3,
            "run (ms)": seconds * 1e3,
            "step off (%)": _off(plan["step_seconds"], seconds),
        }
        for tier in ("device", "host"):
            row[f"{tier} peak (MiB)"] = _mebibytes(peaks.get(tier))
            row[f"{tier} off (%)"] = _off(expected.get(tier), peaks.get(tier))
        moved, said = record.moved_bytes, plan.get("moved_bytes", {})
        for way, words in (("load", "loaded (MiB)"), ("store", "stored (MiB)")):
            row[words] = _mebibytes(moved.get(way))
        ways = ("load", "store", "read", "write")
        told = [abs((moved.get(way) or 0) - (said.get(way) or 0)) for way in ways]
        row["bytes off (%)"] = 100 * sum(told) / max(1, sum(said.get(way) or 0 for way in ways))
        row["machine"] = record.busy and f"busy: {record.busy}"
        rows.append(row)
    return pd.DataFrame(rows)


def prediction_summary(table: pd.DataFrame) -> str:
    """The whole table in a sentence."""
    if table.empty:
        return "No run had a prediction to be held against."
    times, device, host, moved = (_errors(table, name) for name in LIMITS)
    return (
        f"{len(table)} runs: step time off by {times.median():.0f} % at the median and "
        f"{times.max():.0f} % at most, device peak by {device.max():.1f} %, host peak by "
        f"{host.max():.1f} % at most, bytes moved equal in {(moved == 0).sum()} of {len(table)}."
    )


def prediction_verdicts(table: pd.DataFrame) -> list[Verdict]:
    """Whether plans come true: the share of runs whose plan was as close as it says, which has to
    be all. Step times on a busy machine tell nothing."""
    found: list[Verdict] = []
    for name, most in LIMITS.items() if len(table) else ():
        part = table[(table["machine"] == "") | (name != "step")]
        judged, every = (_errors(rows, name).dropna() for rows in (part, table))
        off, left = judged if len(judged) else every, len(table) - len(part)
        busy = f"{left} of {len(table)} runs left out: the machine was busy" if left else ""
        far = ""
        if len(off):
            worst = f"{table.loc[off.idxmax(), 'run']} by {off.max():.0f} %"
            far = f"{(off > most).sum()} of {len(off)} are off by more, {worst}"
        told = {"why": busy, "why_not": "; ".join(filter(None, (far, busy)))}
        told |= {} if len(judged) else {"busy": busy}
        near = f"within {most:g} %" if most else "exactly"
        words = f"{WORDS[name]} of every run as planned, {near}"
        share = (off <= most).mean() if len(off) else None
        found.append(at_least(words, None, share, 1.0, (MEASURED, ""), **told))
    return found


def _errors(table: pd.DataFrame, name: str) -> pd.Series:
    """By how many percent plans were off, either way; a gap where nobody can tell."""
    return table[f"{name} off (%)"].astype(float).abs()


def _name(record: RunRecord) -> str:
    known_method = known().get(record.method)
    label = known_method.label if known_method else record.method
    window = record.spec["options"].get("window", "auto")
    return f"{label}, window {window}" if window != "auto" else label


def _difference(off: list[float]) -> str:
    if not off:
        return "no plain run"
    return f"{max(off):.1e}" if max(off) else "equal"


def _off(predicted: float | None, measured: float | None) -> float | None:
    """Prediction over measurement, less one, in percent."""
    return round(100 * (predicted / measured - 1), 1) if predicted and measured else None


def _mebibytes(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / 2**20
