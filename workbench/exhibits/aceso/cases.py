"""Plans as pictures: GPT 1.3B on four devices by three searches, and a Wide-ResNet's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.aceso import base
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.plans import draw_plan, keys
from workbench.figures.rows import SIMULATED, pick
from workbench.methods.aceso.show import cost_dict

CASES = (
    ("gpt", "megatron"), ("gpt", "faithful"), ("gpt", "ours"), ("resnet", "ours"),
)  # fmt: skip
RATE, STAGE = "throughput", "stage"
LISTS = {
    "tp": "model_parallel_size_of_each_op", "dp": "data_parallel_size_of_each_op",
    "algo": "algo_of_each_op", "again": "recompute_ops",
}  # fmt: skip
"""Column of runs of equal operators -> key of a plan's file."""


def mixed(asked: Asked) -> Found:
    """Stages whose tp, dp or partition changes from operator to operator."""
    part = pick(asked.rows, quantity=STAGE, model="resnet")
    several = part[["tp", "dp", "algo"]].apply(lambda column: column.str.contains(" "))
    return Found(float(several.any(axis=1).sum()))


def uneven(asked: Asked) -> float:
    """Operators of the largest stage over those of the last."""
    part = pick(asked.rows, quantity=STAGE, model="gpt", method=asked.given["method"])
    return float(part["step"].max() / part.sort_values("x")["step"].iloc[-1])


class Cases(base.AcesoExhibit):
    """A panel a plan; rows of stages have its operators as runs, ``1x26 0x52``."""

    metrics = by_name(mixed, uneven)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [each for case in CASES for each in _planned(*case)]
        every = base.published("small")
        rows += [
            base.told(row, model=row.model, label=base.NAMES[base.KINDS[row.series]])
            for row in every[every["quantity"] == RATE].itertuples()
            if row.model in ("gpt", "resnet")
        ]
        return self.tabled(at, rows, "model", "quantity", "step", *LISTS)

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        return super().listed(rows[rows["quantity"] == STAGE])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Plans under each other."""
        drawing.prepare(figure, 2.9)
        panels = figure.subplots(len(CASES), 1)
        plans = []
        for axes, (model, kind) in zip(panels, CASES, strict=True):
            part = pick(rows, model=model, method=base.KINDS[kind], source=SIMULATED)
            plan, cost = _read(part)
            plans.append(plan)
            draw_plan(axes, plan, cost, limit_mb=base.LIMIT_MB)
            words = axes.get_title(loc="left")
            drawing.title(axes, f"{base.NAMES[base.KINDS[kind]]}: {words}")
        drawing.place_legend(figure, keys(plans))
        drawing.small_print(figure, self.printed())


def _planned(model: str, kind: str) -> Iterator[dict[str, Any]]:
    """The best plan that a search finds: its throughput, and each stage."""
    plan, cost = base.search_small(kind, model).best
    written, costs = plan.to_dict(), cost_dict(plan, cost)
    method = base.KINDS[kind]
    about = {
        "model": model, "method": method, "label": base.NAMES[method], "source": SIMULATED,
        "pair": f"{written['model_name']} {written['model_size']}", "status": "ok",
        "how": base.FOUND,
    }  # fmt: skip
    batch, micro = written["global_batch_size"], written["micro_batch_size"]
    note = f"batch {batch} in micro-batches of {micro}"
    rate = batch / cost.time * 1000
    yield about | {"quantity": RATE, "value": rate, "unit": "samples/s", "note": note, "x": -1}
    for index, stage in enumerate(costs["stages"]):
        runs = {name: _runs(written[key][index]) for name, key in LISTS.items()}
        yield about | runs | {
            "quantity": STAGE, "x": index, "value": stage["iteration_ms"], "unit": "ms",
            "high": stage["memory_mb"], "layers": written["num_gpus"][index], "note": note,
            "step": written["num_ops_in_each_stage"][index],
        }  # fmt: skip


def _runs(values: list[int]) -> str:
    """Equal neighbours as ``value x number``.

    >>> _runs([1, 1, 0])
    '1x2 0x1'
    """
    return " ".join(f"{value}x{len([*run])}" for value, run in groupby(values))


def _read(rows: pd.DataFrame) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A plan and its cost, of the rows of its stages."""
    stages = pick(rows, quantity=STAGE).sort_values("x")
    model, _, size = stages["pair"].iloc[0].partition(" ")
    batch, micro = (int(n) for n in stages["note"].iloc[0].split() if n.isdigit())
    plan = {
        "model_name": model, "model_size": size, "global_batch_size": batch,
        "micro_batch_size": micro, "num_gpus": [int(n) for n in stages["layers"]],
        "num_ops_in_each_stage": [int(n) for n in stages["step"]],
    }  # fmt: skip
    for name, key in LISTS.items():
        plan[key] = [
            [value for run in text.split() for value, n in [map(int, run.split("x"))]
             for _ in range(n)]
            for text in stages[name]
        ]  # fmt: skip
    costs = [{"iteration_ms": row.value, "memory_mb": row.high} for row in stages.itertuples()]
    most = {name: max(each[name] for each in costs) for name in ("iteration_ms", "memory_mb")}
    return plan, most | {"stages": costs}
