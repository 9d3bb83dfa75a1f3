"""Seconds that a run will take, before it runs: by earlier runs like it, else by its plan.

Steps cost what they cost in the nearest record of such a run on this class of device, in proportion
to its layers; without one, what the plan says, measured or estimated. What a run needs besides is
the median of its method's earlier runs; where there is none, that of all runs, and no less than a
time that is assumed, which is longer where this machine has layers or ranks to measure first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log
from statistics import median
from typing import Any

from workbench.core.host import device_class, resolve_device
from workbench.core.spec import AUTO, RunSpec, flat
from workbench.runs.answer import Answer

START_S, LAYERS_S, RANKS_S = 20.0, 20.0, 30.0
"""Assumed of what a run needs besides its steps, where none of its method has run yet: to import
and to read the text; to measure the layers; to measure and to start several ranks."""
ALIKE = (
    "method", "family", "hidden", "heads", "seq", "vocab", "batch", "microbatches", "dtype",
    "activations", "ranks", "link_bytes_per_s",
)  # fmt: skip
"""Fields that runs have in common whose steps take times in proportion to their layers."""
NO_MATTER = {
    "layers", "steps", "seed", "device", "lr", "min_lr", "lr_schedule", "warmup_steps",
    "lr_decay_steps", "weight_decay", "beta1", "beta2", "eps", "save_every", "start_from",
    "eval_every", "eval_epochs", "eval_share", "eval_samples", "augment", *ALIKE,
}  # fmt: skip
"""Others count only where several records are alike: the one that differs least is the nearest."""


def expected(
    spec: RunSpec, planned: Answer | None, rows: Iterable[dict[str, Any]]
) -> tuple[float | None, str]:
    """Seconds of a whole run, and how its steps are known: ``measured`` as layers, of ``records``,
    or ``estimated``; None where nothing is known. `rows` are those of `Index.rows`."""
    done = _done(rows)
    step, how = (planned.plan.step_seconds, planned.source) if planned else (None, "")
    if (step is None or how != "measured") and (near := _nearest(spec, done)) is not None:
        step, how = near["step_seconds"] * spec.model.layers / near["layers"], "records"
    if step is None:
        return None, ""
    beside = [
        (row["method"], max(0.0, row["seconds"] - row["step_seconds"] * row["steps_done"]))
        for row in done
        if row["seconds"]
    ]
    own = [seconds for method, seconds in beside if method == spec.method]
    least = START_S + LAYERS_S * (how == "estimated") + RANKS_S * (spec.ranks > 1)
    start = (
        median(own) if own else max([least, *([median(s for _, s in beside)] if beside else [])])
    )
    return start + step * spec.steps, how


def with_record(answer: Answer, rows: Iterable[dict[str, Any]]) -> Answer:
    """The answer with a note on the nearest record, where its layers were not measured here."""
    if not answer.here or answer.source == "measured" or not answer.plan.fits:
        return answer
    if (near := _nearest(answer.spec, _done(rows))) is None:
        return answer
    note = f"{near['step_seconds']:.3g} s a step in run {near['key']}, of {near['layers']} layers"
    return replace(answer, plan=replace(answer.plan, notes=(*answer.plan.notes, note)))


def _done(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["status"] == "ok" and row["step_seconds"]]


def _nearest(spec: RunSpec, done: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The record that differs least, of those on this class of device that are alike."""
    here = device_class(resolve_device(spec.device))
    asked = {**flat(spec), "method": spec.method}
    alike_in = [name for name in ALIKE if name != "microbatches" or asked[name] != AUTO]

    def distance(row: dict[str, Any]) -> tuple[float, float]:
        others = {name: row.get(f"asked_{name}", row.get(name)) for name in asked}
        differ = sum(others[name] != asked[name] for name in asked.keys() - NO_MATTER)
        return differ, abs(log(row["layers"] / spec.model.layers))

    alike = (
        row
        for row in done
        if row["device_class"] == here
        and all(row.get(name, asked[name]) == asked[name] for name in alike_in)
    )
    return min(alike, key=distance, default=None)
