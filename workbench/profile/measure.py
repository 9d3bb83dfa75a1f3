"""Measures the units of a model on this machine: seconds and bytes of every compute action.

Units of one kind cost the same, so a small step will do: the embedding, a few blocks, the head,
run by the bench as the engine would run them, and timed action by action. Bytes come from
footprint.py.

A step that would take too long here (a published size on a laptop) is timed on fewer tokens,
twice, and the line through the two is drawn on to the size asked for: what depends on the weights
alone, such as adding up their gradients, does not grow with the tokens. The profile says so.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch

from workbench.model.base import LayeredModel
from workbench.profile.bench import Bench
from workbench.profile.footprint import footprints, give_back_workspaces, library_bytes_of
from workbench.profile.loads import Product, torch_device
from workbench.profile.profile import Hardware, UnitCost
from workbench.profile.recorded import Block, with_recorded
from workbench.profile.timing import TRIES, Sample, Timing, lasting, quietest, sample, summarize
from workbench.runtime.executor.threads import use_device_threads
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.template import compiles

BLOCKS = 6
"""Blocks in the small step, so that a block finds the caches full of others' data, as it will."""
FEW_BLOCKS = 2
"""Blocks where more would take too long; a large one fills the caches by itself."""
STEP_SECONDS = 1.5
"""Longest small step that is timed at full size."""
REDUCED_STEP_SECONDS = 0.8
LEAST_TOKENS = 64
"""Fewest tokens a step is reduced to; half of them for the second timing."""
PROBE_SECONDS = 0.1
STEPS, REDUCED_STEPS = 4, 2
"""Fewest timed steps, after one that warms up."""

Timings = dict[tuple[str, str], Timing]
"""(kind, phase) -> timing."""


class Size(NamedTuple):
    """Sizes of the small step that is measured."""

    microbatch: int
    seq: int


def unit_costs(
    model: LayeredModel,
    *,
    microbatch: int,
    seq: int,
    dtype: str,
    device: str,
    hardware: Hardware,
    seconds: float = 1.0,
    compile: str = "auto",
) -> tuple[dict[str, UnitCost], int, str]:
    """Cost by kind of unit for micro-batches of [microbatch, seq] on this machine, the device bytes
    libraries keep, and a sentence on what was scaled (empty if nothing was).

    `dtype` is ``fp32`` or ``bf16``; `seconds` is about what the timed steps take in all.
    """
    target, torch_dtype = torch_device(device), DTYPES[dtype]
    use_device_threads(target.type)
    full = Size(microbatch, seq)
    small, blocks = _affordable(model, full, hardware)
    units = model_units(model, blocks)
    with device_meter(target) as meter:
        library_bytes_of(meter)  # what was timed before in this process took some, too
        compiled = compiles(compile, target.type, torch_dtype)
        bench = Bench(
            model, units, dtype=torch_dtype, device=target, meter=meter, compiled=compiled
        )
        timings = {
            size: _timings(bench, size, seconds, reduced=small != full)
            for size in ((full,) if small == full else (small, _half(small)))
        }
    del bench
    bytes_of, library_bytes = footprints(
        model,
        model_units(model, 1),
        full,
        dtype=torch_dtype,
        device=target,
        compiled=compiled,
        fake=target.type == "cpu" and small != full,  # else it has just been run for real
    )
    costs = {}
    for unit in units:
        kind = model.kind(unit)

        def took(phase: str, unit: int = unit, kind: str = kind) -> float:
            return _extrapolated(
                [
                    (model.flops(unit, *size), found[kind, phase].seconds)
                    for size, found in timings.items()
                ],
                model.flops(unit, *full),
            )

        recomputed = (kind, "recompute") in timings[small]
        copied = (kind, "copy") in timings[small]
        costs[kind] = UnitCost(
            kind=kind,
            parameters=model.unit_parameters(unit),
            forward_s=took("forward"),
            recompute_s=took("recompute" if recomputed else "forward"),
            backward_s=took("backward"),
            gradient_s=timings[small][kind, "gradient"].seconds,
            gradient_copy_s=timings[small][kind, "copy"].seconds if copied else 0.0,
            spread=timings[small][kind, "backward"].spread,
            flops=model.flops(unit, *full),
            **bytes_of[kind],
        )
    if target.type == "cuda" and model.compilable:
        for unit in model_units(model, 1)[1:-1]:
            block = Block(
                model=model, unit=unit, microbatch=microbatch, seq=seq, dtype=torch_dtype,
                device=target, compiled=compiled,
            )  # fmt: skip
            costs[model.kind(unit)] = with_recorded(costs[model.kind(unit)], block)
    note = "" if small == full else (
        f"compute was timed on {small.microbatch} x {small.seq} tokens and drawn on to "
        f"{microbatch} x {seq}, which would take too long to time on this machine"
    )  # fmt: skip
    return costs, library_bytes, note


