"""``workbench partition TASK`` registers stages that a run trains."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.methods.harness import Silent, fork_ranks, made_up_profile
from tests.varuna.workers import Workers
from workbench import cli
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import ftpipe
from workbench.model import make_model
from workbench.runs.overrides import make_spec
from workbench.runs.resolve import key_of, resolve
from workbench.runtime.passes.unit_stage import UnitStage
from workbench.training.cut_check import check_stages

HALVES = "-l 6 --decoder-layers 2 --hidden 16 --heads 2 --max_seq_length 32 --vocab 258"
T5 = f"t5 {HALVES} --answer-max-seq-length 4"
"""A long encoder and a short decoder, whose few layers have most of the memory."""
LIMIT = "--memory 336KiB"
MODULE = """
import torch
from torch.utils.data import TensorDataset

def make(spec):
    wide = [torch.nn.Linear(8, 8) for _ in range(spec.layers)]
    data = TensorDataset(torch.randn(16, 8), torch.randint(4, (16,)))
    return [*wide, torch.nn.Linear(8, 4)], data
"""


@cache
def counted_profile(spec: RunSpec):
    """A profile whose times are those of so many operations."""
    model, profile = make_model(spec.model), made_up_profile(spec)

    def counted(unit: int, cost):
        seconds = model.flops(unit, spec.microbatch, spec.model.seq) / 3e9 + 1e-5
        again = {"forward_s": seconds, "recompute_s": seconds, "backward_s": 2 * seconds}
        return replace(cost, **again, kept_bytes=cost.parameters)

    units = tuple(counted(unit, cost) for unit, cost in enumerate(profile.units))
    return replace(profile, units=units)


@pytest.fixture
def partition(monkeypatch, tmp_path, capsys):
    """Runs the command on words; returns its exit code, output and error."""
    monkeypatch.setattr(
        "workbench.profile.store.profile_for", lambda spec, *_: counted_profile(spec)
    )
    monkeypatch.setenv("WORKBENCH_PLACES", str(tmp_path / "places"))
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> tuple[int, str, str]:
        code = cli.main(["partition", *shlex.split(words), "--results", str(tmp_path)])
        return code, *capsys.readouterr()

    return run


def registered(results: Path, name: str) -> dict:
    return json.loads((results / "partitions" / f"{name}.json").read_text())


def spec_of(**changes) -> RunSpec:
    """The run of T5 that the command names."""
    sizes = {"family": "t5", "layers": 6, "decoder_layers": 2, "hidden": 16, "heads": 2, "seq": 32}
    sizes |= {"vocab": 258, "target_seq": 4, "tied": False}
    how = {"batch": 8, "microbatches": 2, "steps": 3, "ranks": 2, "device": "cpu", "clip": None}
    return make_spec({"method": "ftpipe", "model": {}}, {**sizes, **how, **changes})


def test_a_mixed_partition_is_found_and_trained(partition, monkeypatch, tmp_path):
    """Two stages a device balance what no cut into two stages does within the memory."""
    for method, more in (("pipedream", "--no-check"), ("mpipe", ""), ("exact", "--no-check")):
        code, out, _ = partition(f"{T5} -p 2 -m {method} {LIMIT} -o {method} --device cpu {more}")
        assert code == 0, out
        assert "--partition " + method in out.splitlines()[-1]
    cut, mixed, best = (registered(tmp_path, n) for n in ("pipedream", "mpipe", "exact"))
    assert best["analysis"]["objective_ms"] <= mixed["analysis"]["objective_ms"]
    assert mixed["map"] == [0, 1, 0, 1]
    assert mixed["analysis"]["objective_ms"] < cut["analysis"]["objective_ms"]
    assert "are those of the module" in mixed["checked"]
    loads = mixed["analysis"]["loads_ms"]
    own = [(s["device"], s["forward_ms"] + s["backward_ms"]) for s in mixed["analysis"]["stages"]]
    assert loads == pytest.approx([sum(ms for at, ms in own if at == d) for d in range(2)])
    assert sum(loads) == pytest.approx(
        mixed["analysis"]["balance"] * mixed["analysis"]["objective_ms"]
    )

    fork_ranks(monkeypatch)
    monkeypatch.setattr(
        "workbench.methods.ftpipe.run.profile_for", lambda spec, *_: made_up_profile(spec)
    )
    text = tmp_path / "pairs.tsv"
    text.write_text("".join(f"what is {n}?\tit is {n}\n" for n in range(40)))
    named = resolve(spec_of(partition="mpipe", text=str(text)), tmp_path)
    given = spec_of(text=str(text), cut=" ".join(map(str, mixed["cut"])), map="0 1 0 1")
    assert key_of(named) == key_of(given)
    found = ftpipe.train(named, Silent(), tmp_path / "runs" / "run")
    assert found.predicted["settings"]["map"] == "0 1 0 1"
    assert found.losses[-1] < found.losses[0]


def test_a_module_of_the_users_is_a_task(partition, tmp_path):
    (tmp_path / "own_task.py").write_text(MODULE)
    code, out, error = partition("own_task:make -l 5 -p 2 -m exact --json --device cpu")
    assert code == 0, error
    made = json.loads(out)
    assert made["name"] == "own_task.make_2p_bw12_async_exact"
    assert made["checked"] == "loss and gradients of the stages are those of the module"
    assert sum(made["cut"]) == 6
    assert len(made["graph"]["edges"]) == 5
    assert registered(tmp_path, made["name"]).keys() - {"sha256"} == made.keys()
    like = {"micros": 1, "steps": 6, "how": "well", "layers": 6}
    named = {"partition": made["name"], "results": str(tmp_path)}
    given = {name: " ".join(map(str, made[name])) for name in ("cut", "map")}
    with Workers() as workers:
        told = workers.run("streamed", stages=2, cases=[like | named, like | given])
    for one, other in (each["each"] for each in told):
        assert one.get("losses"), one
        assert one["losses"] == other["losses"], "an engine's stages are those of the partition"


@pytest.mark.parametrize(
    ("task", "family"),
    [("gpt2 -l 2", "gpt"), ("bert_squad -l 2", "bert"), ("glue -l 2 --set tied=true", "bert"),
     ("vision --model vit_base_patch16_384 -l 2 --hidden 16 --heads 2 --crop 32", "vit"),
     ("vision --model vgg16_bn --hidden 8 --no_recomputation --save-memory-mode", "vgg")],
)  # fmt: skip
def test_published_tasks_have_models(partition, tmp_path, task: str, family: str) -> None:
    small = "" if "vision" in task else "--hidden 16 --heads 2 --seq 8 --vocab 512"
    code, out, error = partition(f"{task} {small} -p 2 -b 2 -m pipedream --device cpu -o one")
    assert code == 0, error
    made = registered(tmp_path, "one")
    assert made["model"]["family"] == family
    assert made["map"] == [0, 1]
    asynchronous = "no_recomputation" not in task
    nodes = made["graph"]["nodes"]
    assert all((n["backward_ms"] > n["backward_kept_ms"]) == asynchronous for n in nodes)
    assert partition("--list")[1].count("\n") == 2
    assert json.loads(partition("--list --json")[1])["one"]["map"] == [0, 1]


SMALL = "gpt2 -l 2 --hidden 16 --heads 2 --seq 8 --vocab 256 -m mpipe --device cpu"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "give a task, or --graph FILE, or --list"),
        ("t7 -p 2", "unknown task 't7'; known: t5, gpt2, bert_squad, glue, vision, or package"),
        ("vision --model wrn_1", "unknown model 'wrn_1' of vision; known: vgg16_bn"),
        (f"{SMALL} -p 2 -m simplex", "unknown method 'simplex'"),
        (f"{SMALL} -p 7", "7 devices are asked for; the model has 4 layers that can be apart"),
        (f"{SMALL} -p 2 --memory 1KiB", "node '0' needs 70.12 KiB, 69.12 KiB more than the 1 KiB"),
        (f"{SMALL} -p 2 --memory 90KiB", "more than the 180 KiB that all devices have"),
        (f"{SMALL} -p 2 --crop 8", "--crop has no meaning for gpt2"),
        (
            f"{SMALL} -p 2 --ct cache",
            "--trace_cache_name has no meaning: RESULTS has measurements by",
        ),
        (f"{SMALL} -p 2 --rounds 3", "--rounds has no meaning for mpipe; it is for acyclic"),
        (f"{SMALL} -p 2 -o ../x", "'../x' is no name of a partition"),
        (f"{SMALL} -p 2 --layers two", "layers is 'two'"),
        ("glue --stateless_tied", "--stateless_tied has no meaning for glue, which ties nothing"),
        ("nowhere.to_be:found -p 2", "no module 'nowhere.to_be'"),
        ("--list -p 2", "--n_partitions has no meaning for --list"),
        ("--graph g.json --hidden 4", "--hidden has no meaning for a graph"),
    ],
)
def test_wrong_words_are_one_sentence(partition, tmp_path, words: str, told: str) -> None:
    code, out, error = partition(words)
    assert (code, out) == (2, "")
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "partitions").exists()


def test_a_missing_package_is_one_sentence(partition, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    code, _, error = partition(f"{SMALL} -p 2 -m metis")
    assert code == 2
    assert "pymetis" in error
    assert not (tmp_path / "partitions").exists()


def test_runs_take_no_partition_of_something_else(partition, tmp_path) -> None:
    assert partition(f"{T5} -p 2 -m mpipe -o mine --device cpu --no-check")[0] == 0
    again = partition(f"{T5} -p 2 -m mpipe -o mine --device cpu --no-check")
    assert again[0] == 2
    assert "there is a partition 'mine' already" in again[2]
    assert partition(f"{T5} -p 2 -m mpipe -o mine --device cpu --no-check --force")[0] == 0
    for changes, told in (
        ({"hidden": 32}, "another model: hidden is 16 there, and 32 in this run"),
        ({"ranks": 3}, "is for 2 ranks, and the run has 3; partition again with -p 3"),
        ({"partition": "yours"}, "partition is 'yours'; registered: mine"),
        ({"partition": "../mine"}, "partition is '../mine'; registered: mine"),
    ):
        with pytest.raises(ValueError, match=told):
            resolve(spec_of(**{"partition": "mine", **changes}), tmp_path)
    with pytest.raises(ValueError, match="which has a cut and a map; give none beside it"):
        spec_of(partition="mine", cut="6 6")
    path = tmp_path / "partitions" / "mine.json"
    path.write_text(path.read_text().replace('"stage_to', '"x').replace('"map": [', '"map": [0,'))
    with pytest.raises(ValueError, match="damaged"):
        resolve(spec_of(partition="mine"), tmp_path)
    assert "damaged" in partition("--list")[1]


def test_stages_that_compute_something_else_are_told(monkeypatch) -> None:
    model, stages = (
        ModelSpec(layers=2, hidden=16, heads=2, seq=8, vocab=256),
        [range(1), range(1, 4)],
    )
    assert check_stages(model, stages, 0).startswith("loss and gradients of the stages are")
    run = UnitStage.run
    monkeypatch.setattr(UnitStage, "run", lambda *args: tuple(1.01 * t for t in run(*args)))
    with pytest.raises(ValueError, match="cut into stages the module would train otherwise"):
        check_stages(model, stages, 0)
