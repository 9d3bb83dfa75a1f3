"""Graphs from files, and what ``workbench partition --graph`` says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench import cli
from workbench.partition.graph import Edge, Graph, Node, read_graph


def node(name: Any, **changed: Any) -> dict[str, Any]:
    return {"id": name, "forward_ms": 1, "backward_ms": 2, "bytes": 100, **changed}


def edge(source: Any, target: Any, **changed: Any) -> dict[str, Any]:
    return {"from": source, "to": target, "bytes": 10, **changed}


CHAIN = {"nodes": [node(at) for at in range(6)], "edges": [edge(at, at + 1) for at in range(5)]}


@pytest.fixture
def write(tmp_path: Path):
    def written(content: Any) -> Path:
        path = tmp_path / "graph.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return written


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            {"nodes": [node("a"), node("b")], "edges": [edge("a", "b"), edge("b", "a")]},
            "'b' -> 'a'",
        ),
        ({"nodes": [node("a")], "edges": [edge("a", "a")]}, "cycle: 'a' -> 'a'"),
        ({"nodes": [node("a")], "edges": [edge("a", "z")]}, "names 'z', and no node has that id"),
        ({"nodes": [node("a"), node("a")], "edges": []}, "the id 'a' stands twice"),
        ({"nodes": [node(1), node("1")], "edges": []}, "the id '1' stands twice"),
        ({"nodes": [node("a", bytes=-7)], "edges": []}, "bytes of node 'a' is -7"),
        ({"nodes": [node("a", forward_ms="x")], "edges": []}, "forward_ms is 'x'"),
        ({"nodes": [node("a", weight=1)], "edges": []}, "unknown field 'weight'"),
        ({"nodes": [node("a")], "edges": [{"from": "a", "bytes": 1}]}, "'to' is missing"),
        ({"nodes": [node("a")]}, "'edges' is missing"),
        ({"nodes": [], "edges": []}, "has no nodes"),
        (json.dumps({"nodes": [node("a", bytes=float("nan"))], "edges": []}), "NaN"),
        ("{", "is not JSON"),
    ],
)
def test_a_wrong_graph_is_one_sentence(write, capsys, content: Any, told: str) -> None:
    assert cli.main(["partition", "--graph", str(write(content)), "-P", "1"]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_numbers_that_are_none_are_refused_in_code_too() -> None:
    with pytest.raises(ValueError, match="forward_ms of node 'a' is nan"):
        Graph(nodes=[Node(id="a", forward_ms=float("nan"), backward_ms=0, bytes=0)], edges=[])


def test_order_and_depth(write) -> None:
    with pytest.raises(ValueError, match="missing.json is no file; give one with nodes and edges"):
        read_graph(Path("missing.json"))
    graph = read_graph(write({"nodes": CHAIN["nodes"][::-1], "edges": CHAIN["edges"]}))
    assert [graph.nodes[place].id for place in graph.topological()] == [*"012345"]
    assert graph.depth() == 5
    branches = Graph(nodes=graph.nodes, edges=[Edge(source="0", target="5", bytes=0)])
    assert branches.depth() == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-m simplex", "unknown method 'simplex'"),
        ("-m pipedream --L 4", "--L has no meaning for pipedream; it is for mpipe"),
        ("-m mpipe --epsilon .1", "--epsilon has no meaning for mpipe; it is for acyclic"),
        ("-m mpipe --L 1", "L is 1"),
        ("-m mpipe --L x", "'x'"),
        ("-m mpipe --packing tight", "packing is 'tight'"),
        ("-m acyclic --allocated-seconds 20", "no clock"),
        ("-P 7", "7 devices are asked for"),
        ("-P 0", "0 devices are asked for"),
        ("--memory 90", "node '0' needs 100 B, 10 B more than the 90 B"),
        ("--memory 250", "100 B more than the 500 B that all devices have"),
        ("--memory lots", "'lots' is not an amount of memory"),
        ("--bw 0", "--bw is 0"),
        ("--preset fast", "unknown preset 'fast'"),
        ("--dont_use_async_meta_alg", "no meaning without --async_pipeline"),
        ("-m 2dbin --n_clusters 0", "n_clusters is 0"),
    ],
)
def test_wrong_flags_are_one_sentence(write, capsys, words: str, told: str) -> None:
    given = words if "-P" in words else f"-P 2 {words}"
    assert cli.main(["partition", "--graph", str(write(CHAIN)), *given.split()]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_json_of_a_partition(write, capsys) -> None:
    words = ["partition", "--graph", str(write(CHAIN)), "-p", "2", "--json"]
    for more in (
        ["--partitioning_method", "mpipe", "--L", "2", "4", "--special_blocks", "Block"],
        ["--partitioning-method", "mpipe", "--special-blocks", "Block", "--memory", "1KiB"],
    ):
        assert cli.main([*words, *more]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["stage"] == dict(zip("012345", [0, 0, 0, 1, 1, 1], strict=True))
        assert told["device"] == told["stage"]
        assert told["loads_ms"] == [9, 9]
        assert told["memory_bytes"] == [300, 300]
        assert (told["objective_ms"], told["bound_ms"], told["gap"]) == (9, 9, 0)


def test_ratios_of_backward_times(write, capsys) -> None:
    def load(*words: str) -> float:
        graph = str(write(CHAIN))
        assert cli.main(["partition", "--graph", graph, "-p", "2", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["objective_ms"]

    assert load("--bwd_to_fwd_ratio", "3") == 21
    assert load("--bwd-to-fwd-ratio=-1") == 6
    assert load("--bwd_to_fwd_ratio", "0") == 3
    assert load("--preset", "gpipe") == pytest.approx(3 * 5 / 3)


def test_memory_of_a_full_pipeline_is_asked_for(write, capsys) -> None:
    def held(*words: str) -> list[float]:
        graph = str(write(CHAIN))
        assert cli.main(["partition", "--graph", graph, "-p", "2", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["memory_bytes"]

    assert sum(held("--in-flight", "2")) > sum(held())
    assert cli.main(["partition", "--graph", str(write(CHAIN)), "--versions"]) == 2
    assert "in_flight is 0; give the micro-batches of an update" in capsys.readouterr().err


def test_a_missing_package_is_one_sentence(write, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert cli.main(["partition", "--graph", str(write(CHAIN)), "-P", "2", "-m", "metis"]) == 2
    assert "pip install pymetis" in capsys.readouterr().err
