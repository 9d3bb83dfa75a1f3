"""Varuna's predictions in every shape: seconds of a step and bytes of a device, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.claim_rows import stated
from workbench.exhibits.metrics import Asked, Found, NoClaim, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.varuna.base import VarunaExhibit
from workbench.exhibits.varuna.scaling import GPUS, XL
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.rows import MEASURED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS, lighter
from workbench.published.here import GIB, PIPELINES, Run, latest

SHAPES = {
    "cuda": [(n // d, d, m) for n in GPUS for d in GPUS if n % d == 0 for m in (1, 2, 4, 8)],
    "cpu": [(1, 1, 2), (2, 1, 2), (2, 1, 4), (1, 2, 2)],
}
"""Stages, replicas, and samples of a micro-batch."""
SETTING, STEPS = {"cuda": (XL["batch"], XL["dtype"]), "cpu": (8, "fp32")}, 10
"""Batch and dtype; steps of a run."""
STEP, PEAK = "step", "device peak"
UNITS = {STEP: "s", PEAK: "GiB"}
COMMITTED = XL | {"method": "varuna", "variant": "", "device_cap_gib": None}
SHARED = "ranks share a processor here, and equal runs differ by more than that"
CROSS = {"color": GREY, "marker": "x", "ms": 3.5, "ls": ""}


def in_range(asked: Asked) -> Found:
    """The share of steps on processors that are within the range of their plan."""
    steps = _judged(asked, STEP)
    if not _shared(asked):
        raise NoClaim
    inside = steps["value"].between(steps["low_said"], steps["high_said"])
    return Found(inside.mean() if len(steps) else None, why=_told(steps))


def error(asked: Asked) -> Found:
    """1 less the error of predictions on GPUs."""
    both = _judged(asked, asked.given["quantity"])
    if _shared(asked):
        raise NoClaim
    here = 1 - both["error"].abs().agg(asked.given["of"]) if len(both) else None
    return Found(here, why=_told(both), names={"error": 1 - asked.claim.least})


def choice(asked: Asked) -> Found:
    """Speed of the shape that is predicted to be fastest, of shapes on as many ranks, over that of
    the fastest: the least."""
    kept, told = [], [SHARED] if _shared(asked) else []
    for ranks, part in _judged(asked, STEP).groupby("ranks"):
        chosen, best = (part.loc[part[name].idxmin()] for name in ("value_said", "value"))
        kept.append(best["value"] / chosen["value"])
        told.append(f"{ranks:g} ranks: {chosen['pair']}, the fastest is {best['pair']}")
    here, why = min(kept, default=None), "; ".join(told)
    return Found(here, why=why, cannot=why if _shared(asked) else "")


def _judged(asked: Asked, quantity: str) -> pd.DataFrame:
    return beside(asked.rows, quantity).dropna(subset="error")


def _shared(asked: Asked) -> bool:
    """Whether ranks share a processor."""
    return "cpu" in set(asked.rows["device"])


class Accuracy(VarunaExhibit):
    """Predicted over measured, errors by shape, and whether predictions choose well."""

    metrics = by_name(in_range, error, choice)

    def specs(self, size: Any) -> list[RunSpec]:
        """A run for each shape that this machine has devices for."""
        batch, dtype = SETTING[size.device]
        batch, steps = (size.given.get(n, own) for n, own in (("batch", batch), ("steps", STEPS)))
        same = {"minibatch": batch, "dtype": dtype, "steps": steps, "device_memory": None}
        found = [
            size.spec("varuna", size.moved, p * d, replicas=d, microbatches=batch // d // m, **same)
            for p, d, m in SHAPES[size.device]
            if p * d <= size.devices and batch % (d * m) == 0
        ]
        if not found:
            raise ValueError(f"batch is {batch}, which no shape divides; 8 and its multiples do")
        return found

    def machines(self, at: Opened) -> set[str]:
        return {run.device for run in _committed(at)}

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """A measured and a predicted row by run and quantity; `variant`: folder, if committed."""
        rows = [row for record in records for row in _of_record(record)]
        for run in _committed(at):
            rows += _of_run(run) if at.machine in ("", run.device) else []
        return self.tabled(at, rows, "quantity", "ranks", method="varuna")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """For each series predicted over measured seconds, and errors by shape."""
        names, ranks = [*dict.fromkeys(rows["variant"])], sorted(set(rows["ranks"]))
        if not names:
            drawing.empty(figure.subplots(), "nothing was measured here, nor committed")
            return
        drawing.prepare(figure, len(names))
        worst = max(1 - goal.least for goal in stated(self.claims) if goal.metric == "error")
        panels = figure.subplots(len(names), 2, squeeze=False, width_ratios=(2, 5))
        for name, (left, right) in zip(names, panels, strict=True):
            steps, peaks = (beside(pick(rows, variant=name), quantity) for quantity in UNITS)
            _scatter(left, steps.dropna(subset="error"))
            _errors(right, steps, peaks, worst)
            link = ", over sockets" if name.endswith("-sockets") else ""
            drawing.title(right, f"measured on {steps['hardware'].iloc[0]}{link}")
        handles = [drawing.stroke(**_look(n)) for n in ranks] + [drawing.stroke(**CROSS)]
        words = [f"step on {n:g} rank{'s' * (n > 1)}" for n in ranks] + [f"{PEAK} (right)"]
        drawing.place_legend(figure, [*zip(handles, words, strict=True)])
        drawing.small_print(figure, self.printed(**XL))

    def cannot_tell(self, asked: Asked) -> str:
        """Errors may be told on any machine."""
        return ""

    def judged_by(self, rows: pd.DataFrame) -> Iterable[tuple[pd.DataFrame, tuple[str, ...]]]:
        """Errors of each series, or (on processors) ranges that plans print; and the choice."""
        names = dict.fromkeys(rows["variant"]) or [""]
        return [(pick(rows, variant=name), (MEASURED, name)) for name in names]


def _committed(at: Opened) -> list[Run]:
    """Latest runs of GPT-2 XL in every shape, on all machines."""
    order = attrgetter("device", "ranks", "replicas", "micro")
    return [
        run
        for run in sorted(latest(PIPELINES.runs(at.roots())), key=order)
        if all(getattr(run, name) == value for name, value in COMMITTED.items())
    ]


def beside(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Measured rows of a quantity, each with its prediction (`*_said`) and the error of that."""
    part, keys = pick(rows, quantity=quantity), ["variant", "pair"]
    said = pick(part, source=SIMULATED)[[*keys, "value", "low", "high"]]
    both = pick(part, source=MEASURED).merge(said, "left", on=keys, suffixes=("", "_said"))
    return both.assign(error=both["value_said"] / both["value"] - 1)


