"""Steps that a user's own loop asks for, instead of a run.

A row of the table of methods that can do so names a maker of `Steps` (`Method.driven`). For methods
that are planners on one device of this runtime that is `planned`: it measures the layers of the
user's module on the first batch, plans, and trains under the plan, a step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workbench.core import methods
from workbench.core.reporter import Reporter
from workbench.core.spec import AUTO, RunSpec
from workbench.model.draws import Draws
from workbench.model.modules import Decomposed
from workbench.model.objective import NO_MEAN, PREFIX, Batch, Handed, Layered, Objective, Weigh
from workbench.profile.dividing import Tried, best_division, in_words, spares
from workbench.profile.profile import Profile
from workbench.profile.several import scaled
from workbench.ranks.peers import Peers
from workbench.runtime.checkpoint.checkpoint import ByUnit, in_memory
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.passes.statistics import clones
from workbench.runtime.passes.unit_passes import make_room
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.training.bounded import Again, compare_in_time
from workbench.training.module_profile import profile_of
from workbench.training.optimizer_settings import MakeOptimizer, Settings
from workbench.training.run import Training, resolve_device

NORMALIZED = (
    "BatchNorm takes its statistics from each micro-batch alone, so that losses are not those of "
    "the batch in one part"
)


class Steps(Protocol):
    """A training that does a step when it is asked to."""

    steps: int
    """Steps done, those before the checkpoint that was loaded among them."""
    grad_norm: float | None
    """Global norm of the last step's gradients before they were clipped, where it is known."""
    whole: bool = True
    """Whether weights, moments and counts are those of these steps. Whoever asks for steps and
    loads sets it where one has failed in its middle."""

    parts: int = 1
    """Micro-batches of a step, where it was left open how many."""
    shorter: bool = False
    """Whether batches may have fewer rows than the first one, or shorter ones."""
    plan: Plan | None = None
    """Plan under which they are done, where there is one and this process has made it."""

    def step(self, batch: Batch) -> float:
        """One optimizer step on a batch; its mean loss."""

    def begin(self, batch: Batch) -> list[float]:
        """Begin a step, and do it unless steps overlap; losses, in order, of those that ended."""
        return [self.step(batch)]

    def rest(self) -> list[float]:
        """End all steps that have begun; their losses."""
        return []

    def forget(self) -> bool:
        """Let go of what a step that failed has left, of a process that is alone; returns whether
        it has changed nothing. Raises ValueError where no other step is possible."""

    def objective(self, batch: Batch, again: Again) -> Objective | None:
        """The objective for batches of the form of one that is `shorter` than the first; `again`
        makes it. None for the first one's. Raises ValueError where they cannot be trained."""

    def launch(self) -> bool:
        """Have no recorded passes any more, whose code is not run; whether there were some."""
        return False

    def settle(self) -> None:
        """Wait until what steps have left to others is done, before weights are asked for or other
        ones are taken up. Where it raises, `forget` tells whether weights are whole."""

    def pause(self) -> None:
        """Wait until weights stand still, and can be read; steps go on as if nobody had."""
        self.settle()

    def tensors(self) -> dict[str, Tensor]:
        """fp32 weights, and BatchNorm's statistics, by their names in the `Objective`."""

    def weights(self) -> ByUnit:
        """As `tensors`, to be read a few at a time."""
        return in_memory(self.tensors())

    def save(self, folder: Path) -> Path:
        """Write ``step-N`` in a folder. Raises OSError if the disk refuses."""

    def load(self, folder: Path) -> int | None:
        """Take up the newest sound checkpoint of a folder; the steps done by it, None where there
        is none. Raises ValueError for one of another training."""

    def close(self) -> None:
        """Give all memory back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutsideRate(RunSpec):
    """A spec whose learning rate the user's loop sets."""

    optimizer: Settings | None = field(default=None, compare=False)
    """Its rate is read when a step begins."""

    @property
    def divides(self) -> bool:  # only a module that was looked at is left open
        return self.batch > 1

    def learning_rate(self, step: int) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


@dataclass(frozen=True, kw_only=True)
class Task:
    """A user's training; its spec has the batch of this process, and a model without layers."""

    spec: OutsideRate
    microbatches: int | None
    """Parts of that batch, which a method's own spec may say otherwise; None where its planner is
    to choose their number."""
    objective: Objective
    first: Batch
    results: Path
    """Where measurements of this machine are kept."""
    folder: Path
    """For what is gone when the training is closed."""
    stages: int | None
    """Stages of a pipeline, where the user gives them."""
    peers: Peers
    """Processes that take these steps; of a method that may have several, they have met."""
    report: Reporter
    """Hears what goes on before the first step."""
    again: Again
    """Makes the objective once more, for another first batch."""
    weight_of: Weigh | None = None
    optimizer: MakeOptimizer | None = None
    """Makes the optimizer of some parameters, where that is the user's own."""