def _extrapolated(points: list[tuple[float, float]], flops: float) -> float:
    """Seconds at `flops` on the line through (flops, seconds); a single point is at full size."""
    flops_1, seconds_1 = points[0]
    if len(points) == 1:
        return seconds_1
    flops_2, seconds_2 = points[1]
    slope = max(0.0, seconds_1 - seconds_2) / (flops_1 - flops_2)
    return seconds_1 + slope * (flops - flops_1)


def probe(device: str, dtype: str) -> float:
    """Seconds of one matrix product, which tell whether the machine still is what it was: shared
    ones are slower by a fifth for minutes when their neighbours are at work."""
    target = torch_device(device)
    with Product(target, DTYPES[dtype]) as load:
        seconds = sample(load.once, seconds=PROBE_SECONDS).seconds
    give_back_workspaces(target)
    use_device_threads(target.type)
    return seconds


def model_units(model: LayeredModel, most: int) -> list[int]:
    """The first `most` units of every kind, in the model's order."""
    count: dict[str, int] = defaultdict(int)
    units = []
    for unit in range(model.num_units):
        count[model.kind(unit)] += 1
        if count[model.kind(unit)] <= most:
            units.append(unit)
    return units


def _affordable(model: LayeredModel, full: Size, hardware: Hardware) -> tuple[Size, int]:
    """The full size, if a small step of it is short enough, else the largest part that is; and of
    how many blocks."""

    def seconds(size: Size, blocks: int) -> float:
        # Forward, recomputation, and a backward pass of two forward passes.
        flops = sum(4 * model.flops(unit, *size) for unit in model_units(model, blocks))
        return flops / hardware.matmul_flops_per_s

    for blocks in (BLOCKS, FEW_BLOCKS):
        if seconds(full, blocks) <= STEP_SECONDS:
            return full, blocks
    size = _half(full)
    while seconds(size, 1) > REDUCED_STEP_SECONDS and size.microbatch * size.seq > LEAST_TOKENS:
        size = _half(size)
    return size, 1


def _half(size: Size) -> Size:
    """Half the samples, or half the tokens of one."""
    if size.microbatch > 1:
        return Size(size.microbatch // 2, size.seq)
    return Size(1, size.seq // 2)


def cpu_clock(action: Callable[[], None]) -> Callable[[], Sample]:
    """Do it; returns what reads how long that took."""
    wall, cpu = time.perf_counter(), time.thread_time()
    action()
    sample = Sample(time.perf_counter() - wall, time.thread_time() - cpu)
    return lambda: sample


def cuda_clock(action: Callable[[], None]) -> Callable[[], Sample]:
    """Enqueue it; returns what waits for its end, and reads how long it took on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()

    def read() -> Sample:
        end.synchronize()
        seconds = start.elapsed_time(end) / 1e3
        return Sample(seconds, seconds)

    return read


def _timings(bench: Bench, size: Size, seconds: float, *, reduced: bool) -> Timings:
    """Timings of steps that go on for `seconds`, after one that warms up."""
    clock = cuda_clock if bench.device.type == "cuda" else cpu_clock
    least = REDUCED_STEPS if reduced else STEPS

    def run() -> dict[tuple[str, str], list[Sample]]:
        samples = defaultdict(list)
        end, steps = time.perf_counter() + lasting(seconds), 0
        while steps < least or time.perf_counter() < end:
            readings = []
            bench.step(
                *size,
                lambda phase, unit, action, readings=readings: readings.append(
                    (bench.model.kind(unit), phase, clock(action))
                ),
            )
            for kind, phase, read in readings:
                samples[kind, phase].append(read())
            steps += 1
        return samples

    bench.step(*size, lambda phase, unit, action: action())
    samples, others = quietest(run, tries=1 if reduced else TRIES)
    return {key: summarize(values, others) for key, values in samples.items()}
