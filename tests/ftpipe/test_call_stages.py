"""Partitions of calls train: stages are any sets of a module's calls, in any order they allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baselines import plain
from tests.ftpipe.test_run import Reference
from tests.methods.harness import Silent, fork_ranks, made_up_profile
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import ftpipe
from workbench.methods.ftpipe.operator_graph import Traced, graph_of_operators
from workbench.partition.methods import Ask, partition
from workbench.profile.operators import operator_costs

T5 = ModelSpec(
    family="t5", layers=2, decoder_layers=2, hidden=16, heads=2, seq=32, target_seq=4, vocab=258,
    dropout=0.1,
)  # fmt: skip
"""Its words are tied: the embedding is in the first stage, the head in the last."""


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
    """Calls and map of four stages on two ranks, by mpipe, where time is that of bytes made."""
    traced = Traced(RunSpec.of(method="ftpipe", model=T5, batch=4, device="cpu"), basic=(), depth=4)
    costs = {
        kind: replace(cost, forward_s=1e-7 * sum(cost.output_bytes), backward_s=2e-7)
        for kind, cost in operator_costs(traced.operators, traced.inputs, "cpu").items()
    }
    graph = graph_of_operators(traced.module, traced.operators, costs, recompute=True)
    memory = 0.52 * sum(node.bytes for node in graph.nodes)
    made = partition(graph, Ask(method="mpipe", devices=2, memory=memory, cheap_last=True))
    return traced.sets(made.stage), " ".join(map(str, made.stage_to_device))


def spec_of(found: tuple[str, str], text: str, model: ModelSpec = T5, **changes) -> RunSpec:
    calls, places = found
    same = {"batch": 4, "microbatches": 2, "steps": 6, "device": "cpu", "text": text, "ranks": 2}
    cut = " ".join("1" for _ in places.split())
    same |= {"method": "ftpipe", "model": replace(model, calls=calls), "cut": cut, "map": places}
    return RunSpec.of(**{**same, **changes})


@pytest.mark.parametrize("changes", [{}, {"microbatches": 1, "activations": "keep"}])
def test_losses_are_those_of_the_declared_versions(found, text, changes, tmp_path):
    assert found[1] == "0 1 0 1"
    spec = spec_of(found, text, **changes)
    losses = ftpipe.train(spec, Silent(), tmp_path / "run").losses
    reference = Reference(spec, tmp_path)
    assert losses == pytest.approx([reference.step(n) for n in range(spec.steps)], rel=1e-5)


@pytest.mark.parametrize("order", ["sync-1f1b", "gpipe-lifo"])
def test_synchronous_orders_are_plain_training(found, text, order, tmp_path):
    spec = spec_of(found, text, stage_order=order, clip=0.5)
    trained = ftpipe.train(spec, Silent(), tmp_path / "run")
    alone = RunSpec.of(
        method="plain", model=T5, text=text, batch=4, microbatches=2, steps=6, clip=0.5,
        device="cpu",
    )  # fmt: skip
    wanted = plain.train(alone, Silent(), tmp_path / "plain")
    assert trained.losses == pytest.approx(wanted.losses, rel=1e-5)
    assert trained.grad_norms == pytest.approx(wanted.grad_norms, rel=1e-5)


def test_weights_go_on_by_their_names(found, text, tmp_path):
    """From plain training to stages of calls and back, evaluated on the way."""
    how = {"clip": 0.5, "lr_decay_steps": 6, "save_every": 2, "eval_every": 2}
    ours = spec_of(found, text, stage_order="seq", **how)
    alone = RunSpec.of(method="plain", batch=4, device="cpu", model=T5, text=text, **how)
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
