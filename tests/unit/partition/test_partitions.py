"""Every method on random graphs, against brute force where graphs are small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.unit.partition.made_up import chain, check, held, objective, random_graph
from workbench.partition.acyclic import Acyclic
from workbench.partition.graph import Edge, Graph, Node
from workbench.partition.methods import METHODS, Ask, partition
from workbench.partition.mpipe import Mpipe
from workbench.partition.placement import placed
from workbench.partition.problem import problem_of
from workbench.partition.t5 import Shape, t5_graph

ONE_STAGE_A_DEVICE = ("acyclic", "pipedream")


def asked(graph: Graph, method: str, devices: int, settings: Any = None, **more: Any):
    """The partition of a method, seen to be one."""
    if method == "metis":
        pytest.importorskip("pymetis", reason="pymetis is an extra")
    found = partition(graph, Ask(method=method, devices=devices, **more), settings)
    kept = {name: more[name] for name in ("in_flight", "versions") if name in more}
    check(graph, found, devices, more.get("memory"), **kept)
    return found


@pytest.mark.parametrize("nbytes", [1e4, 4e6])
@pytest.mark.parametrize("method", METHODS)
def test_partitions_of_random_graphs(method: str, nbytes: float) -> None:
    for seed in range(3):
        devices = 2 + seed % 3
        found = asked(random_graph(30, seed, nbytes), method, devices)
        if method in ONE_STAGE_A_DEVICE:
            assert found.stage_to_device == list(range(devices))


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> int:
    """The number of random graphs."""
    return 8 if request.config.getoption("--thorough") else 4


@pytest.mark.parametrize("nbytes", [1e4, 4e6, 2e7])
def test_mixed_stages_are_never_slower_than_one_a_device(nbytes: float, seeds: int) -> None:
    for seed in range(seeds // 2):
        graph, memory = random_graph(24, seed, nbytes), 60
        most = min(
            asked(graph, method, 3, memory=memory).objective_ms for method in ONE_STAGE_A_DEVICE
        )
        mixed = asked(graph, "mpipe", 3, memory=memory).objective_ms
        assert mixed <= most * (1 + 1e-9)
        assert asked(graph, "exact", 3, memory=memory).objective_ms <= mixed * (1 + 1e-9)


@pytest.mark.parametrize("nbytes", [0, 1e6, 1e7])
@pytest.mark.parametrize("memory", [None, 30])
def test_pipedream_equals_all_cuts(nbytes: float, memory: float | None) -> None:
    for seed in range(10):
        graph = random_graph(9, seed, nbytes)
        order = [graph.nodes[place] for place in graph.topological()]
        best = float("inf")
        for cut in combinations(range(1, 9), 2):
            stage = {node.id: sum(at >= c for c in cut) for at, node in enumerate(order)}
            held = [sum(n.bytes for n in order if stage[n.id] == s) for s in range(3)]
            if memory is None or max(held) <= memory:
                best = min(best, objective(graph, stage, stage))
        if best == float("inf"):
            with pytest.raises(ValueError, match="fits in"):
                asked(graph, "pipedream", 3, memory=memory)
        else:
            found = asked(graph, "pipedream", 3, memory=memory)
            assert found.objective_ms == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_in_flight_and_versions_count_as_memory(method: str) -> None:
    """A limit that the items alone keep is not enough; every answer within one is."""
    for seed in range(3):
        graph, kept = random_graph(24, seed, 0.05), {"in_flight": 2, "versions": True}
        free = asked(graph, method, 3, **kept)
        assert sum(free.memory_bytes) > sum(node.bytes for node in graph.nodes)
        with suppress(ValueError):
            asked(graph, method, 3, memory=0.9 * max(free.memory_bytes), **kept)
    with pytest.raises(ValueError, match="in_flight is 0; give the micro-batches"):
        asked(graph, method, 3, versions=True)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_memory_in_flight_equals_all_cuts_and_placements(in_flight: int, seeds: int) -> None:
    kept, memory = {"in_flight": in_flight, "versions": True}, 70
    for seed in range(seeds):
        graph = random_graph(8, seed, 0.2)
        order = [graph.nodes[place].id for place in graph.topological()]
        cuts = [
            {name: sum(at >= c for c in cut) for at, name in enumerate(order)}
            for cut in combinations(range(1, 8), 2)
        ]
        fit = [cut for cut in cuts if max(held(graph, cut, cut, **kept).values()) <= memory]
        if not fit:
            with pytest.raises(ValueError, match="fits in"):
                asked(graph, "pipedream", 3, memory=memory, **kept)
            continue
        best = min(objective(graph, cut, cut) for cut in fit)
        found = asked(graph, "pipedream", 3, memory=memory, **kept)
        assert found.objective_ms == pytest.approx(best)
        problem = problem_of(graph, 3, memory=memory, **kept)[0]
        every = [placed(problem, each) for each in product(range(3), repeat=8)]
        least = min(one.objective() for one in every if not one.over())
        exact = asked(graph, "exact", 3, memory=memory, **kept)
        assert exact.bound_ms <= exact.objective_ms <= least * (1 + 1e-9)


@pytest.mark.parametrize("nbytes", [0, 5e6])
@pytest.mark.parametrize("memory", [None, 24])
def test_exact_equals_all_placements(nbytes: float, memory: float | None) -> None:
    for seed in range(6):
        graph = random_graph(7, seed, nbytes)
        problem = problem_of(graph, 2)[0]
        all_of_them = [placed(problem, each) for each in product(range(2), repeat=7)]
        fit = [one for one in all_of_them if memory is None or max(one.held) <= memory]
        if not fit:
            with pytest.raises(ValueError, match="more than|fits in"):
                asked(graph, "exact", 2, memory=memory)
            continue
        found = asked(graph, "exact", 2, memory=memory)
        assert found.objective_ms <= min(one.objective() for one in fit) * (1 + 1e-9)
        assert found.bound_ms <= min(max(one.load) for one in fit) * (1 + 1e-9)
        if not nbytes:
            assert found.gap == pytest.approx(0, abs=1e-9)


def test_exact_proves_sixteen_blocks_on_eight_devices() -> None:
    work = [8.7, 6.1, 3.3, 9.9, 2.7, 5.5, 7.1, 1.3, 4.9, 8.3, 6.7, 2.1, 9.1, 3.7, 5.9, 7.7]
    assert asked(chain(work), "exact", 8).gap == pytest.approx(0, abs=1e-9)


def test_the_published_toy_case(reference: Path) -> None:
    """Blocks that are not adjacent share a device, which no cut can equal."""
    file = reference / "ftpipe" / "toy_partition_cases.json"
    for case in json.loads(file.read_text())["cases"]:
        for method in ("mpipe", "exact"):
            found = asked(chain(case["weights"]), method, case["gpus"])
            assert found.objective_ms == pytest.approx(case["mixed_optimum"])
        cut = asked(chain(case["weights"]), "pipedream", case["gpus"])
        assert cut.objective_ms == pytest.approx(case["contiguous_optimum"])


def test_the_published_packing_begins_with_the_lightest() -> None:
    """The cases of the study, whose blocks nothing connects, so that none is merged."""
    for weights, devices, published in (
        ([5, 4, 3, 3, 3], 2, 11), ([7, 6, 5, 4, 3, 2, 1], 3, 12), ([1] * 6 + [6], 2, 9),
        ([10] + [1] * 10, 2, 15), ([4, 4, 4, 1, 1, 1], 3, 5),
    ):  # fmt: skip
        graph = Graph(nodes=chain(weights).nodes, edges=[])
        faithful = asked(graph, "mpipe", devices, Mpipe(L=(20,), packing="faithful"))
        assert faithful.objective_ms == pytest.approx(published)
        best = asked(graph, "exact", devices).objective_ms
        assert asked(graph, "mpipe", devices).objective_ms == pytest.approx(best)


def test_sets_are_split_where_stages_would_wait_in_a_circle() -> None:
    """A path that leaves a device's set in one gap and comes back in another one."""
    nodes = [Node(id=name, forward_ms=1, backward_ms=1, bytes=1) for name in "abcdef"]
    edges = [Edge(source=s, target=t, bytes=1) for s, t in ("ab", "bd", "ce", "de", "ef", "ac")]
    problem = problem_of(Graph(nodes=nodes, edges=edges), 3)[0]
    for devices in product(range(3), repeat=6):
        one = placed(problem, devices)
        for item, readers in enumerate(problem.successors):
            assert all(one.stage_of[item] <= one.stage_of[reader] for reader in readers)
    assert len(placed(problem, [0, 1, 0, 1, 0, 0]).device_of) == 3
    assert len(placed(problem, [0, 0, 0, 1, 1, 1]).device_of) == 2


