"""What is to be partitioned: items in a topological order with their costs, and the devices.

Every method works on a `Problem`, whether its items are the nodes of a graph or blocks of nodes. A
stage takes the work of its device, and what its messages take beyond that: messages forward and
messages backward are hidden behind the device's work (Eliad et al., ATC 2021). A tensor travels
once to each stage that reads it.

A device holds the bytes of its items. Where micro-batches are in flight, a stage with d stages
behind it also holds the inputs of micros * (d // micros + 1) of them, and under weight stashing the
versions of its weights that its forward passes lack, ceil(d / micros): as the schedule declares
them (methods/pipeline/asynchronous.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from workbench.core.bytesize import format_bytes
from workbench.partition.graph import Graph, topological_order

BYTES_PER_MS = 1e6
"""Bytes that 1 GB/s carries in a millisecond."""
SAME_DEVICE = 550.0
"""GB/s between two stages of one device."""
SAME = 1e-9
"""Shares by which two times must differ to count as different."""


@dataclass(frozen=True)
class Tensor:
    """One tensor: the item that makes it, and (reader, bytes forward, bytes backward) of each item
    that reads it."""

    source: int
    uses: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Items 0, 1, ... in a topological order, for `devices` devices that are alike."""

    work: tuple[float, ...]
    """Milliseconds of each item, forward and backward."""
    needs: tuple[float, ...]
    """Bytes of each item."""
    tensors: tuple[Tensor, ...]
    devices: int
    memory: float | None = None
    """Bytes of a device; None: no limit."""
    bandwidth: float = 12.0
    """GB/s between devices."""
    scopes: tuple[str, ...]
    shared: tuple[frozenset[str], ...]
    """Names of the shared weights that each item uses."""
    weights: tuple[float, ...]
    """Bytes of each item's weights."""
    micros: int = 0
    """Micro-batches of an update, of a pipeline that never drains; 0: no inputs in flight count."""
    stashes: bool = False
    """Whether stages keep versions of weights."""

    def in_flight(self, behind: int) -> int:
        """Micro-batches whose inputs a stage holds, with so many stages behind it."""
        return self.micros * (behind // self.micros + 1) if self.micros else 0

    def versions(self, behind: int) -> int:
        """Older versions of its weights that a stage holds."""
        return -(-behind // self.micros) if self.stashes else 0

    @property
    def limit(self) -> float:
        """Bytes of a device, as a number."""
        return float("inf") if self.memory is None else self.memory * (1 + SAME)

    @cached_property
    def touching(self) -> list[list[Tensor]]:
        """The tensors that each item makes or reads."""
        found: list[list[Tensor]] = [[] for _ in self.work]
        for tensor in self.tensors:
            for item in {tensor.source, *(reader for reader, _, _ in tensor.uses)}:
                found[item].append(tensor)
        return found

    @cached_property
    def successors(self) -> list[list[int]]:
        """The items that read a tensor of each item, in their order."""
        found: list[set[int]] = [set() for _ in self.work]
        for tensor in self.tensors:
            found[tensor.source].update(reader for reader, _, _ in tensor.uses)
        return [sorted(items) for items in found]

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """The items whose tensors each item reads, in their order."""
        found: list[list[int]] = [[] for _ in self.work]
        for item, readers in enumerate(self.successors):
            for reader in readers:
                found[reader].append(item)
        return found

    @cached_property
    def bound(self) -> float:
        """Milliseconds that no placement can beat: the mean device; and, since one of P devices has
        k + 1 of the k P + 1 largest items, the least k + 1 of these."""
        largest = sorted(self.work, reverse=True)
        least = sum(largest) / self.devices
        for k, last in enumerate(range(self.devices, len(largest), self.devices), 1):
            least = max(least, sum(largest[last - k : last + 1]))
        return max(least, largest[0])

    def milliseconds(self, nbytes: float, *, same_device: bool) -> float:
        """How long a message takes."""
        return nbytes / (BYTES_PER_MS * (SAME_DEVICE if same_device else self.bandwidth))

    def coarse(self, block_of: Sequence[int]) -> Problem:
        """The problem whose items are blocks: `block_of` gives each item's, numbered in an order
        that no edge goes against."""
        count = max(block_of) + 1
        work, needs, weights = [0.0] * count, [0.0] * count, [0.0] * count
        shared = [frozenset[str]()] * count
        for item, block in enumerate(block_of):
            work[block] += self.work[item]
            needs[block] += self.needs[item]
            weights[block] += self.weights[item]
            shared[block] |= self.shared[item]
        tensors = []
        for tensor in self.tensors:
            most = strongest(tensor, block_of)
            if most:
                uses = tuple((block, *sizes) for block, sizes in most.items())
                tensors.append(Tensor(block_of[tensor.source], uses))
        return replace(
            self, work=tuple(work), needs=tuple(needs), weights=tuple(weights),
            tensors=tuple(tensors), shared=tuple(shared), scopes=("",) * count,
        )  # fmt: skip

    def check(self, names: Sequence[str]) -> None:
        """Raise ValueError where no placement is possible, by how much. `names` are the items'."""
        if not 1 <= self.devices <= len(self.work):
            raise ValueError(
                f"{self.devices} devices are asked for; the graph has {len(self.work)} nodes that "
                f"can be apart, so give 1 to {len(self.work)}"
            )
        if self.memory is None:
            return
        largest = max(range(len(self.needs)), key=self.needs.__getitem__)
        for told, needs, whose, has in (
            (f"node {names[largest]!r}", self.needs[largest], "a device has", self.memory),
            ("the graph", sum(self.needs), "all devices have", self.memory * self.devices),
        ):
            if needs > has * (1 + SAME):
                raise ValueError(
                    f"{told} needs {format_bytes(needs)}, {format_bytes(needs - has)} more than "
                    f"the {format_bytes(has)} that {whose}"
                )


def strongest(tensor: Tensor, group_of: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Bytes forward and backward that a tensor takes to each group of readers but its own."""
    most: dict[int, tuple[float, float]] = {}
    home = group_of[tensor.source]
    for reader, forward, backward in tensor.uses:
        group = group_of[reader]
        if group != home:
            had = most.get(group, (0.0, 0.0))
            most[group] = (max(had[0], forward), max(had[1], backward))
    return most


def ordered_blocks(pairs: Iterable[tuple[int, int]], label_of: Sequence[int]) -> list[int]:
    """Number blocks of items in an order that no edge goes against. Items of one label are a block;
    blocks on a cycle become one. `pairs` are the edges between items."""
    between = {(label_of[a], label_of[b]) for a, b in pairs if label_of[a] != label_of[b]}
    part_of = _components(set(label_of), between)
    first: dict[int, int] = {}
    for label in label_of:
        first.setdefault(part_of[label], len(first))
    place = {label: first[part] for label, part in part_of.items()}
    edges = {(place[a], place[b]) for a, b in between if place[a] != place[b]}
    rank = {block: at for at, block in enumerate(topological_order(len(first), edges))}
    return [rank[place[label]] for label in label_of]


def _components(labels: set[int], pairs: set[tuple[int, int]]) -> dict[int, int]:
    """Label -> a label of its strongly connected component, by two walks (Kosaraju)."""
    onward: dict[int, list[int]] = {label: [] for label in labels}
    back: dict[int, list[int]] = {label: [] for label in labels}
    for a, b in sorted(pairs):
        onward[a].append(b)
        back[b].append(a)
    finished: list[int] = []
    seen: set[int] = set()
    for root in sorted(labels):
        walk = [(root, False)]
        while walk:
            label, left = walk.pop()
            if left:
                finished.append(label)
            elif label not in seen:
                seen.add(label)
                walk += [(label, True), *((each, False) for each in onward[label])]
    part_of: dict[int, int] = {}
    for root in reversed(finished):
        walk_back = [root]
        while walk_back:
            label = walk_back.pop()
            if label not in part_of:
                part_of[label] = root
                walk_back += back[label]
    return part_of


def problem_of(
    graph: Graph,
    devices: int,
    *,
    memory: float | None = None,
    bandwidth: float = 12.0,
    ratio: float | None = 1.0,
    in_flight: int = 0,
    versions: bool = False,
) -> tuple[Problem, dict[str, int], tuple[float, ...]]:
    """Make the problem of a graph; returns it, the item of each node, and the work of each item in
    the last stage.

    `ratio` weighs backward against forward times: negative counts the backward pass alone, and None
    makes each node's own, (f^2 + b^2) / (f + b). `in_flight` are the micro-batches of an update
    whose inputs count, `versions` says whether stages stash weights. Nodes between which a value
    cannot be sent are one item. Raises ValueError where no placement is possible.
    """
    if in_flight < 0 or (versions and not in_flight):
        raise ValueError(
            f"in_flight is {in_flight}; give the micro-batches of an update, 1 or more, or 0 where "
            "neither inputs in flight nor versions of weights count"
        )
    order = graph.topological()
    nodes = [graph.nodes[place] for place in order]
    at = {node.id: item for item, node in enumerate(nodes)}
    uses: list[list[tuple[int, float, float]]] = [[] for _ in nodes]
    pairs = []
    for edge in graph.edges:
        ends = at[edge.source], at[edge.target]
        pairs += [ends] if edge.sendable else [ends, ends[::-1]]
        uses[ends[0]].append((ends[1], edge.bytes, edge.bytes if edge.gradient else 0.0))
    fine = Problem(
        work=tuple(_work(node.forward_ms, node.backward_ms, ratio) for node in nodes),
        needs=tuple(node.bytes for node in nodes),
        tensors=tuple(Tensor(item, tuple(used)) for item, used in enumerate(uses) if used),
        devices=devices, memory=memory, bandwidth=bandwidth,
        scopes=tuple(node.scope for node in nodes),
        shared=tuple(frozenset(node.shared) for node in nodes),
        weights=tuple(node.weight_bytes for node in nodes), micros=in_flight, stashes=versions,
    )  # fmt: skip
    block_of = ordered_blocks(pairs, range(len(nodes)))
    last = [0.0] * (max(block_of) + 1)
    named = [nodes[0]] * len(last)
    for node, block in zip(reversed(nodes), reversed(block_of), strict=True):
        last[block] += _work(node.forward_ms, node.backward_last_ms, ratio)
        named[block] = node
    problem = replace(fine.coarse(block_of), scopes=tuple(node.scope for node in named))
    problem.check([node.id for node in named])
    return problem, {node.id: block_of[at[node.id]] for node in nodes}, tuple(last)


def _work(forward: float, backward: float, ratio: float | None) -> float:
    if ratio is None:
        both = forward + backward
        return (forward**2 + backward**2) / both if both else 0.0
    return backward if ratio < 0 else forward + ratio * backward
