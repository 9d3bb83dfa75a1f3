"""An operator graph as plain data: what each operator costs, and which tensors flow between them.

A file holds ``{"nodes": [{"id", "forward_ms", "backward_ms", "bytes"}, ...], "edges": [{"from",
"to", "bytes"}, ...]}``. `bytes` of a node is all memory that the node needs where it runs. Edges of
one node carry one tensor, which several nodes may read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import isfinite
from pathlib import Path
from typing import Any, TypedDict

from workbench.core.jsonfile import read_object
from workbench.core.schema import read_as


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operator, or one layer."""

    id: str
    forward_ms: float
    backward_ms: float
    """With the recomputation, where the operator's activations are recomputed."""
    bytes: float
    """All memory of the node: weights, gradients, optimizer state, activations."""
    weight_bytes: float = 0.0
    """Bytes of weights among them, of which a stage may keep several versions."""
    backward_kept_ms: float | None = None
    """Backward time in the last stage, which keeps its activations; None where it is the same."""
    scope: str = ""
    """Path of ``Class[attribute]`` segments from the model to the node, such as
    ``T5[t5]/Block[3]/Linear[wi]``."""
    shared: list[str] = field(default_factory=list)
    """Names of the weights that the node shares with others."""

    @property
    def backward_last_ms(self) -> float:
        """Backward time in the last stage."""
        return self.backward_ms if self.backward_kept_ms is None else self.backward_kept_ms


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor on its way from the node that makes it to a node that reads it."""

    source: str
    target: str
    bytes: float
    gradient: bool = True
    """Whether a gradient of as many bytes comes back."""
    sendable: bool = True
    """Whether another device can be sent the value; a node that reads what cannot be sent runs in
    the stage that makes it."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes in any order and edges between them. Raises ValueError for an id that stands twice, an
    unknown end, a cycle, and costs that are negative or not finite."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("the graph has no nodes")
        twice = [
            name for name, count in Counter(node.id for node in self.nodes).items() if count > 1
        ]
        if twice:
            raise ValueError(f"the id {twice[0]!r} stands twice; ids of nodes must differ")
        costs = ("forward_ms", "backward_ms", "backward_last_ms", "bytes", "weight_bytes")
        for node in self.nodes:
            _check(f"node {node.id!r}", node, costs)
        known = {node.id for node in self.nodes}
        for edge in self.edges:
            told = f"the edge from {edge.source!r} to {edge.target!r}"
            for end in (edge.source, edge.target):
                if end not in known:
                    raise ValueError(f"{told} names {end!r}, and no node has that id")
            _check(told, edge, ("bytes",))
        self.topological()

    def topological(self) -> list[int]:
        """Places in `nodes` in a topological order: of the nodes whose inputs are there, the one
        that stands first in `nodes` is next. Raises ValueError that names a cycle."""
        at = {node.id: place for place, node in enumerate(self.nodes)}
        pairs = [(at[edge.source], at[edge.target]) for edge in self.edges]
        order = topological_order(len(self.nodes), pairs)
        if len(order) < len(self.nodes):
            path = " -> ".join(repr(self.nodes[place].id) for place in _cycle(pairs, set(order)))
            raise ValueError(f"the graph has a cycle: {path}")
        return order

    def depth(self) -> int:
        """Edges on the longest path."""
        at = {node.id: place for place, node in enumerate(self.nodes)}
        readers: list[list[int]] = [[] for _ in self.nodes]
        for edge in self.edges:
            readers[at[edge.source]].append(at[edge.target])
        deep = [0] * len(self.nodes)
        for place in self.topological():
            for reader in readers[place]:
                deep[reader] = max(deep[reader], deep[place] + 1)
        return max(deep)


def topological_order(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Order the numbers below `count` so that the first of each pair comes before the second,
    smaller numbers first where pairs allow it. Numbers on a cycle or behind one are left out."""
    readers: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for source, target in pairs:
        readers[source].append(target)
        waits[target] += 1
    ready = [number for number in range(count) if not waits[number]]
    heapify(ready)
    order = []
    while ready:
        order.append(number := heappop(ready))
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, reader)
    return order


def read_graph(path: Path) -> Graph:
    """Read the graph that a JSON file holds. Raises ValueError for other content, and no file."""
    where = f"the graph {path}"
    if not path.exists() or path.is_dir():
        raise ValueError(f"{where} is no file; give one with nodes and edges, in JSON")
    return graph_of_rows(read_as(GraphRows, read_object(path, where), where), where)


def graph_of_rows(rows: GraphRows, where: str) -> Graph:
    """Make a graph of the content of a file. Raises ValueError as `Graph`, with `where`."""
    try:
        return Graph(
            nodes=[replace(node, id=str(node.id)) for node in rows["nodes"]],
            edges=[
                Edge(source=str(row["from"]), target=str(row["to"]), **_rest(row))
                for row in rows["edges"]
            ],
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def rows_of(graph: Graph) -> dict[str, Any]:
    """Content of a file of the graph, as JSON."""
    edges = []
    for edge in graph.edges:
        row = asdict(edge)
        edges.append({"from": row.pop("source"), "to": row.pop("target"), **row})
    return {"nodes": [asdict(node) for node in graph.nodes], "edges": edges}


@dataclass(frozen=True, kw_only=True)
class _NodeRow(Node):
    id: str | int


_Ends = TypedDict("_Ends", {"from": str | int, "to": str | int, "bytes": float})


class _EdgeRow(_Ends, total=False):
    gradient: bool
    sendable: bool


class GraphRows(TypedDict):
    """Content of a file."""

    nodes: list[_NodeRow]
    edges: list[_EdgeRow]


def _rest(row: _EdgeRow) -> dict[str, float | bool]:
    return {key: row[key] for key in ("bytes", "gradient", "sendable") if key in row}


def _check(told: str, one: Node | Edge, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(one, name)
        if not isfinite(value) or value < 0:
            raise ValueError(f"{name} of {told} is {value}; it must be a finite number from 0 on")


def _cycle(pairs: Iterable[tuple[int, int]], done: set[int]) -> list[int]:
    """A cycle among the numbers that are not done, its first number at both ends."""
    sources = {}
    for source, target in pairs:
        if source not in done and target not in done:
            sources[target] = source
    path = [next(iter(sources))]
    while path[-1] not in path[:-1]:
        path.append(sources[path[-1]])
    return path[path.index(path[-1]) :][::-1]
