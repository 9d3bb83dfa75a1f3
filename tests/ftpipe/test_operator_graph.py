"""Calls of a module as an operator graph, partitioned in any order that edges allow."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from workbench import cli
from workbench.core.call_sets import read_sets
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.operator_graph import Traced
from workbench.runs.resolve import resolve
from workbench.training.cut_check import check_order

MODULE = """
import torch
from torch.utils.data import TensorDataset

class Twin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.left(x) * torch.tanh(self.right(x))

class Net(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.twins = torch.nn.ModuleList([Twin() for _ in range(count)])

    def forward(self, x):
        x = self.first(x)
        total = torch.zeros_like(x)
        for twin in self.twins:
            total = total + twin(x)
        out = total + 1
        out.mul_(2)
        return self.last(out) + self.last(x)

def make(spec):
    return Net(spec.layers), TensorDataset(torch.randn(16, 8), torch.randint(4, (16,)))
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command on the module above; returns its exit code, output and error."""
    monkeypatch.chdir(tmp_path)
    Path("branches.py").write_text(MODULE)
    monkeypatch.setenv("WORKBENCH_PLACES", str(tmp_path / "places"))

    def run(words: str) -> tuple[int, str, str]:
        told = ["--device", "cpu", "--results", str(tmp_path)]
        code = cli.main(["partition", "branches:make", "-l", "3", *shlex.split(words), *told])
        return code, *capsys.readouterr()

    return run


def spec_of(**changes) -> RunSpec:
    model = {"family": "branches:make", "layers": 3}
    return RunSpec.from_dict({"method": "ftpipe", "model": model, "device": "cpu", **changes})


def test_branches_are_partitioned_and_compared(command, tmp_path) -> None:
    code, out, error = command("-p 2 -m mpipe --depth 9 --json -o calls")
    assert code == 0, error
    made = json.loads(out)
    assert made["checked"].startswith("outputs and gradients of the calls, stage by stage, are")
    assert not made["cut"]
    readers = [edge["from"] for edge in made["graph"]["edges"]]
    first = next(n["id"] for n in made["graph"]["nodes"] if n["id"].endswith(".first"))
    assert readers.count(first) > 3  # no chain
    shared = [node["shared"] for node in made["graph"]["nodes"] if node["shared"]]
    assert shared == [["last.bias", "last.weight"]] * 2
    together = [edge for edge in made["graph"]["edges"] if not edge["sendable"]]
    assert together, "what is written to stays with those that write and read it"
    assert all(made["stage"][e["from"]] == made["stage"][e["to"]] for e in together)
    spec = resolve(spec_of(ranks=2, partition="calls"), tmp_path)
    assert "loss and gradients of the stages are those of the module" in made["checked"]
    sets = read_sets(spec.model.calls)
    assert sets.depth == 9
    assert sets.set_of == {int(name.split(".")[0]): at for name, at in made["stage"].items()}
    assert spec.options.map == " ".join(map(str, made["map"]))
    path = tmp_path / "partitions" / "calls.json"
    told = {"nodes": made["graph"]["nodes"], "edges": made["graph"]["edges"]}
    path.with_name("graph.txt").write_text(json.dumps(told))  # is a file of --graph
    words = ["--graph", str(path.with_name("graph.txt")), "-p", "2", "-m", "exact"]
    assert cli.main(["partition", *words]) == 0


def test_classes_are_one_node_and_kinds_are_measured_once(command, tmp_path) -> None:
    code, out, _ = command("-p 2 -m exact --basic-blocks Twin --json -o blocks")
    assert code == 0
    nodes = {node["id"].partition(".")[2]: node for node in json.loads(out)["graph"]["nodes"]}
    twins = [nodes[f"twins.{n}"] for n in range(3)]
    assert twins[0]["scope"] == "Net[model]/ModuleList[twins]/Twin[0]"
    assert len({(twin["forward_ms"], twin["backward_ms"]) for twin in twins}) == 1
    again = command("-p 2 -m exact --basic-blocks Twin -o again")
    assert again[0] == 0
    assert "measuring" not in again[2]


def test_calls_in_a_wrong_order_are_told(command) -> None:
    traced = Traced(resolve(spec_of()), basic=(), depth=None)
    names = [one.name for one in traced.operators]
    assert check_order(traced.module, traced.inputs, traced.operators, dict.fromkeys(names, 0))
    (write,) = (one.name for one in traced.operators if one.writes)
    late = {name: int(name == write) for name in names}
    with pytest.raises(ValueError, match="would train otherwise|calls fail in the order"):
        check_order(traced.module, traced.inputs, traced.operators, late)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-p 2 --basic_blocks Twix", "no module is a 'Twix'; the model has Linear, ModuleList"),
        ("-p 2 --depth 0", "depth is 0; it must be at least 1"),
        ("-p 99 --depth 9", "99 devices are asked for; the model has 21 calls"),
    ],
)
def test_wrong_words_are_one_sentence(command, tmp_path, words: str, told: str) -> None:
    code, out, error = command(words)
    assert (code, out) == (2, "")
    assert told in error
    assert not (tmp_path / "partitions").exists()
