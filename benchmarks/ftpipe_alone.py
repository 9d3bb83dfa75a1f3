"""One device of an asynchronous pipeline by itself, with messages that are made up.

All is as in a run but for the messages: the schedule, the executor and its turns, stages,
optimizers and their memory. So a machine with one GPU measures the devices of a pipeline one after
the other, and the simulator puts the measured passes together.
"""

from __future__ import annotations

import copy
import gc
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from workbench.core.model_spec import ModelSpec
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.model.base import Context, LayeredModel
from workbench.model.families import blank_rows
from workbench.profile.bench import timed
from workbench.profile.timing import summarize
from workbench.runtime.executor.executor import Executor
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.passes.bundle import Boundary, Bundle
from workbench.runtime.passes.differentiation import Above, Differentiation
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.runtime.updates.stage_updates import StageOptimizer, StageOptimizers
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.schedule.action import RECEIVES, SENDS, Action, Kind
from workbench.schedule.schedule import Schedule

WARM = 1
"""Steps before those that count."""
BYTES_PER_S = 12e9
"""Bandwidth of a message between devices, as the published model has it."""
SECONDS, LEAST = 0.1, 3
"""About what the timing of a unit takes, and its rounds at least."""
Measured = dict[tuple[Kind, int], float]
"""Kind of an action and its stage -> seconds."""


class AlikeUnits:
    """A model whose units of one kind begin alike: weights of a large one are drawn once a kind."""

    def __init__(self, model: LayeredModel) -> None:
        self._model, self._made = model, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def build(self, unit: int, **how: Any) -> torch.nn.Module:
        """As the model's."""
        kind = self._model.kind(unit)
        if kind not in self._made:
            self._made[kind] = self._model.build(unit, **how)
        return copy.deepcopy(self._made[kind])


class MadeUp:
    """A transport of messages that nobody sends. A `Transport`."""

    def __init__(self, engine: StageEngine, device: torch.device) -> None:
        self._forms, self._device = engine.forms, device
        self._values: dict[Any, Tensor] = {}

    def announce(self, action: Action, step: int) -> None:
        """There is a place for a message."""

    def send(self, action: Action, source: Bundle, step: int) -> None:
        """Let go of it."""

    def receive(self, action: Action, step: int) -> Bundle:
        """Random numbers of its form."""
        return tuple(self._value(form[:2]).clone() for form in self._forms(action, step))

    def close(self) -> None:
        """Nothing to do."""

    def _value(self, form: tuple[Sequence[int], torch.dtype]) -> Tensor:
        if form not in self._values:
            self._values[form] = value_of(*form, self._device)
            if self._device.type == "cuda":  # lanes with other streams read it
                torch.cuda.synchronize(self._device)
        return self._values[form]