def test_a_value_that_cannot_be_sent_stays_in_its_stage() -> None:
    graph = chain([1.0] * 8)
    tied = [
        Edge(source=e.source, target=e.target, bytes=0, sendable=e.source not in ("n3", "n4"))
        for e in graph.edges
    ]
    for method in METHODS.keys() - {"metis"}:
        found = asked(Graph(nodes=graph.nodes, edges=tied), method, 2)
        assert found.stage["n3"] == found.stage["n4"] == found.stage["n5"]


def test_users_of_a_shared_weight_are_together_where_they_fit() -> None:
    work = [4.0, 4, 4, 4, 4, 4, 4, 4]
    nodes = [
        Node(id=n.id, forward_ms=n.forward_ms, backward_ms=n.backward_ms, bytes=n.bytes,
             shared=["embedding"] if n.id in ("n0", "n7") else [])
        for n in chain(work).nodes
    ]  # fmt: skip
    graph = Graph(nodes=nodes, edges=chain(work).edges)
    found = asked(graph, "mpipe", 4)
    assert found.device["n0"] == found.device["n7"]
    assert found.objective_ms == 8


def test_the_last_stage_may_be_cheaper() -> None:
    nodes = [
        Node(id=f"n{at}", forward_ms=1, backward_ms=3, backward_kept_ms=2, bytes=1)
        for at in range(14)
    ]
    graph = Graph(nodes=nodes, edges=chain([4.0] * 14).edges)
    found = partition(graph, Ask(method="pipedream", devices=2, cheap_last=True))
    assert [*found.stage.values()].count(0) == 6
    assert found.loads_ms == [24, 24]
    assert found.bound_ms == 21  # the least that any last stage could make of it


