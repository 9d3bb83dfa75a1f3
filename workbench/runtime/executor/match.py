"""Whether a schedule was planned for this very model and batch.

A schedule is data that may come from a file or an earlier plan, and sizes are all it says of the
model. Laid out for another one it would train something else, or fail far from the cause.
"""

from __future__ import annotations

from collections.abc import Set

import torch

from workbench.core.division import micro_span
from workbench.core.model_spec import DOCUMENTS
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.runtime.memory.storage import Flat
from workbench.runtime.memory.visits import VisitLayout
from workbench.runtime.passes.links import placed
from workbench.schedule import buffers as name
from workbench.schedule.action import RECEIVES, SENDS, Action, Kind
from workbench.schedule.passes import COMPUTING
from workbench.schedule.schedule import Schedule

_BY_RANKS = {*SENDS, *RECEIVES, Kind.REDUCE, Kind.SUM_OUT, Kind.SUM_IN}
_HALVES = {Kind.INPUT_GRAD, Kind.WEIGHT_GRAD}
ON_ONE_DEVICE = {*Kind} - {Kind.EVICT} - _HALVES - _BY_RANKS
ON_RANKS = {*Kind} - {Kind.EVICT, Kind.PULL, Kind.PUSH, Kind.READ, Kind.SPILL, Kind.MOMENTS}
"""Kinds that the engines perform (engine.py, pack_engine.py)."""


def check_match(schedule: Schedule, flats: list[Flat], dtype: torch.dtype, spec: RunSpec) -> None:
    """Raise ValueError unless units, weights, micro-batches and tokens are those of the run, and
    every action is one that runs."""
    _check_kinds(schedule, ON_ONE_DEVICE, "one device")
    _check_units(schedule, len(flats))
    for unit, flat in enumerate(flats):
        _check_weights(schedule, name.weights(unit), unit, flat.numel, dtype)
    if schedule.num_microbatches != spec.microbatches:
        raise ValueError(
            f"the schedule {schedule.name!r} has {schedule.num_microbatches} micro-batches, the "
            f"run {spec.microbatches}; plan again for this run"
        )
    _check_tokens(schedule, "tokens", spec.batch, spec)


def check_ranks_match(
    schedule: Schedule, layouts: list[VisitLayout], dtype: torch.dtype, spec: RunSpec
) -> None:
    """Raise ValueError unless a schedule of several ranks, whose passes name samples, fits the run.
    Weights that visit a device bring along the weights they borrow."""
    _check_kinds(schedule, ON_RANKS, "several ranks")
    _check_units(schedule, len(layouts))
    _check_samples(schedule, spec)
    for unit, layout in enumerate(layouts):
        _check_weights(schedule, name.host_weights(unit), unit, layout.flat.numel, dtype)
    for label, buffer in schedule.buffers.items():
        what, unit = placed(label, buffer, buffer.rank) or (None, None)
        if what in ("weights", "gradients"):
            numel = layouts[unit].numel if unit < len(layouts) else 0
            _check_weights(schedule, label, unit, numel, dtype, what)


def _check_kinds(schedule: Schedule, kinds: Set[Kind], where: str) -> None:
    for action in schedule.actions:
        if action.kind not in kinds:
            raise ValueError(
                f"the schedule {schedule.name!r} cannot run: nothing performs {action.name}, a "
                f"{action.kind.name}, on {where}; it can be drawn and simulated"
            )


def _check_units(schedule: Schedule, units: int) -> None:
    if schedule.num_units != units:
        raise ValueError(
            f"the schedule {schedule.name!r} has {schedule.num_units} units, the model {units}; "
            "plan again for this model"
        )


def _check_weights(
    schedule: Schedule,
    label: str,
    unit: int,
    numel: int,
    dtype: torch.dtype,
    what: str = "weights",
) -> None:
    buffer = schedule.buffers.get(label)
    planned, needed = buffer.nbytes if buffer else 0, numel * dtype.itemsize
    if planned != needed:
        raise ValueError(
            f"the schedule {schedule.name!r} has {planned} bytes for the {what} of unit {unit}, "
            f"which are {needed}; plan again for this model and {dtype}"
        )


def _check_samples(schedule: Schedule, spec: RunSpec) -> None:
    """Check the samples of every rank; whether a pass leaves a sample out is the validator's to
    say."""
    passes = [action for action in schedule.actions if action.kind in COMPUTING]
    for action in passes:
        if action.samples is None:
            raise ValueError(f"{action.name} of the schedule {schedule.name!r} names no samples")
    if not passes:
        raise ValueError(f"the schedule {schedule.name!r} computes nothing")
    last = max(passes, key=lambda action: action.span[1])
    if last.span[1] != -(-spec.batch // schedule.replicas):
        replicas = f" for each of {schedule.replicas} replicas" if schedule.replicas > 1 else ""
        raise ValueError(
            f"the schedule {schedule.name!r} has {last.span[1]} samples{replicas}, of which "
            f"{last.name} sees the last, a step of the run has {spec.batch}; plan again for this "
            "run"
        )
    if spec.batch % schedule.replicas:
        _check_even(passes, last.span[1], schedule)
    if spec.model.decomposed:  # what their first unit takes is not tokens
        return
    for rank in {action.rank for action in passes}:
        spans = [action.span for action in passes if action.rank == rank]
        samples = max(end for _, end in spans) - min(first for first, _ in spans)
        _check_tokens(schedule, name.on_rank(rank, "tokens"), samples, spec)


def _check_even(passes: list[Action], samples: int, schedule: Schedule) -> None:
    """Check that micro-batches differ by at most one sample, as those of smaller replicas do."""
    for action in passes:
        even = micro_span(samples, action.microbatch or 0, schedule.num_microbatches)
        if action.span != even:
            raise ValueError(
                f"{action.name} of the schedule {schedule.name!r} has samples {action.span}; where "
                f"{schedule.replicas} replicas differ in samples, those are {even}"
            )


def check_empty(model: LayeredModel, schedule: Schedule, batch: int) -> None:
    """Raise ValueError where a replica has a micro-batch without samples, which repeats one, and
    the model would see it in statistics."""
    replicas, micros = schedule.replicas, schedule.num_microbatches
    if model.normalizes and replicas > 1 and batch // replicas < micros:
        raise ValueError(
            f"a batch of {batch} leaves some of {replicas} replicas with fewer samples than "
            f"{micros} micro-batches: one would repeat a sample, and BatchNorm see it twice; use "
            "fewer micro-batches, or a batch that the replicas divide"
        )


def _check_tokens(schedule: Schedule, label: str, samples: int, spec: RunSpec) -> None:
    tokens = schedule.buffers.get(label)
    parts = 3 if spec.model.rows == DOCUMENTS else 2
    needed = parts * torch.int64.itemsize * samples * spec.model.seq
    if tokens is not None and tokens.nbytes != needed:
        raise ValueError(
            f"the schedule {schedule.name!r} has {tokens.nbytes} bytes for the tokens of a step, "
            f"which are {needed} for {samples} samples of {spec.model.seq}; plan again for "
            "this run"
        )