def _told(both: pd.DataFrame) -> str:
    """Errors in words; empty without any."""
    worst, mean = both.sort_values("error", key=abs).tail(1), both["error"].abs().mean()
    told = f"{mean:.1%} in the mean of {len(both)}, at worst "
    return "".join(f"{told}{row.error:+.1%} at {row.pair}" for row in worst.itertuples())


def _of_record(record: RunRecord) -> Iterator[dict[str, Any]]:
    spec, plan = RunSpec.from_dict(record.spec), record.predicted
    replicas = spec.options.copies
    shape = f"{spec.ranks // replicas}x{replicas} m{spec.microbatch // replicas}"
    about = {
        "pair": shape, "label": shape, "busy": record.busy,
        "ranks": spec.ranks, "device": spec.device, "status": record.status, "key": record.key,
        "hardware": tidy.hardware_of(record), "how": tidy.how_measured(record),
    }  # fmt: skip
    held = [each.get("device") for each in (record.peak_bytes, plan.get("peak_bytes", {}))]
    yield from _rows(about, PEAK, *(nbytes and nbytes / GIB for nbytes in held))
    seconds, *_ = tidy.amounts(record, "iteration_s")
    yield from _rows(about, STEP, seconds, plan.get("step_seconds"), plan.get("spread"))


def _of_run(run: Run) -> Iterator[dict[str, Any]]:
    about = {
        "pair": run.shape, "ranks": run.ranks, "device": "cuda", "variant": run.device,
        "hardware": run.hardware, "status": run.status,
        "how": f"{run.device}/{PIPELINES.file}, {run.date}, commit {run.commit}",
    }  # fmt: skip
    yield from _rows(about, PEAK, run.peak_device_gib, run.predicted_peak_device_gib)
    yield from _rows(about, STEP, run.step_seconds_median, run.predicted_step_seconds)


def _rows(about: dict[str, Any], quantity: str, seen: Any, said: Any, spread: Any = None) -> Any:
    """What was measured, a row also where there is nothing, and what was predicted."""
    row = about | {"quantity": quantity, "unit": UNITS[quantity]}
    yield row | {"value": seen, "source": MEASURED}
    if said:
        around = {"low": said * (1 - spread), "high": said * (1 + spread)} if spread else {}
        yield row | {"value": said, "source": SIMULATED, **around}


def _scatter(axes: Any, steps: pd.DataFrame) -> None:
    """Predicted over measured seconds, about the diagonal."""
    from matplotlib.ticker import LogLocator, NullLocator

    if steps.empty:
        drawing.empty(axes, "no value", 20)
        return
    for row in steps.itertuples():
        axes.plot(row.value, row.value_said, **_look(row.ranks))
        axes.plot([row.value] * 2, [row.low_said, row.high_said], color=GREY, lw=0.6, zorder=1)
    ends = steps[["value", "value_said", "low_said", "high_said"]].stack()
    limits = ends.min() / 1.3, ends.max() * 1.3
    axes.plot(limits, limits, color=GREY, lw=0.6, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axes.set(xlabel="measured step (s)", ylabel="predicted step (s)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
        axis.set_major_formatter("{x:g}")


def _errors(axes: Any, steps: pd.DataFrame, peaks: pd.DataFrame, worst: float) -> None:
    """Errors in percent by shape; a run without one says why."""
    place = {"xycoords": ("data", "axes fraction"), "rotation": 90, "ha": "center", "va": "center"}
    for at, row in enumerate(steps.itertuples()):
        axes.plot(at, 100 * row.error, **_look(row.ranks))
        if pd.isna(row.error):
            words = "no prediction" if row.value > 0 else drawing.upright_words(row.status)
            axes.annotate(words, (at, 0.5), fontsize=drawing.NOTE_PT, color=GREY, **place)
    axes.plot([at + 0.25 for at in range(len(peaks))], 100 * peaks["error"], **CROSS)  # same runs
    for bound in (0.0,) if "cpu" in set(steps["device"]) else (-worst, 0.0, worst):
        axes.axhline(100 * bound, color=GREY, lw=0.6, ls="--" if bound else "-", zorder=0)
    axes.set_xticks(range(len(steps)), steps["pair"], rotation=90 if len(steps) > 8 else 0)
    axes.set(xlim=(-0.6, len(steps) - 0.4), ylabel="error (%)")
    axes.margins(y=0.15)


def _look(ranks: float) -> dict[str, Any]:
    """Point of a run, darker for more ranks."""
    color = lighter(LOOKS["varuna"].color, {1: 0.35, 2: 0.65}.get(ranks, 1.0))
    return {"color": color, "marker": "o", "ms": 4.0, "ls": ""}
