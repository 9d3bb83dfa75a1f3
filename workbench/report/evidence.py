"""What the runs prove besides the figures: that every method trains, and that plans come true.

A method that does not train is not fast, so the losses of all methods that are compared are drawn
together and measured against plain training on the same samples. A prediction is worth what its
error is, so every run's plan stands beside what happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench.core.methods import METHODS
from workbench.core.record import RunRecord, steady_step_seconds
from workbench.figures.style import LOOKS, PAGE_IN, styled

EQUAL = 1e-10
"""Where the drawing puts a difference of nothing, which a logarithm has no place for."""
PLAIN = "megatron-lm"
"""Everything on the device: plain training, which the others must equal."""


def losses_of(records: Iterable[RunRecord]) -> dict[str, list[float]]:
    """Losses by method, of the runs that trained."""
    return {r.method: r.losses for r in records if r.status == "ok" and r.losses}


def loss_table(records: Iterable[RunRecord]) -> pd.DataFrame:
    """First and last loss of each method, and how far it was from plain training at most."""
    records = [record for record in records if record.status == "ok" and record.losses]
    plain = losses_of(records).get(PLAIN, [])
    rows = []
    for record in records:
        off = [abs(a - b) / abs(b) for a, b in zip(record.losses, plain, strict=False) if b]
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
        plain = losses.get(PLAIN, [])
        for place, (method, values) in enumerate(losses.items()):
            look = LOOKS[method]
            steps = range(1, len(values) + 1)
            # Equal curves hide each other: each later one is drawn thinner, with a larger marker.
            left.plot(
                steps,
                values,
                label=METHODS[method].label,
                color=look.color,
                marker=look.marker,
                markersize=9 - 1.6 * place,
                markerfacecolor="none",
                linewidth=max(0.6, 3 - 0.6 * place),
            )
            if method != PLAIN and plain:
                off = [abs(a - b) / abs(b) for a, b in zip(values, plain, strict=False) if b]
                shown = [max(value, EQUAL) for value in off]
                right.semilogy(steps, shown, color=look.color, marker=look.marker, ms=4, lw=1)
        left.set(xlabel="step", ylabel="loss (nats per token)")
        left.set_title("loss of every method, same samples and seed")
        right.axhline(2**-24, color="#888888", linewidth=0.8, linestyle="--")
        right.annotate("half a unit of fp32", (1, 2**-24), fontsize=6, va="bottom")
        right.set(xlabel="step", ylabel="relative difference", ylim=(EQUAL / 3, 1e-2))
        right.set_yticks([EQUAL, 1e-8, 1e-6, 1e-4, 1e-2], ["equal", "1e-8", "1e-6", "1e-4", "1e-2"])
        right.minorticks_off()
        right.set_title(f"difference from plain training ({METHODS[PLAIN].label}'s place)")
        figure.legend(loc="outside upper center", ncols=len(losses))
    return figure


def prediction_table(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Predicted beside measured: step time, peak of the tiers, bytes moved; one row a run."""
    rows = []
    for record in records:
        plan = record.predicted
        if record.status != "ok" or not plan.get("step_seconds"):
            continue
        model, seconds = record.spec["model"], steady_step_seconds(record.step_seconds)
        peaks, expected = record.peak_bytes, plan.get("peak_bytes", {})
        row: dict[str, Any] = {
            "run": _name(record),
            "layers": model["layers"],
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
        equal = all(moved.get(way) == said.get(way) for way in ("load", "store", "read", "write"))
        row["bytes"] = "equal" if equal else "differ"
        rows.append(row)
    return pd.DataFrame(rows)


def prediction_summary(table: pd.DataFrame) -> str:
    """The whole table in a sentence."""
    if table.empty:
        return "No run of this size had a prediction to be held against."
    times, device, host = (
        table[f"{name} off (%)"].astype(float).abs() for name in ("step", "device", "host")
    )
    equal = int((table["bytes"] == "equal").sum())
    return (
        f"{len(table)} runs: step time off by {times.median():.0f} % at the median and "
        f"{times.max():.0f} % at most, device peak by {device.max():.1f} %, host peak by "
        f"{host.fillna(0).max():.1f} % at most, bytes moved equal in {equal} of {len(table)}."
    )


def _name(record: RunRecord) -> str:
    label = METHODS[record.method].label
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