def value_of(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers; true values of masks, and zeros of what else counts."""
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device)
    return torch.full(shape, int(dtype == torch.bool), dtype=dtype, device=device)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A pipeline's model and micro-batches."""

    spec: ModelSpec
    model: LayeredModel
    samples: int
    device: torch.device

    def stage(self, units: range) -> UnitStage:
        """Some units as a stage."""
        like = {"seed": 0, "seq": self.spec.seq, "device": self.device, "dtype": torch.float32}
        return UnitStage(self.model, units, **like)

    def rows(self, step: int) -> UnitRows:
        """A micro-batch of made-up tokens."""
        blank = [tensor.to(self.device) for tensor in blank_rows(self.spec, self.samples)]
        ctx = Context(seed=0, step=step, unit=0, samples=tuple(range(self.samples)))
        return UnitRows(tuple(_drawn(t, self.spec.vocab) for t in blank[:-1]), blank[-1], ctx)

    def message_bytes(self, unit: int) -> int:
        """Bytes of a micro-batch's input of a unit."""
        parts = self.model.boundary(unit, self.spec.seq)
        return Boundary(parts, torch.float32).nbytes(self.samples)

    def unit_ms(self, unit: int) -> tuple[float, float]:
        """Milliseconds of a forward pass, and of one with a backward pass behind it."""
        stage, autograd = self.stage(range(unit, unit + 1)), Differentiation()
        stage.begin(0, [self.rows(0)])
        came = tuple(value_of(*form[:2], self.device) for form in stage.came(self.samples))
        through = [form[2] for form in stage.came(self.samples)]
        back = [form[2] for form in stage.goes(self.samples)]

        def forward(differentiable: Sequence[bool] | None = None) -> Bundle:
            return autograd.forward(0, lambda x: stage.run(x, 0, 0), came, differentiable)

        def both() -> object:
            made = forward(through)
            if stage.last:
                return autograd.accumulate(0, Above(share=1.0))
            pairs = zip(made, back, strict=True)
            gradients = tuple(torch.ones_like(t) for t, wanted in pairs if wanted)
            return autograd.accumulate(0, Above(gradients, back))

        taken = timed([forward, both], self.device, seconds=SECONDS, least=LEAST)
        alone, whole = (1e3 * summarize(each).seconds for each in taken)
        return alone, whole


def _drawn(tokens: Tensor, vocab: int) -> Tensor:
    if tokens.dtype == torch.bool:
        return torch.ones_like(tokens)
    return torch.randint_like(tokens, 1, vocab)


def alone(
    shape: Shape, line: Asynchronous, stages: Sequence[range], rank: int, steps: int
) -> tuple[Measured, int]:
    """Seconds of the passes and updates of a rank's stages, medians of some steps, and the most
    bytes that it held."""
    gc.collect()  # the device before, whose engine and transport know each other
    made, meter, device = schedule(line), device_meter(shape.device), shape.device
    base = meter.now
    with meter:
        own = {
            stage: shape.stage(stages[stage])
            for stage, at in enumerate(line.positions)
            if at == rank
        }
        weights = {stage: StageWeights([each], each.learning()) for stage, each in own.items()}
        optimizers = {
            stage: StageOptimizer(
                torch.optim.AdamW(each.named.values(), lr=1e-5, fused=device.type == "cuda"),
                each.gradients,
            )
            for stage, each in weights.items()
        }
    gradients = next(iter(weights.values())).gradients
    engine = StageEngine(own, StagePasses(own), gradients, int, StageOptimizers(optimizers))
    engine.transport = MadeUp(engine, device)

    def perform(action: Action, step: int) -> None:
        with meter:
            engine.perform(action, step)

    for step in range(steps + WARM):
        for each in own.values():
            each.begin(step, [shape.rows(step)] * line.micros)
        samples = tuple(range(shape.samples))
        micros = [MicroBatch(samples=samples, weight=1.0)] * line.micros
        engine.begin(step, micros, 1 / line.micros)
    executor = Executor(
        made, perform, device, rank=rank, announce=engine.transport.announce, record_from=WARM
    )
    executor.run(0, steps + WARM)
    peak, found = meter.peak - base, defaultdict(list)
    for event in executor.events:
        found[Kind(event.kind), event.unit].append(event.end_s - event.start_s)
    executor.close()
    engine.close()
    meter.close()
    counted = {key for key in found if key[0] not in (*SENDS, *RECEIVES)}
    return {key: median(found[key]) for key in counted}, peak


class MeasuredCosts:
    """Seconds of measured passes, and of messages at the published rate."""

    def __init__(self, shape: Shape, stages: Sequence[range], measured: Measured) -> None:
        self._measured = measured
        self._bytes = [shape.message_bytes(own.start) if own.start else 0 for own in stages]

    def seconds(self, action: Action) -> float:
        found = self._measured.get((action.kind, action.unit))
        return self._bytes[action.unit] / BYTES_PER_S if found is None else found

    def slowdown(self, lane: str, busy: object) -> float:
        return 1.0


def load_ms(measured: Measured, made: Schedule, rank: int) -> float:
    """Milliseconds that a micro-batch keeps a rank busy, with its part of the updates."""
    passes = [a for a in made.actions if a.rank == rank and (a.kind, a.unit) in measured]
    return 1e3 * sum(measured[a.kind, a.unit] for a in passes) / made.num_microbatches
