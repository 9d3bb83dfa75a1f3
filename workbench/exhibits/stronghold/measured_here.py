"""Rows of the published exhibits out of what this project measured on named hardware.

A figure of the paper is one setting: a model, a batch, 32 GiB of device and 90 GiB of host memory,
fp32. Of the benchmark's runs only those of that model, batch and budget stand beside it; the type
of the numbers and the device differ, so each type is a series of its own, each row says what else
differs, and claims are compared as ratios within the series.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.figures import rows as tidy
from workbench.published.here import Run, days, in_words, latest
from workbench.published.predict import WINDOW

SAME = ("l2l", "zero-offload", "zero-infinity", "stronghold")
NAMES = {"megatron-core": "megatron-lm", **dict(zip(SAME, SAME, strict=True))}
"""The benchmark's methods that the paper has too. Those that keep state on a disk are no point of
these figures."""
IN_GPU = "megatron-core"
"""It leaves nothing on the host, so that a cap decides whether it runs and not how fast."""
OURS = "stronghold"
MODEL = {"hidden": 2048, "heads": 16, "seq": 1024}
BATCH, LAYERS = 4, 32
SIZE_WINDOW = 4
"""STRONGHOLD's window in the published figure 6a; the others have `WINDOW`."""
DEVICE_GIB, HOST_GIB = 32.0, 90.0

FEWEST_DEPTHS = 3
"""From which a line may be straight or not."""

Row = dict[str, Any]


def of_published_model(runs: Iterable[Run]) -> list[Run]:
    """The latest runs that may be held against published ones."""
    return [
        run
        for run in latest(runs)
        if run.method in NAMES and all(getattr(run, name) == MODEL[name] for name in MODEL)
    ]


def rows(figure: str, runs: Iterable[Run], machine: str = "") -> pd.DataFrame:
    """Rows of a figure (``8a``) from the runs on a machine: a series for each type of numbers.

    Of several machines, the one that has most runs of the published model, unless one is named.
    """
    fit = of_published_model(runs)
    most = Counter(run.device for run in fit).most_common(1)
    chosen = machine or (most[0][0] if most else "")
    out = []
    for dtype in dict.fromkeys(run.dtype for run in fit):
        part = [run for run in fit if (run.device, run.dtype) == (chosen, dtype)]
        for row in _FIGURES[figure](part) if part else ():
            when = days(run.date for run in part)
            out.append({**row, "variant": dtype, "hardware": f"{row['hardware']}, {when}"})
    return tidy.table(out, figure=figure, size="paper")


# -- which runs a figure shows --------------------------------------------------------------------


def _sizes(runs: list[Run]) -> list[Row]:
    """6a: each method's largest model that trained within both budgets."""
    out = []
    for method in NAMES:
        tried = [
            run
            for run in runs
            if run.method == method
            and run.device_cap_gib == DEVICE_GIB
            and run.host_cap_gib is not None
            and run.host_cap_gib <= HOST_GIB
        ]
        done = [run for run in tried if run.status == "ok"]
        if not done:
            out += [_row(run, "parameters", SIZE_WINDOW) for run in tried[:1]]
            continue
        best = max(done, key=lambda run: run.layers)
        row = _row(best, "parameters", SIZE_WINDOW)
        beyond = [run for run in tried if run.layers > best.layers]
        if beyond:
            after = min(beyond, key=lambda run: run.layers)
            row["bound"] = after.status.removeprefix("oom_") if "oom_" in after.status else ""
            row["how"] += f"; {after.layers} layers ended with status {after.status}"
        out.append(row)
    return out


def _speeds(runs: list[Run]) -> list[Row]:
    """8a: every method on the published model."""
    found = [choose(runs, method, LAYERS) for method in NAMES]
    return [_row(run, "samples/s") for run in found if run]


def _pairs(runs: list[Run]) -> list[Row]:
    """7a: each baseline beside STRONGHOLD, on the deepest model that both were measured on."""
    out = []
    for method, name in NAMES.items():
        if method == "stronghold":
            continue
        depths = sorted({run.layers for run in runs}, reverse=True)
        both = [(choose(runs, method, n), choose(runs, "stronghold", n)) for n in depths]
        done = [pair for pair in both if all(run and run.status == "ok" for run in pair)]
        for run in done[0] if done else ():
            out.append(_row(run, "samples/s") | {"pair": name, "x": run.layers})
    return out


def _depths(runs: list[Run]) -> list[Row]:
    """8b: STRONGHOLD at every depth with the fixed window that has most of them, else with those
    that the planner chose."""
    free = [run for run in runs if run.host_cap_gib is None] or runs  # without a search's probes
    depths: dict[str, set[int]] = {}
    for run in free:
        if run.method == "stronghold" and run.window and _in_setting(run):
            depths.setdefault(run.variant, set()).add(run.layers)
    fixed = max(depths, key=lambda variant: len(depths[variant]), default="")
    enough = len(depths.get(fixed, ())) >= FEWEST_DEPTHS
    free = [r for r in free if (r.variant == fixed if enough else not r.pinned)]
    found = [choose(free, "stronghold", n) for n in sorted({run.layers for run in free})]
    return [_row(run, "ms") | {"x": run.layers} for run in found if run]


