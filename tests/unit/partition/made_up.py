"""Random graphs, and what must hold of every partition of one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from workbench.partition.graph import Edge, Graph, Node
from workbench.partition.methods import Partition


def chain(work: list[float], nbytes: float = 0.0) -> Graph:
    """Blocks in a row that take so many milliseconds, and send so many bytes."""
    nodes = [
        Node(id=f"n{at}", forward_ms=ms / 4, backward_ms=ms * 3 / 4, bytes=1)
        for at, ms in enumerate(work)
    ]
    edges = [
        Edge(source=f"n{at}", target=f"n{at + 1}", bytes=nbytes) for at in range(len(work) - 1)
    ]
    return Graph(nodes=nodes, edges=edges)


def random_graph(count: int, seed: int, nbytes: float = 1e6) -> Graph:
    """A graph whose nodes stand in any order and read up to three of the six before them."""
    draw = random.Random(seed)
    nodes = []
    for at in range(count):
        forward, backward, size = draw.randint(0, 9) / 2, draw.randint(0, 9), draw.randint(1, 9)
        times = {"forward_ms": forward, "backward_ms": backward}
        nodes.append(Node(id=f"n{at}", **times, bytes=size, weight_bytes=size // 2))
    edges = [
        Edge(source=f"n{source}", target=f"n{at}", bytes=draw.randint(0, 40) * nbytes)
        for at in range(1, count)
        for source in sorted({draw.randrange(max(0, at - 6), at) for _ in range(3)})
    ]
    draw.shuffle(nodes)
    return Graph(nodes=nodes, edges=edges)


def objective(graph: Graph, stage: dict[str, int], device: dict[str, int]) -> float:
    """The slowest stage, worked out from the definition alone."""
    loads: dict[int, float] = {}
    for node in graph.nodes:
        own = node.forward_ms + node.backward_ms
        loads[device[node.id]] = loads.get(device[node.id], 0.0) + own
    homes = {stage[name]: device[name] for name in stage}
    sizes: dict[tuple[str, int], float] = {}  # a tensor once a stage that reads it
    for edge in graph.edges:
        if stage[edge.source] != stage[edge.target]:
            key = edge.source, stage[edge.target]
            sizes[key] = max(sizes.get(key, 0.0), edge.bytes)
    sent, received = dict.fromkeys(homes, 0.0), dict.fromkeys(homes, 0.0)
    for (source, target), size in sizes.items():
        home = stage[source]
        ms = size / 1e6 / (550 if homes[home] == homes[target] else 12)
        sent[home] += ms
        received[target] += ms
    return max(
        (work := loads[home]) + max(0.0, sent[at] - work) + max(0.0, received[at] - work)
        for at, home in homes.items()
    )


def held(
    graph: Graph, stage: dict[str, int], device: dict[str, int], *, in_flight: int = 0,
    versions: bool = False,
) -> dict[int, float]:  # fmt: skip
    """Bytes of each device, worked out from the definition alone."""
    found: dict[int, float] = {}
    behind = {name: max(stage.values()) - at for name, at in stage.items()}
    for node in graph.nodes:
        older = -(-behind[node.id] // in_flight) if versions else 0
        own = node.bytes + older * node.weight_bytes
        found[device[node.id]] = found.get(device[node.id], 0.0) + own
    inputs: dict[tuple[str, int], tuple[float, str]] = {}  # a tensor once a stage that reads it
    for edge in graph.edges:
        if in_flight and stage[edge.source] != stage[edge.target]:
            key = edge.source, stage[edge.target]
            inputs[key] = max(inputs.get(key, (0.0, "")), (edge.bytes, edge.target))
    for size, reader in inputs.values():
        found[device[reader]] += in_flight * (behind[reader] // in_flight + 1) * size
    return found


def check(
    graph: Graph, found: Partition, devices: int, memory: float | None = None, **kept: Any
) -> None:
    """Each node once, no edge back, no hole, one device a stage, within memory, as good as told."""
    names = {node.id for node in graph.nodes}
    assert found.stage.keys() == found.device.keys() == names
    assert set(found.stage.values()) == set(range(len(found.stage_to_device)))
    assert all(found.stage[edge.source] <= found.stage[edge.target] for edge in graph.edges)
    assert all(found.device[name] == found.stage_to_device[found.stage[name]] for name in names)
    assert set(found.device.values()) <= set(range(devices))
    own = held(graph, found.stage, found.device, **kept)
    assert found.memory_bytes == pytest.approx([own.get(at, 0.0) for at in range(devices)])
    assert memory is None or max(found.memory_bytes) <= memory * (1 + 1e-9)
    told = objective(graph, found.stage, found.device)
    assert abs(found.objective_ms - told) <= 1e-9 * told
    assert found.bound_ms <= found.objective_ms * (1 + 1e-9)
