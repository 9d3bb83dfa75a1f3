"""Configurations of the original system become specs of ours, and records its results."""

from __future__ import annotations

import json

import pytest

from workbench.cli.original import merged, read
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.configuration import translate
from workbench.methods.ftpipe.results_json import results_of
from workbench.runs.overrides import make_spec
from workbench.runs.results import results

CONFIG = {
    "bs_train": 4, "step_every": 5, "steps": 30, "seed": 7, "work_scheduler": "1f1b",
    "stage_to_device_map": [2, 5, 2, 5], "statistics": "lm", "max_seq_length": 16,
    "optimizer": {"type": "adamw", "args": {"lr": 0.001, "betas": [0.8, 0.9]}},
    "lr_scheduler": {"type": "get_linear_schedule_with_warmup", "args": {"num_warmup_steps": 3}},
    "trainer": {"type": "lm_local_grad_norm", "args": {"max_grad_norm": 2.0}},
}  # fmt: skip


def spec_of(**changes) -> RunSpec:
    return make_spec(translate({**CONFIG, **changes}).values, {"cut": "5 5 4 4"})


def test_a_configuration_is_a_spec_of_ours():
    spec = spec_of()
    assert (spec.batch, spec.microbatches, spec.steps, spec.seed) == (20, 5, 30, 7)
    assert (spec.ranks, spec.options.map, spec.options.stage_order) == (2, "0 1 0 1", "async-1f1b")
    assert (spec.lr, spec.beta1, spec.beta2, spec.clip) == (0.001, 0.8, 0.9, 2.0)
    assert (spec.lr_schedule, spec.min_lr, spec.warmup_steps) == ("linear", 0.0, 3)
    assert spec.model.seq == 16
    assert spec.activations == "recompute"
    assert spec.eval_epochs == 1
    assert spec_of(no_recomputation=True).activations == "keep"
    made = translate({**CONFIG, "steps": -1, "epochs": 2, "model_name_or_path": "t5-3b"})
    assert made.epochs == 2
    assert "steps" not in made.values
    assert made.values["heads"] == 32
    assert any("statistics" in note for note in made.notes)
    assert any("1f1b is called async-1f1b" in note for note in made.notes)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainer": {"type": "lm_global_grad_norm"}}, "no step in common"),
        ({"trainer": {"type": "chess"}}, "trainer.type is 'chess'"),
        ({"work_scheduler": "2f2b"}, "work_scheduler is '2f2b'"),
        ({"bs_train": "4"}, "bs_train is '4'; it must be a whole number"),
        ({"epochs": 3}, "epochs is 3 and steps is 30"),
        ({"loss_multiplier": 2.59}, "losses are means"),
        ({"optimizer": {"type": "lion"}}, "optimizer.type is 'lion'"),
        ({"lr_scheduler": {"type": "WarmupMultiStepLR"}}, "must be constant, linear or cosine"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_its_key(change, told):
    with pytest.raises(ValueError, match=told):
        translate({**CONFIG, **change})


def test_a_child_overrides_its_bases_and_the_command_line_where_it_is_asked(tmp_path):
    def write(name: str, **values) -> None:
        (tmp_path / name).write_text(json.dumps(values))

    beside = {"base_config_path_is_relative": True}
    write("a.json", seed=1, bs_train=2, steps=5)
    write("b.json", seed=2, base_config_path="a.json", **beside)
    write("c.json", base_config_path=["a.json", "b.json"], steps=9, step_every_from_cmd=True,
          **beside)  # fmt: skip
    config = read(tmp_path / "c.json")
    given = {"seed": 3, "bs_train": 16, "bs_train_from_cmd": True, "step_every": 4, "cpu": True}
    found = merged(config, given)
    assert found == {"seed": 2, "bs_train": 16, "steps": 9, "step_every": 4, "cpu": True}
    with pytest.raises(ValueError, match="step_every_from_cmd is set, and no --step_every"):
        merged(config, {})
    with pytest.raises(ValueError, match="unknown key 'sead'"):
        merged({"sead": 1}, {})
    write("a.json", base_config_path="c.json", **beside)
    with pytest.raises(ValueError, match=r"inherits itself: c.json -> a.json -> c.json"):
        read(tmp_path / "c.json")


def record_of(seed: int, accuracy: float, **changes) -> RunRecord:
    spec = spec_of(seed=seed, **changes)
    told = [
        {"step": 10, "epoch": 1.0, "samples": 4, "loss": 2.0, "accuracy": 0.25},
        {"step": 20, "epoch": 2.0, "samples": 4, "loss": 1.0, "accuracy": accuracy},
    ]
    return RunRecord(
        key=f"run{seed}", method="ftpipe", status="ok", spec=spec.to_dict(), seconds=9.0,
        losses=[3.0] * 10 + [1.0] * 10, step_seconds=[0.5] * 20, evaluations=told,
    )  # fmt: skip


def test_results_have_the_names_and_the_epochs_of_the_original():
    name, found = results_of(record_of(7, 0.5))
    assert name == "results_gpt_stdlib_stale_bs_20_se_5_seed_7.json"
    assert found["results"] == {
        "num_epochs": 2, "train_loss": [3.0, 1.0], "test_loss": [2.0, 1.0],
        "test_acc": [25.0, 50.0],
    }  # fmt: skip
    config = found["config"]
    assert (config["bs_train"], config["step_every"], config["work_scheduler"]) == (4, 5, "1f1b")
    assert config["train_epochs_times"] == [5.0, 5.0]
    assert config["exp_total_time"] == 9.0
    json.dumps(found, allow_nan=False)


def test_figures_over_seeds_are_by_algorithm_and_batch():
    records = [record_of(1, 0.5), record_of(2, 0.7), record_of(3, 0.9, step_every=2)]
    rows = {(row.accumulated, row.figure): row for row in results(records, "cv")}
    both, alone = rows[5, "accuracy"], rows[2, "accuracy"]
    assert both.algorithm == "ftpipe, cut 5 5 4 4, map 0 1 0 1"
    assert both.seeds == (1, 2)
    assert both.mean == pytest.approx(0.6)
    assert both.spread == pytest.approx(0.1414, rel=1e-3)
    assert (both.least, both.most, both.batch, alone.batch) == (0.5, 0.7, 20, 8)
    assert alone.runs == 1
    assert alone.spread is None
    assert results(records, "squad") == []
