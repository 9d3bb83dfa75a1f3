"""Train under a plan: the one driver of every method that runs on this runtime.

It makes the model, the data and the memory, executes the plan's schedule, tells the reporter about
every step, saves and resumes, and returns the measured half of a run record beside the plan's
predictions.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from workbench.methods.plan import DoesNotFit, Plan
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.text import Batches, load_text
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec
from workbench.runtime import checkpoint
from workbench.runtime.device_budget import device_meter
from workbench.runtime.engine import Engine
from workbench.runtime.executor import Executor, Perturb
from workbench.runtime.memory import Memory
from workbench.runtime.storage import Flat
from workbench.runtime.threads import use_device_threads
from workbench.schedule.trace import write_trace

TIMELINE_STEPS = 3
"""Steps at the end of a run whose events are kept."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is a GPU; raises ValueError for CUDA where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but no CUDA device is available; use cpu or auto")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def load_batches(spec: RunSpec, model: LayeredModel, cache: Path | None = None) -> Batches:
    """The run's data: the same samples in the same order for every method."""
    text = load_text(spec.text, spec.tokenizer, vocab=model.vocab, seq=spec.model.seq, cache=cache)
    return Batches(text.tokens, spec.model.seq, spec.batch, spec.seed)


class Training:
    """A run in progress: model, memory, engine and executor under one plan."""

    def __init__(
        self, spec: RunSpec, plan: Plan, folder: Path, *, perturb: Perturb | None = None
    ) -> None:
        """Raises DoesNotFit when the plan says so, OutOfMemory when memory runs out anyway."""
        if not plan.fits or plan.schedule is None:
            raise DoesNotFit(f"{plan.method} does not fit: {plan.binding}", tier=plan.lacking)
        self.spec, self.plan, self.folder = spec, plan, folder
        self.device = resolve_device(spec.device)
        use_device_threads(self.device.type)
        self.model = make_model(spec.model)
        self.flats = [Flat.of(self.model, unit) for unit in range(self.model.num_units)]
        batches = load_batches(spec, self.model, folder / "cache")
        self.meter = device_meter(self.device, spec.device_memory)
        self.memory = Memory(
            plan.schedule,
            self.flats,
            device=self.device,
            dtype=DTYPES[spec.dtype],
            meter=self.meter,
            host_budget=spec.host_memory,
            disk_budget=spec.disk_memory,
            disk_folder=folder / "scratch",
        )
        self.engine = Engine(self.model, plan.schedule, spec, batches, self.memory)
        self.executor = Executor(
            plan.schedule,
            self.engine.perform,
            self.device,
            perturb=perturb,
            on_step_end=self._step_ended,
            record_from=spec.steps - TIMELINE_STEPS,
        )
        self.losses: list[float] = []
        self.step_seconds: list[float] = []
        self.grad_norms: list[float | None] = []
        self.skipped: list[int] = []
        self._report: Reporter | None = None
        self._last = 0.0

    def run(self, report: Reporter) -> None:
        """All steps that are left, in segments between checkpoints."""
        self._report = report
        first = self._resume()
        total, every = self.spec.steps, self.spec.save_every or self.spec.steps
        while first < total:
            count = min(every - first % every, total - first)
            self._last = time.perf_counter()
            with self.meter:
                self.executor.run(first, count)
            first += count
            if self.spec.save_every:
                self._save(first)

    def parameters(self) -> dict[str, torch.Tensor]:
        """fp32 weights by their names in the whole model."""
        return checkpoint.parameters(self.model, self.memory, self.flats)

    def outcome(self, engine: str) -> Outcome:
        """The measured half of the record, beside the predictions."""
        plan, ran = self.plan, max(1, len(self.executor.step_numbers))
        return Outcome(
            losses=self.losses,
            step_seconds=self.step_seconds,
            peak_bytes=self.memory.peak_bytes(),
            moved_bytes={way: total // ran for way, total in self.engine.moved.items()},
            parameters=self.model.parameters_count(),
            window=plan.window,
            resident=plan.resident,
            predicted={
                "step_seconds": plan.step_seconds,
                "peak_bytes": plan.peak_bytes,
                "moved_bytes": plan.moved_bytes,
                "binding": plan.binding,
            },
            skipped_steps=self.skipped,
            grad_norms=self.grad_norms,
            engine=engine,
            notes=list(plan.notes),
        )

    def close(self) -> None:
        self.memory.close()

    def _step_ended(self, step: int, _: float) -> None:
        now = time.perf_counter()
        loss, state = self.engine.finish(step)
        self.losses.append(loss)
        self.step_seconds.append(now - self._last)
        self.grad_norms.append(state.grad_norm)
        if state.skipped:
            self.skipped.append(step)
            self._report.event("skipped", step=step, grad_norm=str(state.grad_norm))
        self._report.step(step, loss, now - self._last)
        self._last = now

    def _save(self, next_step: int) -> None:
        manifest = {
            "next_step": next_step,
            "updates_done": self.engine.updates_done,
            "losses": [repr(loss) for loss in self.losses],
            "step_seconds": self.step_seconds,
            "grad_norms": [repr(norm) for norm in self.grad_norms],
            "skipped": self.skipped,
        }
        path = checkpoint.save(
            self.folder / "checkpoints", self.model, self.memory, self.flats, manifest
        )
        self._report.event("saved", path=path.name, next_step=next_step)

    def _resume(self) -> int:
        """Continue from the newest checkpoint in the run's folder; returns the first step to do."""
        if not self.spec.save_every:
            return 0
        found = checkpoint.latest(self.folder / "checkpoints")
        if found is None:
            return 0
        path, manifest = found
        checkpoint.restore(path, self.model, self.memory, self.flats)
        self.engine.updates_done = manifest["updates_done"]
        self.losses = [float(loss) for loss in manifest["losses"]]
        self.step_seconds = list(manifest["step_seconds"])
        self.grad_norms = [None if n == "None" else float(n) for n in manifest["grad_norms"]]
        self.skipped = list(manifest["skipped"])
        self._report.event("resumed", path=path.name, next_step=manifest["next_step"])
        return manifest["next_step"]


def train_planned(
    spec: RunSpec, plan: Plan, report: Reporter, folder: Path, *, engine: str = "workbench"
) -> Outcome:
    """Train under `plan`, leave the timeline in the run's folder, and return what was measured."""
    training = Training(spec, plan, folder)
    try:
        training.run(report)
        _write_timeline(folder, plan, training)
        return training.outcome(engine)
    finally:
        training.close()


def _write_timeline(folder: Path, plan: Plan, training: Training) -> None:
    """Events of the last steps, which have nothing of the warm-up: as rows, and for Perfetto."""
    events = training.executor.events
    rows = [asdict(event) for event in events]
    (folder / "timeline.json").write_text(
        json.dumps({"schedule": plan.schedule.name, "source": "measured", "events": rows})
    )
    write_trace(folder / "trace.json", events, schedule=plan.schedule, source="measured")
