"""Varuna on more GPUs: measured on 1, 2 and 4 of one kind, simulated beyond."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import VALUE_BYTES
from workbench.exhibits.hardware.table import SERVERS as TOLD
from workbench.exhibits.hardware.table import table as rows_of
from workbench.exhibits.opened import Opened
from workbench.exhibits.varuna.base import VarunaExhibit
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, SIMULATED, join, pick
from workbench.figures.style import LOOKS, bar_look
from workbench.methods.pipeline import quick
from workbench.methods.pipeline.orders import B, F, R
from workbench.methods.pipeline.policies import POLICIES
from workbench.partition.stages import min_max_stages
from workbench.published import hardware
from workbench.published.here import PIPELINES, SERVERS
from workbench.published.tables import FOLDER

SEQ, VOCAB = 1024, 50304
XL = {"layers": 48, "hidden": 1600, "batch": 64, "dtype": "bf16"}
"""GPT-2 XL, as the benchmarks of servers and of pipelines train it."""
GPUS = (1, 2, 4)
TORCH = ("torch-gpipe", "torch-1f1b")
OTHERS = ("data-parallel", "gpipe", "1f1b", *TORCH)
METHODS = {"plain": GPUS[:1], "varuna": GPUS, **dict.fromkeys(OTHERS, GPUS[1:])}
"""On how many GPUs each is to be shown."""
REPLICAS = (16, 32, 64, 128)
"""Pipelines side by side."""
RULE = POLICIES["varuna"]


class Scaling(VarunaExhibit):
    """Speeds of servers, and of the configurations in the released scripts."""

    runs = False

    def machines(self, at: Opened) -> set[str]:
        return {*_committed(at)["device"]}

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [*_measured(at), *_simulated()]
        return self.tabled(at, rows, status="ok")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Measured by method; simulated by model."""
        drawing.prepare(figure, 1.1)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
        here, beyond = (pick(rows, source=source) for source in (MEASURED, SIMULATED))
        if here.empty:
            drawing.empty(left, "nothing was measured and committed yet")
        else:
            drawing.lines(left, here, "GPUs", "samples/s", log="x", ticks=GPUS)
            left.set_xlim(GPUS[0] / 1.2, GPUS[-1] * 1.2)
            drawing.title(left, "measured: GPT-2 XL, batch 64")
        groups = {
            model: f"{model}\n{part['x'].min():,.0f} to {part['x'].max():,.0f}"
            for model, part in beyond.groupby("label", sort=False)
        }
        drawing.bars(right, beyond, groups, "TFLOP/s a GPU", column="label", number="{:.1f}")
        drawing.title(right, "simulated: configurations of the scripts, and GPUs")
        hatched = drawing.patch(**bar_look(LOOKS["varuna"].color, SIMULATED)), "Varuna, simulated"
        drawing.legend(figure, here, as_lines=True, more=[hatched])
        lacking = [
            f"{SERVERS.labels[name]} on {', '.join(map(str, absent))} GPU{'s' * (absent != [1])}"
            for name, numbers in METHODS.items()
            if (absent := sorted({*numbers} - {*pick(here, method=name)["x"]}))
        ]
        facts = {"replicas": ", ".join(map(str, REPLICAS)), "machine": hardware.DEFAULT}
        words = "; ".join(lacking) or "nothing"
        drawing.small_print(figure, self.printed(lacking=words, **facts))


def _committed(at: Opened) -> pd.DataFrame:
    """The fastest run of each method by GPUs and machine."""
    every = [rows_of(sheet.runs(at.roots()), TOLD) for sheet in (SERVERS, PIPELINES)]
    rows = pick(join(*every), method=tuple(METHODS), status="ok", **XL)
    rows = rows[rows["device_cap_gib"].isna()].sort_values("samples_per_second")
    return rows.drop_duplicates(["device", "method", "ranks"], keep="last")


def _measured(at: Opened) -> Iterator[dict[str, Any]]:
    """Runs on the machine that was asked for, else on the one with most of them."""
    rows = _committed(at)
    chosen = [at.machine] if at.machine else rows["device"].mode()[:1]
    for run in rows[rows["device"].isin(chosen)].itertuples():
        yield {
            "method": run.method, "label": run.label, "x": run.ranks, "unit": "samples/s",
            "value": run.samples_per_second, "source": MEASURED, "hardware": run.hardware,
            "device": "cuda", "how": run.how,
        }  # fmt: skip


def _simulated() -> Iterator[dict[str, Any]]:
    """TFLOP/s a GPU of each configuration, by replicas."""
    for told in pd.read_csv(FOLDER / "varuna_configs.csv").itertuples():
        shape = {"layers": told.layers, "hidden": told.hidden, "heads": told.heads}
        model = ModelSpec(**shape, seq=SEQ, vocab=VOCAB)
        for replicas in REPLICAS:
            micros = -(-told.batch // (replicas * told.micro))
            seconds = step_seconds(model, told.micro, told.depth, micros, replicas)
            gpus = told.depth * replicas
            yield {
                "method": "varuna", "label": told.model, "x": gpus, "unit": "TFLOP/s a GPU",
                "value": told.batch * tera_operations(model) / seconds / gpus,
                "pair": f"{told.depth} x {replicas}, micro-batch {told.micro}",
                "source": SIMULATED, "hardware": hardware.machine().name,
                "how": "simulated with constants of the published machine",
            }  # fmt: skip


def tera_operations(model: ModelSpec) -> float:
    """Of a sample, forward and backward, none twice (Narayanan et al., SC 2021, section 3)."""
    hidden, layers = model.hidden, model.layers
    more = 1 + SEQ / (6 * hidden) + VOCAB / (16 * layers * hidden)
    return 72e-12 * SEQ * layers * hidden**2 * more


@cache
def step_seconds(model: ModelSpec, micro: int, depth: int, micros: int, replicas: int) -> float:
    """A step on the published machine: passes, sum of a stage's gradients in a ring, update."""
    machine = hardware.machine()
    units = hardware.profile(hardware.DEFAULT, model, micro).units
    last = [unit.forward_s + unit.backward_s for unit in units]
    every = [unit.recompute_s + own for unit, own in zip(units, last, strict=True)]
    seconds = [
        {F: sum(u.forward_s for u in own), R: sum(u.recompute_s for u in own),
         B: sum(u.backward_s for u in own)}
        for part in min_max_stages(every, depth, lambda stage, units: True, last)
        for own in [units[part.start : part.stop]]
    ]  # fmt: skip
    message = micro * SEQ * model.hidden * VALUE_BYTES["fp32"] / machine.h2d_bytes_per_s
    links = quick.Links(seconds=[message] * (depth - 1))
    passes = quick.end_s(quick.timeline(RULE.passes(depth, micros), seconds, links, RULE.rule))
    parameters = model.parameters / depth
    ring = 2 * (replicas - 1) / replicas * parameters * VALUE_BYTES["fp32"]
    return passes + ring / machine.h2d_bytes_per_s + parameters / machine.device_adam_params_per_s
