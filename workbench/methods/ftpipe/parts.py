"""The units of a profiled model as an operator graph, and its partition (Eliad et al., ATC'21)."""

from __future__ import annotations

from collections import Counter

from workbench.core.spec import RunSpec
from workbench.partition.graph import Edge, Graph, Node
from workbench.partition.methods import Ask, Partition, partition
from workbench.profile.profile import Profile
from workbench.profile.server import Server
from workbench.profile.unit_costs import Sizes

MS, GB = 1e3, 1e9


def graph_of(profile: Profile, sizes: Sizes) -> Graph:
    """A node a unit, and an edge for what flows between two. Backward passes compute activations
    again, but in the last stage."""
    samples, nodes, edges = profile.microbatch, [], []
    for unit in range(len(profile.units)):
        cost = sizes.cost(unit, samples)
        nbytes = 2 * sizes.weight_bytes(unit) + sizes.state_bytes(unit)  # weights and gradients
        nodes.append(
            Node(
                id=str(unit),
                forward_ms=MS * cost.forward_s,
                bytes=nbytes + cost.kept_bytes,
                weight_bytes=sizes.weight_bytes(unit),
                backward_ms=MS * cost.from_checkpoint().backward_s,
                backward_kept_ms=MS * cost.backward_s,
            )  # fmt: skip
        )
        if unit:
            nbytes = sizes.input_bytes(unit, samples)
            edges.append(Edge(source=str(unit - 1), target=str(unit), bytes=nbytes))
    return Graph(nodes=nodes, edges=edges)


def partitioned(spec: RunSpec, profile: Profile, sizes: Sizes, server: Server) -> Partition:
    """The partition of a model over the spec's ranks, within the memory of the server's devices.
    Raises ValueError where none is found."""
    ask = Ask(
        method=spec.options.partitioner, devices=spec.ranks, memory=server.device_bytes,
        bandwidth=server.message_bytes_per_s / GB, seed=spec.seed,
        cheap_last=spec.activations != "keep", in_flight=spec.microbatches,
    )  # fmt: skip
    return partition(graph_of(profile, sizes), ask)


def cut_and_map(found: Partition) -> tuple[str, str]:
    """Units of each stage, and the device of each, as the options have them."""
    counts = Counter(found.stage.values())
    cut = " ".join(str(counts[stage]) for stage in range(len(found.stage_to_device)))
    return cut, " ".join(map(str, found.stage_to_device))
