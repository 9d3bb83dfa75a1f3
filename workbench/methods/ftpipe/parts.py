"""The units of a profiled model as an operator graph, and its partition (Eliad et al., ATC'21)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from workbench.core.spec import RunSpec
from workbench.partition.graph import Edge, Graph, Node
from workbench.partition.methods import Ask, Partition, partition
from workbench.profile.profile import Profile
from workbench.profile.server import Server
from workbench.profile.unit_costs import Sizes

MS, GB = 1e3, 1e9


def graph_of(
    profile: Profile, sizes: Sizes, *, recompute: bool = True, tied: Iterable[tuple[int, int]] = ()
) -> Graph:
    """A node a unit, and an edge for what flows between two. With `recompute` backward passes
    compute activations again, but in the last stage. `tied` are pairs of units, the second of which
    lends the first a weight."""
    samples, nodes, edges = profile.microbatch, [], []
    shared: dict[int, list[str]] = {}
    for pair in tied:
        for unit in pair:
            shared.setdefault(unit, []).append(f"weight of unit {pair[1]}")
    for unit in range(len(profile.units)):
        cost = sizes.cost(unit, samples)
        nbytes = 2 * sizes.weight_bytes(unit) + sizes.state_bytes(unit)  # weights and gradients
        again = cost.from_checkpoint() if recompute else cost
        nodes.append(
            Node(
                id=str(unit),
                forward_ms=MS * cost.forward_s,
                bytes=nbytes + cost.kept_bytes,
                weight_bytes=sizes.weight_bytes(unit),
                backward_ms=MS * again.backward_s,
                backward_kept_ms=MS * cost.backward_s,
                scope=f"{cost.kind}[{unit}]",
                shared=sorted({*shared.get(unit, [])}),
            )
        )
        if unit:
            nbytes = sizes.input_bytes(unit, samples)
            edges.append(Edge(source=str(unit - 1), target=str(unit), bytes=nbytes))
    return Graph(nodes=nodes, edges=edges)


def partitioned(spec: RunSpec, profile: Profile, sizes: Sizes, server: Server) -> Partition:
    """The partition of a model over the spec's ranks, within the memory of the server's devices.
    Raises ValueError where none is found."""
    recompute = spec.activations != "keep"
    ask = Ask(
        method=spec.options.partitioner, devices=spec.ranks, memory=server.device_bytes,
        bandwidth=server.message_bytes_per_s / GB, seed=spec.seed, cheap_last=recompute,
        in_flight=0 if spec.options.synchronous else spec.microbatches,
        versions=spec.options.weight_stashing,
    )  # fmt: skip
    return partition(graph_of(profile, sizes, recompute=recompute), ask)


def cut_and_map(found: Partition) -> tuple[str, str]:
    """Units of each stage, and the device of each, as the options have them."""
    counts = Counter(found.stage.values())
    cut = " ".join(str(counts[stage]) for stage in range(len(found.stage_to_device)))
    return cut, " ".join(map(str, found.stage_to_device))
