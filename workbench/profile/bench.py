"""One way to time work, and one to weigh passes, for units and slices of any grain.

Passes are timed one behind the other, as they run in training: a GPU is waited for after a burst of
them, not after each. Their bytes are what the runtime's own meter sees around each pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from workbench.profile.timing import Sample, lasting, summarize
from workbench.runtime.memory.device_budget import DeviceMeter
from workbench.runtime.passes.bundle import Bundle

Action = Callable[[], Any]
CYCLES_PER_S, LAUNCH_MARGIN = 2e9, 1.5
"""Of a GPU's clock, at least; and what a burst takes to be enqueued, to what it took before."""

Graph = tuple[Bundle, Bundle]
"""Inputs and outputs of a forward pass with autograd."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Device bytes around one action, and what it returned."""

    before: int
    peak: int
    after: int
    made: Any


def marked(meter: DeviceMeter, action: Action) -> Marks:
    """Do it under the eyes of the meter."""
    before = meter.now
    meter.reset_peak()
    made = action()
    return Marks(before=before, peak=meter.peak, after=meter.now, made=made)


def weigh(
    meter: DeviceMeter,
    forward: Action,
    graph: Callable[[], Graph],
    backward: Callable[[Bundle, Bundle], object],
    *,
    output: int | None = None,
    returned: int = 0,
) -> dict[str, int]:
    """Bytes of a unit's passes, as UnitCost counts them: a forward pass without autograd, one with
    it, and the backward pass. Libraries have taken theirs before.

    `output` is that of the unit, unless the meter is to say it; `returned` are bytes of the
    gradients that a schedule has a buffer for. A unit's output is held through its backward pass,
    which starts there. In that pass no buffer of the schedule stands for it, so it counts as
    scratch. Where most of what was kept is gone before the gradients are all there, that scratch
    is negative.
    """
    there = marked(meter, forward)
    output = there.after - there.before if output is None else output
    peak = there.peak - there.before - output
    del there
    again = marked(meter, graph)
    kept = max(0, again.after - again.before - output)
    recomputed, (x, y) = again.peak - again.before - kept, again.made
    del again
    back = marked(meter, lambda: backward(x, y))
    return {
        "output_bytes": output,
        "kept_bytes": kept,
        "forward_scratch_bytes": max(0, peak),
        "recompute_scratch_bytes": max(0, recomputed),
        "backward_scratch_bytes": back.peak - (back.before - output) - returned,
    }


def phases(
    forward: Action, graph: Callable[[], Graph], backward: Callable[[Bundle, Bundle], object]
) -> dict[str, Action]:
    """A unit's passes by their names, to be done in this order again and again."""
    graphs: list[Graph] = []
    return {
        "forward": forward,
        "recompute": lambda: graphs.append(graph()),
        "backward": lambda: backward(*graphs.pop()),
    }


def timed(
    actions: Iterable[Action],
    device: torch.device,
    *,
    seconds: float = 0.0,
    least: int = 1,
    most: float = inf,
    burst: int = 1,
    steady: float = 0.0,
    ahead: bool = False,
) -> list[list[Sample]]:
    """Samples of each of some actions, done one behind the other, in rounds after one that warms
    up: at least `least` rounds, then up to `most` for so many seconds, or until half the distance
    of all quartiles is below `steady` times the median. A GPU is waited for every `burst` rounds;
    with `ahead` it is kept busy until all of a burst is enqueued, so launches cost it no time.
    """
    actions = [*actions]
    taken: list[list[Sample]] = [[] for _ in actions]
    clock = clock_of(device)
    began = time.perf_counter()
    for action in actions:
        action()
    launch_s = time.perf_counter() - began
    end = time.perf_counter() + lasting(seconds)
    while len(taken[0]) < least or (
        len(taken[0]) < most
        and time.perf_counter() < end
        and not (steady and max(summarize(each).spread for each in taken) <= steady)
    ):
        if ahead and device.type == "cuda":
            torch.cuda._sleep(int(LAUNCH_MARGIN * burst * launch_s * CYCLES_PER_S))
        rounds = [[clock(action) for action in actions] for _ in range(burst)]
        for reads in rounds:
            for samples, read in zip(taken, reads, strict=True):
                samples.append(read())
    return taken


def clock_of(device: torch.device) -> Callable[[Action], Callable[[], Sample]]:
    """The clock of a device: does an action, and returns what reads how long that took."""
    return cuda_clock if device.type == "cuda" else cpu_clock


def cpu_clock(action: Action) -> Callable[[], Sample]:
    """Do it; returns what reads how long that took."""
    wall, cpu = time.perf_counter(), time.thread_time()
    action()
    sample = Sample(time.perf_counter() - wall, time.thread_time() - cpu)
    return lambda: sample


def cuda_clock(action: Action) -> Callable[[], Sample]:
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


def torch_device(device: str) -> torch.device:
    """With its index, which some of torch's calls insist on."""
    if device == "cuda":
        return torch.device(device, torch.cuda.current_device())
    return torch.device(device)
