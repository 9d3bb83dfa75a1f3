"""Simulated pipelines: staleness and inputs by stage, a chart, and epochs of counted operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, product
from typing import Any

from workbench.exhibits.ftpipe.base import CUT, DEVICES, MIXED, cut, graph
from workbench.figures.rows import SIMULATED
from workbench.methods.ftpipe import orders
from workbench.methods.pipeline import quick
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.orders import B, F, R
from workbench.methods.pipeline.policies import POLICIES
from workbench.schedule.simulate import Simulation, simulate

ORDER = "async-1f1b"
METHODS = {ORDER: "ftpipe", "sync-1f1b": "1f1b", "gpipe-lifo": "gpipe"}
"""Order -> whose colour it has."""
STALE, HELD, PASS = "staleness", "inputs", "pass"
EVERY, TOGETHER = (1, 2, 5), 4
"""Micro-batches of an update: for staleness, and of synchronous orders."""
STAGES, MICROS = 4, 12
"""Of the chart."""
TASKS = {"BoolQ": (10, 10), "RTE": (10, 10), "WiC": (8, 4)}
"""Micro-batches of a step under GPipe, and of an update asynchronously, of a batch of equal
size."""
STEPS = 6
"""Steps that are simulated, which fill eight stages."""


class Costs:
    """Times of forward and backward passes by stage; messages and updates take none."""

    def __init__(self, forward: Sequence[float], backward: Sequence[float]) -> None:
        self._times = {F: forward, B: backward}

    def seconds(self, action: Any) -> float:
        times = self._times.get(action.kind)
        return times[action.unit] if times else 0.0

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        return 1.0


def asynchronous(
    forward: Sequence[float], backward: Sequence[float], micros: int, steps: int = STEPS
) -> Simulation:
    """An asynchronous pipeline with a device for each stage, whose passes take these times."""
    stages = len(forward)
    line = Asynchronous(
        label=ORDER, positions=range(stages), depths=orders.depths(stages, ORDER), micros=micros,
        samples=1, sizes=IdealSizes(),
    )  # fmt: skip
    return simulate(schedule(line), Costs(forward, backward), steps=steps)


def by_stage(stages: int) -> Iterator[dict[str, Any]]:
    """Updates that the first micro-batch of a late step lacks; most inputs that a stage holds."""
    about = {"source": SIMULATED, "how": "passes of the order"}
    for every, behind in product(EVERY, range(stages)):
        at = every * stages
        made = orders.passes(ORDER, behind, at + stages, every)
        yield about | {
            "quantity": STALE, "method": "ftpipe", "label": f"{every} an update", "x": behind,
            "pair": ORDER, "window": every, "value": orders.staleness(made)[at],
            "unit": "updates",
        }  # fmt: skip
    for order, behind in product(METHODS, range(stages)):
        made = orders.passes(order, behind, 2 * stages, TOGETHER)
        held = max(accumulate(1 if each.kind == F else -1 for each in made))
        yield about | {
            "quantity": HELD, "method": METHODS[order], "label": order, "pair": order, "x": behind,
            "value": held, "unit": "inputs",
        }  # fmt: skip


def chart() -> Iterator[dict[str, Any]]:
    """Passes in quanta: forward 1, backward 2, and 1 to compute activations again."""
    ran = asynchronous([1.0] * STAGES, [3.0] * (STAGES - 1) + [2.0], 2, MICROS // 2)
    for each in (event for event in ran.events if event.kind in (F, B)):
        yield {
            "quantity": PASS, "method": "ftpipe", "label": ORDER, "source": SIMULATED,
            "unit": "quanta", "how": "in theory", "rank": each.rank, "kind": each.kind,
            "micro": 2 * each.step + each.microbatch, "value": each.end_s - each.start_s,
            "start": each.start_s, "end": each.end_s,
        }  # fmt: skip


def ratios() -> Iterator[tuple[str, str, float]]:
    """(task, numerator and denominator in words, times as long) of epochs on eight contiguous
    stages, and of the slowest of them over the slowest mixed one."""
    policy, links = POLICIES["gpipe"], quick.Links(seconds=[0.0] * (DEVICES - 1))
    for task, (micros, every) in TASKS.items():
        forward, backward = _times(task)
        parts = micros / every
        costs = [
            {F: f / parts, R: f / parts, B: (b - f) / parts}
            for f, b in zip(forward, backward, strict=True)
        ]
        ran = quick.timeline(policy.passes(DEVICES, micros), costs, links, policy.rule)
        step = asynchronous(forward, backward, every).step_seconds
        yield task, "GPipe / async", quick.end_s(ran) / step
    slowest = [cut("RTE", False, method).objective_ms for method in (CUT, MIXED)]
    yield "RTE", "contiguous / mixed", slowest[0] / slowest[1]


def _times(task: str) -> tuple[list[float], list[float]]:
    """Forward and backward milliseconds of a micro-batch by contiguous stage; activations are
    computed again in backward passes."""
    device, nodes = cut(task, False, CUT).device, graph(task, False).nodes
    return (
        [sum(n.forward_ms for n in nodes if device[n.id] == at) for at in range(DEVICES)],
        [sum(n.backward_ms for n in nodes if device[n.id] == at) for at in range(DEVICES)],
    )