def test_a_partition_is_the_same_in_another_process() -> None:
    code = (
        "import json, sys; from tests.unit.partition.made_up import random_graph;"
        "from workbench.partition.methods import *;"
        "print(json.dumps([partition(random_graph(40, 7), Ask(method=m, devices=3, seed=5)).stage"
        " for m in METHODS if m != 'metis']))"
    )
    root = Path(__file__).resolve().parents[3]
    told = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        ).stdout
        for seed in "12"
    ]  # fmt: skip
    assert told[0] == told[1]
    assert json.loads(told[0])


def test_t5_3b_by_operation_counts() -> None:
    """Parameters of T5-3B with a head of its own weight; the stated ratios to the mean device."""
    graph = t5_graph(Shape(), blocks=True)
    parameters = sum(node.bytes for node in graph.nodes) / Shape().bytes_per_parameter
    assert parameters == pytest.approx(2_884_497_408 + 32128 * 1024, rel=1e-3)
    slower = float("inf")
    for blocks in (8, 12, 16, 32):
        found = asked(graph, "mpipe", 8, Mpipe(L=(blocks,)))
        assert found.objective_ms <= 1.01 * slower
        assert blocks < 16 or found.gap <= 0.02
        slower = found.objective_ms
    assert asked(graph, "mpipe", 16).objective_ms / mean(graph, 16) == pytest.approx(1.15, abs=0.01)
    operators = t5_graph(Shape())
    found = asked(operators, "mpipe", 16, Mpipe(special_blocks=("T5Block",)))
    assert found.objective_ms / mean(operators, 16) <= 1.05


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_the_gain_of_mixed_stages_is_memory(devices: int) -> None:
    graph = t5_graph(Shape())
    memory = 1.2 * sum(node.bytes for node in graph.nodes) / devices
    cut = asked(graph, "pipedream", devices, memory=memory).objective_ms / mean(graph, devices)
    assert 1.6 < cut < 1.75
    settings = Mpipe(special_blocks=("T5Block",))
    mixed = asked(graph, "mpipe", devices, settings, memory=memory)
    assert mixed.objective_ms / mean(graph, devices) <= 1.05


def mean(graph: Graph, devices: int) -> float:
    """Milliseconds of the mean device."""
    return sum(node.forward_ms + node.backward_ms for node in graph.nodes) / devices


def test_acyclic_can_bound_stages() -> None:
    graph = random_graph(30, 1)
    found = asked(graph, "acyclic", 3, Acyclic(objective="edge_cut", constraint="memory"))
    total = sum(node.bytes for node in graph.nodes)
    assert max(found.memory_bytes) <= 1.1 * total / 3
    with pytest.raises(ValueError, match="over the maximum_constraint_value of 3"):
        asked(graph, "acyclic", 3, Acyclic(maximum_constraint_value=3))
