"""Partitions of calls train: stages are any sets of a module's calls, in any order they allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baselines import plain
from benchmarks.delayed import Delayed
from tests.methods.harness import Silent, fork_ranks, made_up_profile
from workbench.core.call_sets import read_sets
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import ftpipe
from workbench.methods.ftpipe.operator_graph import Traced, graph_of_operators
from workbench.model import make_model
from workbench.partition.methods import Ask, partition
from workbench.profile.operators import operator_costs
from workbench.runtime.passes.unit_stage import UnitStage

T5 = ModelSpec(
    family="t5", layers=2, decoder_layers=2, hidden=16, heads=2, seq=32, target_seq=4, vocab=258,
    dropout=0.1,
)  # fmt: skip
"""Its words are tied: the embedding is in the first stage, the head in the last."""

WOVEN = ModelSpec(family="tests.ftpipe.branches:make", layers=3)
SETS = "0,14-19 2-5,9-10,25 6-8,11-13 20-24,26"
"""Calls of its stages."""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    fork_ranks(monkeypatch)
    made_up = "workbench.methods.ftpipe.run.profile_for"
    monkeypatch.setattr(made_up, lambda spec, *_: made_up_profile(spec))


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"doubles {n}\ttwo {'s' * (n % 3)}{n}\n" for n in range(40)))
    return str(path)


@pytest.fixture(scope="module")
def found() -> tuple[str, str]:
    """Calls and map of four stages on two ranks: those that mpipe finds where time is that of bytes
    made, the first three as one, and the last two, so that the embedding lends to another rank."""
    traced = Traced(RunSpec.of(method="ftpipe", model=T5, batch=4, device="cpu"), basic=(), depth=4)
    costs = {
        kind: replace(cost, forward_s=1e-7 * sum(cost.output_bytes), backward_s=2e-7)
        for kind, cost in operator_costs(traced.operators, traced.inputs, "cpu").items()
    }
    graph = graph_of_operators(traced.module, traced.operators, costs, recompute=True)
    memory = 0.52 * sum(node.bytes for node in graph.nodes)
    made = partition(graph, Ask(method="mpipe", devices=2, memory=memory))
    stage = {name: min(max(at - 2, 0), 3) for name, at in made.stage.items()}
    return traced.sets(stage), " ".join(map(str, made.stage_to_device[2:6]))


def spec_of(found: tuple[str, str], text: str, model: ModelSpec = T5, **changes) -> RunSpec:
    calls, places = found
    same = {"batch": 4, "microbatches": 2, "steps": 6, "device": "cpu", "text": text, "ranks": 2}
    cut = " ".join("1" for _ in places.split())
    same |= {"method": "ftpipe", "model": replace(model, calls=calls), "cut": cut, "map": places}
    return RunSpec.of(**{**same, **changes})


@pytest.mark.parametrize(
    ("places", "changes"),
    [
        pytest.param("0 1 0 1", {}, marks=pytest.mark.thorough),
        ("0 1 0 1", {"process_per_stage": True}),
        ("0 1 1 0", {"microbatches": 1, "weight_stashing": True}),
        ("1 0 1 0", {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05}),
    ],
)
def test_branches_train_on_the_declared_versions(places, changes, tmp_path):
    """A later branch runs in the first stage, two stages share a scale, and two a head."""
    spec = spec_of((SETS, places), "stdlib", WOVEN, **changes)
    losses = ftpipe.train(spec, Silent(), tmp_path / "run").losses
    reference = Delayed(spec, tmp_path)
    assert losses == pytest.approx([reference.step(n) for n in range(spec.steps)], rel=1e-5)


def test_an_encoder_decoder_of_mixed_stages_trains(found, text, tmp_path):
    spec = spec_of(found, text)
    assert spec.options.map == "0 1 0 1"
    assert len(read_sets(found[0]).set_of) > 150
    losses = ftpipe.train(spec, Silent(), tmp_path / "run").losses
    reference = Delayed(spec, tmp_path)
    assert losses == pytest.approx([reference.step(n) for n in range(spec.steps)], rel=1e-5)


@pytest.mark.parametrize(
    ("model", "order"),
    [pytest.param(T5, "sync-1f1b", marks=pytest.mark.thorough), (WOVEN, "gpipe-lifo")],
    ids=["t5", "branches"],
)
def test_synchronous_orders_are_plain_training(found, text, model, order, tmp_path):
    """With dropout, whose masks stay those of the module as it is written."""
    sets, text = (found, text) if model is T5 else ((SETS, "0 1 1 0"), "stdlib")
    spec = spec_of(sets, text, model, stage_order=order, clip=0.5)
    trained = ftpipe.train(spec, Silent(), tmp_path / "run")
    alone = RunSpec.of(
        method="plain", model=model, text=text, batch=4, microbatches=2, steps=6, clip=0.5,
        device="cpu",
    )  # fmt: skip
    wanted = plain.train(alone, Silent(), tmp_path / "plain")
    assert trained.losses == pytest.approx(wanted.losses, rel=1e-5)
    assert trained.grad_norms == pytest.approx(wanted.grad_norms, rel=1e-5)


def test_a_rank_has_what_its_stages_read(found):
    """Stages send neither inputs of the module nor tensors that weights alone make; parameters
    have the model's names."""
    model, own = make_model(replace(T5, calls=found[0])), make_model(T5)
    stages = [
        UnitStage(model, range(n, n + 1), seed=0, seq=T5.seq, device=CPU, dtype=torch.float32)
        for n in range(4)
    ]
    crossing = [form for stage in stages for form in stage.came(2)]
    assert crossing
    assert all(dtype != torch.int64 and shape[0] == 2 for shape, dtype, _ in crossing)
    has = [sum(p.numel() for p in stage.named_parameters().values()) for stage in stages]
    assert max(has) < 0.75 * own.parameters_count()
    names = [name for stage in stages for name in stage.parameters[stage.units.start]]
    every = ((unit, local) for unit in range(own.num_units) for local in own.shapes(unit))
    assert sorted(names) == sorted(own.state_name(*each) for each in every)


