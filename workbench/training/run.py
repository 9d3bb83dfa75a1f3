"""Train under a plan: the one driver of every method that runs on this runtime.

It makes the model, the data and the memory, executes the plan's schedule, tells the reporter about
every step, saves and resumes, and returns the measured half of a run record beside the plan's
predictions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

import torch

from workbench.core.garbage import free_unreachable
from workbench.core.record import Outcome
from workbench.core.reporter import DATA, Reporter, Untold
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.draws import Draws
from workbench.model.held_out import load_part
from workbench.model.text import Batches
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.checkpoint import ByUnit, MemoryHolder
from workbench.runtime.executor.executor import Executor, Perturb
from workbench.runtime.executor.match import check_match
from workbench.runtime.executor.threads import use_device_threads
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import DTYPES, Flat
from workbench.runtime.passes.engine import Engine
from workbench.runtime.passes.first_weights import Seeded, write_initial
from workbench.schedule import buffers
from workbench.schedule.action import Kind
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.schedule.simulate import Event, Occupied
from workbench.schedule.trace import write_trace
from workbench.training.history import History

TIMELINE_STEPS = 3
"""Steps at the end of a run whose events are kept."""


def resolve_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is a GPU; raises ValueError for CUDA where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but no CUDA device is available; use cpu or auto")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def load_batches(spec: RunSpec, model: LayeredModel, cache: Path | None = None) -> Batches | Draws:
    """The run's data: the same samples in the same order for every method."""
    return load_part(spec, model, cache)


def check_data(spec: RunSpec, report: Reporter, folder: Path) -> LayeredModel:
    """Make the model, which it returns, and read the data before anything takes long; so that of
    several ranks no two tokenize. Raises ValueError for what is wrong with either."""
    report.phase(DATA)
    model = make_model(spec.model, spec.seed)
    batches = load_batches(spec, model, folder / "cache")
    tell_of(model, spec, report, batches)
    return model


def tell_of(model: LayeredModel, spec: RunSpec, report: Reporter, batches: Batches | Draws) -> None:
    """Report the layers of a user's own module, which its spec does not name, and what becomes of
    rows."""
    if note := getattr(getattr(batches, "data", None), "note", ""):
        report.phase(note)
    if spec.model.custom:
        count = model.parameters_count()
        report.phase(f"{spec.model.family}: {model.num_units} layers, {count:,} parameters")


