"""megatron-core's GPT, with our weights under its names, trains as plain training does.

On a CPU with activations kept, since its recomputation asks for CUDA; the rest is the same.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from baselines.megatron import parallel
from baselines.megatron.names import their_layout, their_name
from baselines.megatron.reading import STATE_FILE
from baselines.megatron.run import why_not_core
from tests.methods.harness import Silent, assert_judged
from tests.methods.plain import MODEL, judge, spec_for
from tests.methods.plain import train as train_plainly
from tests.methods.test_zero import Runs
from tests.unit.aceso.cases import small_space
from workbench.cli import main
from workbench.core.model_spec import ModelSpec
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.methods.aceso.grid import as_megatron, points
from workbench.methods.aceso.options import model_of
from workbench.model import make_model
from workbench.model.whole import make_whole
from workbench.runs.export import export
from workbench.runs.store import Store
from workbench.runtime.checkpoint.manifest import Manifest, publish

TIED = replace(MODEL, dropout=0.0, vocab=257)
"""A number of words that Megatron-LM pads."""
BASE = spec_for(method="megatron-lm", model=TIED, microbatches=2, steps=15, activations="keep")
SPECS = {
    "all": BASE,
    "untied": BASE.with_(model=replace(TIED, tied=False), clip=None, steps=5),
    "bf16": BASE.with_(dtype="bf16"),
    "whole": BASE.with_(steps=8),
    "killed": BASE.with_(steps=4, save_every=4, lr_decay_steps=8),
    "resumed": BASE.with_(steps=8, save_every=4, lr_decay_steps=8),
}

needs_core = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("megatron"), "megatron")
    runs.start(SPECS, shared={"resumed": "killed"})
    return runs


@needs_core
@pytest.mark.parametrize("name", ["all", "untied"])
def test_megatron_core_trains_as_plain_training_does(runs, name):
    result, after = runs.result(name), runs.after(name)
    assert_judged(SPECS[name], result["losses"], after)
    assert result["engine"].startswith("megatron-core 0.")


@needs_core
def test_every_parameter_moves(runs):
    before, after = runs.before("all"), runs.after("all")
    for label, value in before.items():
        assert float((after[label] != value).float().mean()) > 0.95, label


@needs_core
def test_bf16_follows_fp32_from_the_same_masters(runs):
    losses, expected = runs.result("bf16")["losses"], judge(BASE)[0]
    assert all(abs(a - b) < 0.01 * b for a, b in zip(losses, expected, strict=True))
    assert losses != expected
    for label, value in runs.before("all").items():
        assert torch.equal(runs.before("bf16")[label], value), label


@needs_core
def test_resuming_continues_identically(runs):
    resumed, whole = runs.result("resumed"), runs.result("whole")
    assert "resumed" in resumed["events"]
    assert resumed["events"].count("step") == 4
    assert resumed["losses"] == whole["losses"]


@pytest.mark.gpu
@needs_core
def test_on_a_gpu(tmp_path):
    """With its own recomputation and fusions."""
    model = ModelSpec(layers=2, hidden=256, heads=4, seq=64, vocab=257)
    spec = BASE.with_(model=model, device="cuda", activations="recompute")
    assert why_not_core(spec) is None
    runs = Runs(tmp_path, "megatron")
    runs.start({"gpu": spec})
    result, expected = runs.result("gpu"), judge(spec.with_(device="cpu"))[0]
    for ours, plain in zip(result["losses"], expected, strict=True):
        assert abs(ours - plain) <= 1e-4 * plain
    assert result["peak_bytes"]["device"] > 16 * model.parameters


def test_the_reasons_for_plain_resident_training():
    assert "CUDA devices only" in why_not_core(BASE)


# -- several GPUs --------------------------------------------------------------------------------

SHARED = {"method": "megatron-parallel", "model": TIED, "batch": 8, "microbatches": 2, "ranks": 4}


def test_each_point_of_the_grid_is_a_run_of_megatron_core():
    """Its shape is the plan's, and so are micro-batches; other models than GPT are refused."""
    space, seen = small_space("gpt"), set()
    for count in range(1, 5):
        for micro, stages in points(space, count):
            plan = space.rated(micro, stages).plan
            spec = RunSpec.of(
                method="megatron-parallel", model=model_of(plan, TIED), **as_megatron(plan)
            )
            options, stage = spec.options, stages[0]
            assert (options.pp, options.tp) == (count, stage.tp[0])
            assert (options.dp(spec.ranks), spec.microbatch) == (stage.dp[0], micro)
            assert (spec.activations == "recompute") == any(stages[-1].recompute)
            seen.add((options.tp, options.pp, options.dp(4)))
    assert seen == {(4, 1, 1), (2, 1, 2), (1, 1, 4), (2, 2, 1), (1, 2, 2), (1, 4, 1)}
    space = small_space("t5")
    micro, stages = next(points(space, 1))
    with pytest.raises(ValueError, match="the plan is of t5; Megatron-LM trains its gpt here"):
        as_megatron(space.rated(micro, stages).plan)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tp": 2, "pp": 3}, "tp 2 x pp 3 must be 1 or more each, and divide the 4 ranks"),
        ({"tp": 0}, "tp 0 x pp 1 must be 1 or more"),
        ({"tp": 4, "model": replace(TIED, heads=2)}, "tp 4 x pp 1 must divide the model's 2 heads"),
        ({"pp": 4}, "tp 1 x pp 4 must divide the model's 4 heads and 5 layers"),
        ({"microbatches": 4}, "a batch of 8 does not divide into 16, 4 micro-batches of 4"),
        ({"model": MODEL}, "the model is gpt with dropout 0.1"),
        ({"activations": "host"}, "its activations 'host'"),
        ({"save_every": 2}, "whose weights lie in shards"),
    ],
)
def test_what_megatron_core_cannot_do_is_refused(changes, told):
    with pytest.raises(ValueError, match=told) as refused:
        spec_for(**{**SHARED, **changes})
    assert "\n" not in str(refused.value)