def _windows(runs: list[Run]) -> list[Row]:
    """9: STRONGHOLD at every window, on the model that has most of them."""
    asked: dict[int, dict[int, Run]] = {}
    for run in sorted(runs, key=_preference, reverse=True):  # the preferred one is the last
        if run.method == "stronghold" and run.window and _in_setting(run):
            asked.setdefault(run.layers, {})[run.window] = run
    most = max(asked, key=lambda layers: (len(asked[layers]), layers == LAYERS), default=0)
    out = []
    for window, run in sorted(asked.get(most, {}).items()):
        row = _row(run, "ms", None) | {"x": window}
        if run.layers != LAYERS:
            row["note"] += f"; {run.layers} layers, published {LAYERS}"
        out.append(row)
    return out


_FIGURES: dict[str, Callable[[list[Run]], list[Row]]] = {
    "6a": _sizes, "7a": _pairs, "8a": _speeds, "8b": _depths, "9": _windows,
}  # fmt: skip


def choose(runs: Iterable[Run], method: str, layers: int) -> Run | None:
    """The run of a method on `layers` in the published setting; None where there is none.

    The lowest clipping limit, which every step exceeds, before higher ones and none; one that ended
    well before one that did not. Of a peer the fastest variant, so that it stands there at its
    best; of ours what the planner chose before what somebody pinned.
    """
    found = [r for r in runs if (r.method, r.layers) == (method, layers) and _in_setting(r)]
    return min(found, key=_preference if method == OURS else _at_its_best, default=None)


def _in_setting(run: Run) -> bool:
    uncapped = (run.method, run.layers, run.device_cap_gib) == (IN_GPU, LAYERS, None)
    return run.batch == BATCH and (run.device_cap_gib == DEVICE_GIB or uncapped)


def _at_its_best(run: Run) -> tuple[float, ...]:
    limit, failed, variant, *others, seconds = _preference(run)
    return limit, failed, *others, seconds, variant


def _preference(run: Run) -> tuple[float, bool, int, bool, bool, float]:
    return (
        math.inf if run.clip is None else run.clip,
        run.status != "ok",
        len(run.variant),
        run.device_cap_gib is None,
        run.host_cap_gib is not None,  # the run of a size search has few steps
        run.step_seconds_median or 0.0,
    )


# -- what a run says ------------------------------------------------------------------------------


def _row(run: Run, quantity: str, window: int | None = WINDOW) -> Row:
    """A run's value of ``samples/s``, ``ms`` or ``parameters`` as a row.

    `window` is STRONGHOLD's in the published runs; None where the figure varies it.
    """
    value, low, high = _value(run, quantity) if run.status == "ok" else (None,) * 3
    name = NAMES[run.method]
    return {
        "method": name,
        "label": METHODS[name].label,
        "layers": run.layers,
        "window": run.window,
        "value": value,
        "unit": "billion parameters" if quantity == "parameters" else tidy.UNITS[quantity],
        "low": low,
        "high": high,
        "parameters": run.parameters,
        "source": "measured",
        "hardware": run.hardware,
        "device": "cuda",
        "how": run.how,
        "status": run.status,
        "note": "; ".join(_setting(run, window)),
    }


def _value(run: Run, quantity: str) -> tuple[float | None, float | None, float | None]:
    if quantity == "parameters":
        return run.parameters / 1e9, None, None
    value = run.samples_per_second if quantity == "samples/s" else run.step_seconds_median * 1e3
    half = (run.step_seconds_spread or 0.0) / 2  # of the median
    return (value, value * (1 - half), value * (1 + half)) if half else (value, None, None)


def _setting(run: Run, published_window: int | None) -> list[str]:
    """Differences, certain or possible, from the published run; each row names them in one
    order."""
    told = [run.dtype if run.dtype == "fp32" else f"{run.dtype}, published fp32"]
    told.append(f"device {_cap(run.device_cap_gib)}")
    told.append(f"host {_cap(run.host_cap_gib)}")
    told.append("no clipping" if run.clip is None else f"gradients clipped at {run.clip:g}")
    if run.batch != BATCH:
        told.append(f"batch {run.batch}, published {BATCH}")
    if run.method == "stronghold" and published_window is not None:
        window = "chosen by the planner" if run.window is None else run.window
        told.append(f"window {window}, published {published_window}")
    if run.variant and run.window is None:
        told.append(in_words(run.variant))
    return told


def _cap(gib: float | None) -> str:
    return "not capped" if gib is None else f"capped at {gib:g} GiB"