def whole_state(module: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU of all that a module's `state_dict` has, by the names there; values that
    were `trained`, by their names in the `Objective`, instead of the module's own."""
    trained = {name.removeprefix(PREFIX): tensor for name, tensor in trained.items()}
    own = dict(module.named_parameters(remove_duplicate=False))
    first = {id(own[name]): name for name in trained if name in own}
    alias = {name: first.get(id(parameter), name) for name, parameter in own.items()}
    return {
        name: trained.get(alias.get(name, name), tensor).detach().cpu().clone()
        for name, tensor in module.state_dict().items()
    }


class Given(Draws):
    """Batches that a user's loop hands over, of which some have fewer rows."""

    data: Handed

    def samples(self, step: int) -> tuple[int, ...]:
        return self.data.of(step)


class InOneProcess(Steps):
    """A training of ours of which one process has all, whose samples are handed over."""

    def __init__(self, task: Task, make: Any) -> None:
        """`make(spec, model, batches)` makes it. Raises ValueError for a module that layers would
        train otherwise than it trains by itself."""
        spec = task.spec
        if task.stages is not None:
            raise ValueError(
                f"stages is {task.stages}; leave it out, {spec.method} has no pipeline"
            )
        self.ends = ExitStack()
        """Closed with the training."""
        task.report.phase("cutting the module into layers")
        model, weights = task.objective.layered()
        self._handed = Handed(task.first, model)
        asked = task.microbatches or _open(model)
        self._divided = asked == AUTO or asked * len(task.peers.folders) > 1
        self.shorter = len(task.peers.folders) == 1
        if self._divided and task.microbatches:
            model.divide()
        check_layers(task.report, spec, model, task.first, task.again, divided=self._divided)
        self._forms = {task.first.lengths: (task.objective, model)}
        """By the shapes of a row, the first one's first."""
        self._kept: dict[str, Tensor] | None = None
        """Statistics from before the step that is being done."""
        self._spec, self._report = spec, task.report
        shape = replace(spec.model, layers=max(1, model.layers))
        spec = replace(spec, model=shape, microbatches=asked)
        self._whole = make(spec, model, Given(self._handed, spec.batch))
        if task.microbatches is None:
            self.parts = self._whole.spec.microbatches
        self._settings = spec.optimizer.told
        weights.clear()  # they have been copied

    @property
    def steps(self) -> int:
        """Steps that are done."""
        return len(self._whole.history.losses)

    @property
    def grad_norm(self) -> float | None:
        """The global norm of the last step's gradients, where they are clipped."""
        return (self._whole.history.grad_norms or [None])[-1]

    def objective(self, batch: Batch, again: Again) -> Objective:
        if batch.lengths not in self._forms:
            sizes = ", ".join(str([*shape]) for shape in batch.lengths[: len(batch.places)])
            self._report.phase(f"rows of {sizes}: cutting the module into layers")
            objective = again(batch.tensors)
            model, _ = objective.layered()
            if self._divided:
                model.divide()
            self._report.event("compared", text="not compared with the module again")
            make_room(self._forms)
            self._forms[batch.lengths] = objective, model
        return self._forms[batch.lengths][0]

    def forward(self, batch: Batch, *, holds: bool) -> None:
        """The forward passes of a step, which `backward` ends. It `holds` its gradients, to which
        the next one adds its own, and updates nothing."""
        self._take(batch)
        self._whole.forward(self.steps, holds=holds)

    def drop(self) -> None:
        """Let go of a step that only passed forward."""
        self._whole.drop(self.steps)
        self._whole.take_up(self._kept)

    def discard(self) -> None:
        """Let go of gradients that are held."""
        self._whole.discard()

    def step(self, batch: Batch) -> float:
        self._take(batch)
        return self.backward()

    def _take(self, batch: Batch) -> None:
        self._before = self.steps
        self._whole.have(self._forms[batch.lengths][1])
        self._handed.take(batch)
        self._kept = clones(self._whole.statistics())

    def update(self) -> None:
        """A step without passes, whose gradients are those that are held."""
        self._take(self._handed.batch)
        self._ended(self._whole.update)

    def backward(self) -> float:
        """End the step whose batch is taken; its mean loss."""
        return self._ended(self._whole.step)

    def _ended(self, do: Callable[[int], None]) -> float:
        do(self.steps)
        if not isfinite(self.grad_norm or 0.0):  # no weight was changed
            self._whole.take_up(self._kept)
        self._kept = None
        return self._whole.history.losses[-1]

    def launch(self) -> bool:
        return self.plan is not None and self._whole.launch()

    def settle(self) -> None:
        self._before = self.steps
        self._whole.settle()

    def forget(self) -> bool:
        whole = self._whole.forget()
        if self._kept is not None:
            self._whole.take_up(self._kept)
        return whole and self.steps == self._before

    def tensors(self) -> dict[str, Tensor]:
        return {**self._whole.parameters(), **self._whole.statistics()}

    def weights(self) -> ByUnit:
        trained = self._whole.weights()
        return in_memory(self._whole.statistics(), trained) if trained else super().weights()

    def save(self, folder: Path) -> Path:
        history, path = self._whole.history, folder / step_name(self.steps)
        history.folder, history.settings = folder, self._settings()
        self._whole.save(self.steps)
        if not path.exists():
            raise OSError(history.notes[-1])
        return path

    def load(self, folder: Path) -> int | None:
        self._whole.history.folder = folder
        return self._whole.resume() or None

    def close(self) -> None:
        self._whole.close()
        self.ends.close()


def planned(task: Task) -> Steps:
    """Steps under the plan of the spec's method. Raises DoesNotFit, and ValueError for what cannot
    be trained so."""

    def make(spec: RunSpec, model: Decomposed, batches: Draws) -> Training:
        model.check_shared(PREFIX)
        found = best_division(
            spec,
            lambda each: _tried(task, each, model, batches),
            lambda each, best: _by(each, scaled(best.profile, each.microbatch)),
        )
        if task.microbatches is None:
            task.report.event("divided", text=in_words(found.spec))
        if found.plan.fits:
            task.report.event("planned", text=found.plan.in_words())
        task.report.phase("laying out memory")
        given = model, batches
        return Training(found.spec, found.plan, task.folder, given=given, report=task.report)

    steps = InOneProcess(task, make)
    steps.plan = steps._whole.plan
    return steps


def _tried(task: Task, spec: RunSpec, model: Decomposed, batches: Draws) -> Tried:
    """The plan from layers that are measured now. Raises DoesNotFit where they cannot be, of a
    number of micro-batches among several."""
    rows = batches.rows(range(spec.microbatch))
    try:
        profile = profile_of(spec, model, rows, task.results, task.report, records=True)
    except torch.OutOfMemoryError as error:
        if task.microbatches:
            raise
        raise DoesNotFit(f"{len(rows[-1])} rows cannot be timed: {error}") from error
    finally:
        if resolve_device(spec.device).type == "cuda":
            torch.cuda.empty_cache()  # the plan has all of the budget
    task.report.phase("planning")
    if profile.note:
        task.report.event("launched", text=profile.note)
    return _by(spec, profile)


def _by(spec: RunSpec, profile: Profile) -> Tried:
    """The plan from these costs, and their note among its own."""
    plan = methods.load(spec.method).plan(spec, profile)
    plan = replace(plan, notes=(*plan.notes, *filter(None, [profile.note])))
    room = spec.device_memory or profile.hardware.device_bytes
    return Tried(spec, plan, spares(plan, room, measured=True), profile)


def _open(model: Layered) -> int | str:
    """Divide the model, so that a planner may choose the number of micro-batches; 1 where parts of
    a batch would be another training."""
    if model.normalizes:
        return 1
    try:
        model.divide()
    except ValueError:
        return 1
    return AUTO


def check_layers(
    report: Reporter, spec: RunSpec, model: Layered, first: Batch, again: Again, *, divided: bool
) -> None:
    """Compare the layers with the module as it is written, as much of them as can be in time.
    Raises ValueError where they would train otherwise, or a batch that is `divided`."""
    report.phase("comparing the layers with the module")
    device = resolve_device(spec.device)
    found = compare_in_time(model, first, again, spec, device, divided=divided)
    if found.note:
        report.event("compared", text=found.note)
    if divided and model.normalizes:
        report.event("normalized", text=NORMALIZED)
    if found.couples and divided:
        raise ValueError(NO_MEAN.format(""))
