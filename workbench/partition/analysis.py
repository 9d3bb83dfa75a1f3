"""Analysis of a partition: what each stage and each device takes, and what the pipeline gains.

All times are of one micro-batch. Speed-ups compare a full pipeline, which ends a micro-batch
whenever its slowest stage does, with one device (Eliad et al., ATC 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.partition.graph import Graph
from workbench.partition.methods import Partition
from workbench.partition.problem import BYTES_PER_MS, SAME_DEVICE


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """One stage; bytes that travel are of activations, a tensor once a stage that reads it."""

    device: int
    nodes: int = 0
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    """With the recomputation; of the last stage without, where it keeps its activations."""
    bytes: float = 0.0
    """All memory of its nodes."""
    received_bytes: float = 0.0
    sent_bytes: float = 0.0
    sent_ms: float = 0.0
    """Messages with activations."""
    returned_ms: float = 0.0
    """Messages with gradients, to the stages before it."""


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
    """The slowest stage: its device's work, and messages beyond that."""
    bound_ms: float
    gap: float
    """Share by which the objective is over the bound."""
    sequential_ms: float
    """One device that keeps all activations."""
    balance: float
    """All work of the pipeline over the objective: at most the number of devices."""
    speedup: float
    """`sequential_ms` over the objective."""
    speedup_without_messages: float
    """`sequential_ms` over the largest load."""


def analyse(graph: Graph, found: Partition, *, bandwidth: float, cheap_last: bool) -> Analysis:
    """Analyse a partition that was found with these settings; `bandwidth` is in GB/s."""
    rows = [vars(StageCosts(device=device)).copy() for device in found.stage_to_device]
    for node in graph.nodes:
        stage = found.stage[node.id]
        cheap = cheap_last and stage == len(rows) - 1
        backward = node.backward_last_ms if cheap else node.backward_ms
        for name, more in (
            ("nodes", 1), ("forward_ms", node.forward_ms), ("backward_ms", backward),
            ("bytes", node.bytes),
        ):  # fmt: skip
            rows[stage][name] += more
    most: dict[tuple[str, int], tuple[float, float]] = {}
    for edge in graph.edges:
        key = edge.source, found.stage[edge.target]
        had, back = most.get(key, (0.0, 0.0)), edge.bytes if edge.gradient else 0.0
        most[key] = max(had[0], edge.bytes), max(had[1], back)
    for (source, stage), (forward, back) in most.items():
        home = found.stage[source]
        if home != stage:
            sender, reader = rows[home], rows[stage]
            same = sender["device"] == reader["device"]
            rate = BYTES_PER_MS * (SAME_DEVICE if same else bandwidth)
            sender["sent_bytes"] += forward
            sender["sent_ms"] += forward / rate
            reader["received_bytes"] += forward
            reader["returned_ms"] += back / rate
    sequential = sum(node.forward_ms + node.backward_last_ms for node in graph.nodes)
    worst, load = found.objective_ms or 1.0, max(found.loads_ms) or 1.0
    return Analysis(
        stages=[StageCosts(**row) for row in rows], loads_ms=found.loads_ms,
        utilization=[each / worst for each in found.loads_ms], bytes=found.memory_bytes,
        objective_ms=found.objective_ms, bound_ms=found.bound_ms, gap=found.gap,
        sequential_ms=sequential, balance=sum(found.loads_ms) / worst,
        speedup=sequential / worst, speedup_without_messages=sequential / load,
    )  # fmt: skip
