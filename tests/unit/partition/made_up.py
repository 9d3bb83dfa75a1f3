"""Random graphs, and what must hold of every partition of one."""

from __future__ import annotations

import random

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
    nodes = [
        Node(
            id=f"n{at}",
            forward_ms=draw.randint(0, 9) / 2,
            backward_ms=draw.randint(0, 9),
            bytes=draw.randint(1, 9),
        )
        for at in range(count)
    ]
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


def check(graph: Graph, found: Partition, devices: int, memory: float | None = None) -> None:
    """Each node once, no edge back, no hole, one device a stage, within memory, as good as told."""
    names = {node.id for node in graph.nodes}
    assert found.stage.keys() == found.device.keys() == names
    assert set(found.stage.values()) == set(range(len(found.stage_to_device)))
    assert all(found.stage[edge.source] <= found.stage[edge.target] for edge in graph.edges)
    assert all(found.device[name] == found.stage_to_device[found.stage[name]] for name in names)
    assert set(found.device.values()) <= set(range(devices))
    held = [0.0] * devices
    for node in graph.nodes:
        held[found.device[node.id]] += node.bytes
    assert held == found.memory_bytes
    assert memory is None or max(held) <= memory
    told = objective(graph, found.stage, found.device)
    assert abs(found.objective_ms - told) <= 1e-9 * told
    assert found.bound_ms <= found.objective_ms * (1 + 1e-9)
