"""Steps of plans of Aceso, plan after plan in the processes of one start.

A start costs imports, a GPU's context, and weights that are drawn on the host: of plans of one
model it is paid once. Here is a work of `trained_ranks`, whose processes take plans from a file in
the run's folder, and write a row for each to another. A plan that fails ends the start.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.rows import Row
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter, Untold
from workbench.core.spec import RunSpec
from workbench.methods.aceso.options import keep, plan_of
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.stepping import PlanStepping, StepRows
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.ranks.failures import RankFailed
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.training import trained_ranks
from workbench.training.run import load_batches, resolve_device

MB = 1 << 20
ORDER, ROWS, WARM = "plans.json", "rows.jsonl", 2
"""Files of a run's folder; and steps that warm up."""


class Drawn:
    """A model's initial weights on the host, for all plans."""

    def __init__(self, model: LayeredModel, seed: int, device: str) -> None:
        self._units = [model.build(unit, seed=seed) for unit in range(model.num_units)]
        self._copies = device == "cpu"  # the meter there counts what it sees

    def __call__(self, key: tuple[int, str]) -> Tensor:
        weight = self._units[key[0]].get_parameter(key[1])
        return weight.clone() if self._copies else weight


def stepped(
    spec: RunSpec, plan: Plan, model: LayeredModel, weights: Callable[..., Tensor], folder: Path
) -> Row:
    """A spec's steps under a plan, in every process: milliseconds of a step that is warm, and the
    largest peaks of all processes."""
    gc.collect()
    batches, device = load_batches(spec, model, folder / "cache"), resolve_device(spec.device)
    if on_gpu := device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()
    made = PlanStepping(spec, plan, model, weights, device=device, dtype=DTYPES[spec.dtype])
    seconds, losses = [], []
    try:
        for step in range(spec.steps):
            began, samples = time.monotonic(), batches.samples(step)

            def read(samples: range = samples) -> StepRows:
                *inputs, targets = batches.rows(samples)
                return StepRows(
                    inputs, targets, model.counted(targets) if model.counts_differ else None
                )

            losses.append(made.step(step, samples, read).loss)
            seconds.append(time.monotonic() - began)
        held = torch.cuda.max_memory_reserved(device) if on_gpu else 0
        peaks = torch.tensor([made.meter.peak or 0, held]).double() / MB
        dist.all_reduce(peaks, dist.ReduceOp.MAX, group=made.everybody)
    finally:
        made.close()
    peak, held = peaks.tolist()
    return {
        "step_ms": median(seconds[WARM:]) * 1e3, "first_s": seconds[0], "losses": losses,
        "peak_mb": peak, **({"reserved_mb": held} if on_gpu else {}),
    }  # fmt: skip


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[Series]:
    """As `trained_ranks` asks of a work."""
    yield Series(spec, report, folder)


class Series:
    """The plans of one start, in one process."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._model = make_model(spec.model, spec.seed)
        report.phase("drawing weights")
        self._weights = Drawn(self._model, spec.seed, spec.device)

    def run(self) -> None:
        """A row for each plan."""
        results = self._folder.parents[1]
        for label, named in json.loads((self._folder / ORDER).read_text()).items():
            plan = plan_of(named, results)
            row = stepped(_of(self._spec, plan, named), plan, self._model, self._weights, results)
            if dist.get_rank() == 0:
                with (self._folder / ROWS).open("a") as file:
                    file.write(json.dumps({"what": label, **row}) + "\n")

    def outcome(self) -> Outcome:
        """Nothing: rows are in a file."""
        return Outcome(
            losses=[], step_seconds=[], peak_bytes=dict.fromkeys(("device", "host", "disk")),
            moved_bytes={}, parameters=0, engine="workbench",
        )  # fmt: skip


def _of(spec: RunSpec, plan: Plan, named: str) -> RunSpec:
    micros = -(-plan.subject.batch // plan.micro)
    return spec.with_(plan=named, batch=plan.subject.batch, microbatches=micros)


def series(
    spec: RunSpec, plans: Mapping[str, Plan], work: Path, devices: tuple[int, ...] = ()
) -> Iterator[Row]:
    """A row of each plan, or why it failed; all are of the spec's model and ranks. What comes
    after a plan that failed has another start."""
    left, count = dict(plans), 0
    while left:
        folder, count = work / "runs" / f"start-{count}", count + 1
        folder.mkdir(parents=True)
        named = {label: keep(plan, work) for label, plan in left.items()}
        (folder / ORDER).write_text(json.dumps(named))
        first = next(iter(left))
        failed = ""
        try:
            trained_ranks.train("benchmarks.aceso_steps", _of(spec, left[first], named[first]),
                                Untold(), folder, devices=devices)  # fmt: skip
        except (ValueError, OutOfMemory, RankFailed) as error:
            failed = str(error)
        rows = folder / ROWS
        for line in rows.read_text().splitlines() if rows.exists() else ():
            yield {"source": "measured", **(row := json.loads(line))}
            del left[row["what"]]
        if failed and left:
            del left[label := next(iter(left))]
            yield {"what": label, "source": "measured", "failed": failed}