def test_a_machine_without_gpus_is_refused(tmp_path, monkeypatch, capsys):
    """In one sentence that says how many are needed, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    sizes = ["--layers", "2", "--hidden", "16", "--heads", "2", "--seq", "8", "--batch", "4"]
    words = ["run", "-m", "megatron-parallel", "--ranks", "4", "--tp", "2", "--device", "cpu"]
    assert main([*words, *sizes, "--results", str(tmp_path / "results")]) == 2
    told = capsys.readouterr().err
    assert "megatron-core computes on CUDA alone, and needs 4 for tp 2 x pp 1 x dp 2" in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@needs_core
@pytest.mark.parametrize("shape", [{"tp": 2}, {"pp": 2}, {"distributed_optimizer": True}], ids=str)
def test_on_two_gpus(shape, tmp_path):
    """With its own recomputation, 1F1B and sums over replicas, tied weights on two stages."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is no several")
    model = ModelSpec(layers=2, hidden=256, heads=4, seq=64, vocab=257)
    spec = spec_for(**{**SHARED, "model": model, "ranks": 2, "device": "cuda", "steps": 8, **shape})
    found = parallel.train(spec, Silent(), tmp_path)
    judged = spec.with_(method="plain", ranks=1, device="cpu")
    norms: list[float] = []
    assert found.losses == pytest.approx(train_plainly(judged, torch.float32, norms)[0], rel=1e-4)
    assert found.grad_norms == pytest.approx(norms, rel=1e-3)


def test_weights_are_exported(tmp_path):
    """From the file that megatron-core's training writes, also where that is not installed."""
    model = make_model(TIED)
    whole = make_whole(model, seed=3).state_dict()
    owned = {(unit, name) for unit in range(model.num_units) for name in model.shapes(unit)}
    masters = {
        their_name(model, *place): their_layout(place[1], whole[model.state_name(*place)], TIED)
        for place in owned
    }
    run = tmp_path / "runs" / "run"
    (part := run / "checkpoints" / "part").mkdir(parents=True)
    torch.save({"masters": masters, "inner": {}}, part / STATE_FILE)
    history = {"next_step": 1, "losses": [1.0], "step_seconds": [1.0], "grad_norms": [1.0]}
    continues = {"model": TIED.to_dict(), "seed": 3, "form": "megatron-core"}
    publish(part, Manifest(**history, updates_done=1, skipped=[], continues=continues))
    write_sealed(run / "spec.json", BASE.to_dict())
    made = export(run, tmp_path / "out", Store(tmp_path))
    assert made.parameters == model.parameters_count()
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], value) for name, value in whole.items())
