"""Analysis of a partition: what each stage and each device takes, and what the pipeline gains.

All times are of one micro-batch. Messages forward and messages backward are hidden behind a
device's work as far as this is long enough (`problem.py`). Speed-ups compare a full pipeline, which
ends a micro-batch whenever its slowest stage does, with one device (Eliad et al., ATC 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.partition.graph import Graph
from workbench.partition.methods import Partition
from workbench.partition.problem import BYTES_PER_MS, SAME_DEVICE


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """One stage."""

    device: int
    nodes: int
    forward_ms: float
    backward_ms: float
    """With the recomputation; of the last stage without, where it keeps its activations."""
    bytes: float
    """All memory of its nodes."""
    received_bytes: float
    """Of activations, a tensor once."""
    sent_bytes: float
    """Of activations, a tensor once a stage that reads it."""
    sent_ms: float
    """Messages with activations that it sends."""
    received_ms: float
    """Messages with gradients that come back to the stages before it."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The whole partition."""

    stages: list[StageCosts]
    loads_ms: list[float]
    """Work of each device, of all its stages."""
    utilization: list[float]
    """Share of the slowest stage's time in which each device works."""
    bytes: list[float]
    """Memory of each device."""
    objective_ms: float
    """The slowest stage, with its messages."""
    bound_ms: float
    gap: float
    """Share by which the objective is over the bound."""
    sequential_ms: float
    """One device that keeps all activations."""
    balance: float
    """All work of the pipeline, in milliseconds of one device, over the objective: at most the
    number of devices."""
    speedup: float
    """`sequential_ms` over the objective."""
    speedup_without_messages: float
    """`sequential_ms` over the largest load."""


def analyse(graph: Graph, found: Partition, *, bandwidth: float, cheap_last: bool) -> Analysis:
    """Analyse a partition that was found with these settings; `bandwidth` is in GB/s."""
    device_of, last = found.stage_to_device, len(found.stage_to_device) - 1
    own: list[list[tuple[float, float, float]]] = [[] for _ in device_of]
    for node in graph.nodes:
        stage = found.stage[node.id]
        cheap = cheap_last and stage == last
        backward = node.backward_last_ms if cheap else node.backward_ms
        own[stage].append((node.forward_ms, backward, node.bytes))
    sums = [[sum(column) for column in zip(*rows, strict=True)] for rows in own]
    sent, received, sent_ms, received_ms = ([0.0] * len(device_of) for _ in range(4))
    for (source, stage), (forward, backward) in _messages(graph, found).items():
        same = device_of[source] == device_of[stage]
        rate = BYTES_PER_MS * (SAME_DEVICE if same else bandwidth)
        sent[source] += forward
        received[stage] += forward
        sent_ms[source] += forward / rate
        received_ms[stage] += backward / rate
    sequential = sum(node.forward_ms + node.backward_last_ms for node in graph.nodes)
    loads = [0.0] * len(found.loads_ms)
    for device, (forward, backward, _) in zip(device_of, sums, strict=True):
        loads[device] += forward + backward
    slowest = max(
        loads[device] + max(0.0, there - loads[device]) + max(0.0, back - loads[device])
        for device, there, back in zip(device_of, sent_ms, received_ms, strict=True)
    )
    return Analysis(
        stages=[
            StageCosts(
                device=device_of[stage], nodes=len(own[stage]), forward_ms=sums[stage][0],
                backward_ms=sums[stage][1], bytes=sums[stage][2], received_bytes=received[stage],
                sent_bytes=sent[stage], sent_ms=sent_ms[stage], received_ms=received_ms[stage],
            )
            for stage in range(len(device_of))
        ],
        loads_ms=loads,
        utilization=[load / slowest if slowest else 0.0 for load in loads],
        bytes=found.memory_bytes,
        objective_ms=found.objective_ms,
        bound_ms=found.bound_ms,
        gap=found.gap,
        sequential_ms=sequential,
        balance=sum(loads) / slowest if slowest else 0.0,
        speedup=sequential / slowest if slowest else 0.0,
        speedup_without_messages=sequential / max(loads) if max(loads) else 0.0,
    )  # fmt: skip


def _messages(graph: Graph, found: Partition) -> dict[tuple[int, int], tuple[float, float]]:
    """(stage that sends, stage that receives) -> bytes forward and bytes of gradients."""
    most: dict[tuple[str, int], tuple[float, float]] = {}
    for edge in graph.edges:
        stage = found.stage[edge.target]
        if stage != found.stage[edge.source]:
            forward, backward = most.get((edge.source, stage), (0.0, 0.0))
            back = edge.bytes if edge.gradient else 0.0
            most[edge.source, stage] = max(forward, edge.bytes), max(backward, back)
    between: dict[tuple[int, int], tuple[float, float]] = {}
    for (source, stage), (forward, backward) in most.items():
        ends = found.stage[source], stage
        before = between.get(ends, (0.0, 0.0))
        between[ends] = before[0] + forward, before[1] + backward
    return between
