"""The runs of the benchmark of servers as one table: each beside data parallelism, its plan, and
the weights.

Data parallelism on as many GPUs, with all of their memory, is what training under a cap is measured
against: a share of it says what the scarce memory costs. Bytes over the host links are told in
multiples of the model's weights |W|, in which Harmony (VLDB'22) counts them: swapping moves several
for every micro-batch, harmony-pp at most 3 a step and stashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from workbench.core.spec import VALUE_BYTES
from workbench.exhibits.hardware.offload_table import (
    GIB,
    PLAIN,
    best_uncapped,
    framed,
    of_run,
    round_of,
)
from workbench.exhibits.hardware.offload_table import MODEL as SAME
from workbench.figures.rows import quotient
from workbench.published.servers import FILE, LABELS, ServerRun, latest

ROOF = "data-parallel"
OWN_RUNTIME = ("dp-swap", "pp-swap", "harmony-dp", "harmony-pp")
"""Methods whose predictions are judged: their schedule was simulated, and then that schedule
ran."""
HARMONY = ("harmony-dp", "harmony-pp")
MODEL = ("layers", "hidden", "heads", "seq", "dtype")
"""Columns that make two models one."""
WEIGHT_BYTES = {**VALUE_BYTES, "fp16": 2}
"""Bytes of a weight, by dtype."""
STATE_BYTES = {"fp32": 16, "bf16": 14, "fp16": 16}
"""Bytes of a parameter with AdamW: weight, gradient, two moments; of bf16 also the 16 bits that
make the weight an fp32 master, of fp16 a whole one."""

COLUMNS = (
    "method", "variant", "label", "ranks", "layers", "hidden", "heads", "seq", "batch", "dtype",
    "clip", "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second", "roof",
    "share", "roof_label", "roof_round", "round", "step_seconds", "spread_seconds",
    "predicted_step_seconds", "step_ratio", "peak_device_gib", "predicted_peak_device_gib",
    "peak_ratio", "host_gib", "load_gib", "store_gib", "planned_load_gib", "planned_store_gib",
    "moved", "planned_moved",
    "weights_gib", "states_gib", "final_loss", "source", "hardware", "device", "date", "commit",
    "how",
)  # fmt: skip
"""`batch`: the minibatch, of all ranks. `roof`: samples/s of data parallelism without a cap, of the
same model and minibatch on as many GPUs. `share`: this run's over it. `round`, `roof_round`: in
which round of measurements either was made. `step_ratio`, `peak_ratio`:
predicted over measured. `moved`, `planned_moved`: loads and stores of a step in multiples of
`weights_gib`. `device`: the machine's folder."""


def table(runs: Iterable[ServerRun], *, repeated: bool = False) -> pd.DataFrame:
    """One row a run in the order of the methods: the last of equal ones, or (`repeated`) each."""
    known = list(runs)
    shown = known if repeated else latest(known)
    return framed([_row(run, known) for run in shown], COLUMNS, LABELS)


def _row(run: ServerRun, runs: Sequence[ServerRun]) -> dict[str, Any]:
    # On one GPU data parallelism is plain training.
    roofs = (ROOF, PLAIN) if run.ranks == 1 else (ROOF,)
    roof = best_uncapped(run, runs, roofs, (*SAME, "ranks"))
    base = roof.samples_per_second if roof else None
    weights, states = (
        run.parameters * each[run.dtype] / GIB if run.parameters else None
        for each in (WEIGHT_BYTES, STATE_BYTES)
    )
    return {
        **of_run(run, FILE),
        "roof": base,
        "roof_label": roof.label if roof else "",
        "roof_round": round_of(roof) if roof else "",
        "share": quotient(run.samples_per_second, base),
        "moved": quotient(_both(run.load_gib, run.store_gib), weights),
        "planned_moved": quotient(_both(run.planned_load_gib, run.planned_store_gib), weights),
        "weights_gib": weights,
        "states_gib": states,
    }


def _both(load: float | None, store: float | None) -> float | None:
    """The sum, where both were told."""
    return load + store if load is not None and store is not None else None