@pytest.mark.parametrize(
    ("calls", "changes", "told"),
    [
        ("2-5 0,6-26", {}, "call 2.twins.0.left of stage 0 reads what 0.first makes in stage 1"),
        ("0-5 6-22 23-26", {}, "must be in one stage; they are in 1 and 2"),
        ("0-5 6-24", {}, "call 25.last is in no stage"),
        ("0-5 6-27", {}, "there is no call 27: the module has 27"),
        (SETS, {"prediction": "msnag"}, "borrows a weight of stage 0"),
    ],
)
def test_what_cannot_run_is_refused(calls, changes, told, tmp_path):
    places = "0 1 0 1"[: 2 * len(read_sets(calls).sets) - 1]
    spec = spec_of((calls, places), "stdlib", WOVEN, **changes)
    with pytest.raises(ValueError, match=told):
        ftpipe.train(spec, Silent(), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(ValueError, match="plain trains a model's own layers: leave it out"):
        RunSpec.of(method="plain", model=replace(WOVEN, calls=calls))


def test_weights_go_on_by_their_names(tmp_path):
    """From plain training to stages of calls and back, evaluated on the way."""
    how = {"clip": 0.5, "lr_decay_steps": 6, "save_every": 2, "eval_every": 2, "eval_share": 0.25}
    ours = spec_of((SETS, "0 1 1 0"), "stdlib", WOVEN, stage_order="seq", **how)
    alone = RunSpec.of(method="plain", batch=4, microbatches=2, device="cpu", model=WOVEN, **how)
    whole = plain.train(alone.with_(steps=6), Silent(), tmp_path / "whole")
    plain.train(alone.with_(steps=2), Silent(), tmp_path / "one")
    middle = ours.with_(steps=4, start_from=str(tmp_path / "one"))
    ftpipe.train(middle, Silent(), tmp_path / "two")
    last = alone.with_(steps=6, start_from=str(tmp_path / "two"))
    ended = plain.train(last, Silent(), tmp_path / "three")
    assert ended.losses == pytest.approx(whole.losses, rel=1e-5)
    told = [[each["loss"] for each in one.evaluations] for one in (ended, whole)]
    assert len(told[0]) == 3
    assert told[0] == pytest.approx(told[1], rel=1e-5)