def write_weights(
    report: Reporter, model: LayeredModel, memory: Seeded, flats: Sequence[Flat], seed: int,
    watch: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Write the first weights of all units, as `write_initial`, and report of their fp32 bytes."""

    def tell(done: int, whole: int) -> None:
        report.event("bytes", text="weights", done_bytes=done, all_bytes=whole)

    report.phase(f"{'reading' if model.trained else 'making'} weights")
    write_initial(model, memory, flats, seed, watch=watch, tell=tell)


class Training:
    """A run in progress: model, memory, engine and executor under one plan."""

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        folder: Path,
        *,
        perturb: Perturb | None = None,
        given: tuple[LayeredModel, Batches] | None = None,
        report: Reporter | None = None,
    ) -> None:
        """`given`: a model and data that the spec does not name; `report` hears of the start.

        Raises DoesNotFit when the plan says so, OutOfMemory when memory runs out anyway, and
        ValueError for a plan of another model or batch.
        """
        if not plan.fits or plan.schedule is None:
            raise DoesNotFit(f"{plan.method} does not fit: {plan.binding}", tier=plan.lacking)
        self.spec, self.plan, self.folder = spec, plan, folder
        self.device = resolve_device(spec.device)
        use_device_threads(self.device.type)
        self.model = given[0] if given else make_model(spec.model, spec.seed)
        self.flats = [Flat.of(self.model, unit) for unit in range(self.model.num_units)]
        check_match(plan.schedule, self.flats, DTYPES[spec.dtype], spec)
        self.batches = given[1] if given else load_batches(spec, self.model, folder / "cache")
        if self.device.type == "cuda":
            free_unreachable()
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
        try:
            write_weights(report or Untold(), self.model, self.memory, self.flats, spec.seed)
            self.engine = Engine(self.model, plan.schedule, spec, self.batches, self.memory)
            self.executor = Executor(
                plan.schedule,
                self.engine.perform,
                self.device,
                perturb=perturb,
                on_step_end=self._step_ended,
                record_from=spec.steps - TIMELINE_STEPS,
                compute_stream=self.engine.stream,
            )
            if buffers.REPLAYS not in plan.schedule.buffers:  # a recording has a pool of its own
                self.meter.avoid_fragments()
        except BaseException:
            self.memory.close()
            self.meter.close()
            raise
        self.history = History(spec, folder, self.batches, model=self.model)
        self._holder = MemoryHolder(self.model, self.memory, self.flats)
        self._report: Reporter = Untold()
        self._last = 0.0

    def run(self, report: Reporter) -> None:
        """All steps that are left, in segments between checkpoints."""
        self._report = report
        first = self.resume()
        report.phase("training")
        for end in self.history.pauses(first):
            self.advance(first, end - first)
            first = end
            self._keep(end, self.history.pause)

    def advance(self, first: int, count: int) -> None:
        """So many steps from one on, to their end."""
        self._last = time.perf_counter()
        with self.meter:
            self.executor.run(first, count)

    def forward(self, step: int, *, holds: bool) -> None:
        """The forward passes of a step, which `step` ends. It `holds` its gradients, to which the
        next one adds its own, and updates nothing."""
        self._last, self.engine.holds = time.perf_counter(), holds
        with self.meter:
            self.executor.step(step, until=Kind.BACKWARD)

    def step(self, step: int) -> None:
        """One step, or the rest of it, until its loss is known; updates may still go on."""
        self._last = time.perf_counter()
        with self.meter:
            self.executor.step(step)
        self.engine.holds = False

    def update(self, step: int) -> None:
        """A step without passes, whose gradients are those that are held."""
        self.engine.bare = True
        try:
            self.step(step)
        finally:
            self.engine.bare = False

    def drop(self, step: int) -> None:
        """Let go of a step that only passed forward."""
        self.executor.drop()
        self.engine.drop(step)

    def discard(self) -> None:
        """Let go of gradients that are held."""
        self.settle()
        self.engine.forget()

    def have(self, model: LayeredModel) -> None:
        """As `Engine.have`."""
        if model is not self.engine.model:
            self.settle()  # the next segment begins on a device that is idle
            self.engine.have(model)

    def launch(self) -> bool:
        """Have no recorded passes any more; whether there were some."""
        self.settle()
        return self.engine.launch()

    def settle(self) -> None:
        """Wait until all updates of steps that were asked are made; raises what failed there."""
        with self.meter:
            self.executor.end()

    def forget(self) -> bool:
        """Let go of what a step that failed has left; returns whether it has changed no weight."""
        self.settle()
        self.engine.forget()
        return not self.executor.half_updated

    def save(self, next_step: int) -> None:
        """Write a checkpoint."""
        self._keep(next_step, self.history.save)

    def _keep(self, next_step: int, keep: Callable[..., None]) -> None:
        done = self.engine.optimizer.done
        keep(next_step, done, self._holder, self._report, self.statistics())

    def resume(self) -> int:
        """Go on from a checkpoint, where there is one; returns the first step to do."""
        history, first = self.history, self.history.resume(self._holder, self._report)
        self.engine.optimizer.resume(history.updates_done, history.grad_norms)
        if first:
            self.engine.take_up(history.statistics)
        return first

    def statistics(self) -> dict[str, torch.Tensor]:
        """BatchNorm's running statistics by their names in the whole model, where it has any."""
        return self.engine.statistics

    def take_up(self, statistics: Mapping[str, torch.Tensor]) -> None:
        """Have BatchNorm's statistics, by their names in the whole model."""
        self.engine.take_up(statistics)

    def parameters(self) -> dict[str, torch.Tensor]:
        """fp32 weights by their names in the whole model."""
        return checkpoint.parameters(self.model, self.memory, self.flats)

    def weights(self) -> ByUnit:
        """As `parameters`, to be read a few units at a time."""
        return checkpoint.by_unit(self.model, self.memory, self.flats)

    def outcome(self, engine: str) -> Outcome:
        """The measured half of the record, beside the predictions."""
        plan, ran, history = self.plan, len(self.executor.step_numbers), self.history
        notes = [*plan.notes, *history.notes]
        settled = self.engine.optimizer.settled
        if any(settled.values()):
            notes.insert(0, told_of(settled))
        moved: dict[str, int | None] = dict.fromkeys(self.engine.traffic.moved)
        if ran:
            moved = {way: total // ran for way, total in self.engine.traffic.moved.items()}
        else:
            notes = [*notes, "resumed after its last step: no bytes were counted in this attempt"]
        return Outcome(
            **history.measured(),
            peak_bytes={t: peak if ran else None for t, peak in self.memory.peak_bytes().items()},
            moved_bytes=moved,
            parameters=self.model.parameters_count(),
            window=plan.window,
            resident=plan.resident,
            # The first step warms up.
            predicted=plan.predicted(history.grad_norms[1:], self.spec.clip),
            engine=engine,
            notes=notes,
        )

    def close(self) -> None:
        """Give all memory back, whatever happened."""
        self.executor.close()
        self.engine.close()
        self.memory.close()
        self.meter.close()

    def _step_ended(self, step: int, _: float) -> None:
        now = time.perf_counter()
        loss, state = self.engine.finish(step)
        self.history.ended(
            step,
            loss,
            now - self._last,
            state.grad_norm,
            skipped=state.skipped,
            report=self._report,
        )
        self._last = now


def told_of(settled: Mapping[str, int]) -> str:
    """Fate of the updates that were made before the norm was known, in words."""
    words = "{stood} stood, {redone} were taken back, {waited} were not made"
    return f"updates before the norm was known: {words.format(**settled)}"


def train_planned(
    spec: RunSpec, plan: Plan, report: Reporter, folder: Path, *, engine: str = "workbench"
) -> Outcome:
    """Train under `plan`, leave the timeline in the run's folder, and return what was measured."""
    report.phase("laying out memory")
    training = Training(spec, plan, folder, report=report)
    try:
        training.run(report)
        try:
            norms = training.history.grad_norms[1:]
            write_timeline(folder, plan, training.executor.events, norms, spec.clip)
        except OSError as error:  # the training is done, whatever the disk says
            training.history.notes.append(f"the timeline was not written: {error}")
        return training.outcome(engine)
    finally:
        training.close()


def write_timeline(
    folder: Path, plan: Plan, events: list[Event], norms: Sequence[float | None],
    clip: float | None,
) -> None:  # fmt: skip
    """Events of the last steps, which have nothing of the warm-up, beside those that were foreseen
    for these global norms: as rows, and for Perfetto."""
    if not events:  # resumed after its last step: what an earlier attempt wrote stays
        return
    told = {"events": events, "predicted": plan.beside(events, norms, clip)}
    names = [field.name for field in fields(Event)]
    values = attrgetter(*names)  # dataclasses.asdict takes ten times as long
    rows = {
        name: [dict(zip(names, values(event), strict=True)) for event in each]
        for name, each in told.items()
    }
    memory = vars(Occupied.of(plan.schedule))
    about = {"schedule": plan.schedule.name, "source": "measured"}
    write_sealed(folder / "timeline.json", {**about, **rows, "memory": memory}, indent=None)
    write_trace(folder / "trace.json", events, schedule=plan.schedule, source="measured")
