"""A run goes on from another one's checkpoint, under another method, packs and number of ranks."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from baselines import data_parallel, fsdp, l2l
from baselines import plain as torch_plain
from tests.methods import plain
from tests.methods.harness import Silent, fork_ranks
from tests.methods.harness import run as train
from tests.methods.torch_named import gpipe, one_f_one_b
from workbench import cli
from workbench.cli.words import BAD_INPUT, INTERRUPTED
from workbench.core import methods
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import stronghold
from workbench.runs.resolve import resolve
from workbench.runs.store import Store
from workbench.runtime.checkpoint.continues import check_continues, decided_by
from workbench.runtime.checkpoint.manifest import MANIFEST, Manifest, Saved

FIRST, STEPS = 3, 6


@pytest.fixture
def store(tmp_path: Path, measured: Path) -> Store:
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    return Store(tmp_path / "results")


def spec_for(method: str, **changes) -> RunSpec:
    return plain.spec_for(**{"method": method, "steps": STEPS, "lr_decay_steps": STEPS, **changes})


@pytest.mark.slow
def test_one_training_under_three_methods(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By key and by folder; the losses are those of one that was never stopped."""
    first = spec_for("stronghold", steps=FIRST, save_every=FIRST)
    began, _ = train(stronghold, first, store.folder("first"))
    more = {"ranks": 2, "save_every": 2, "steps": 4, "start_from": "first"}
    fork_ranks(monkeypatch)
    second = store.folder("second")
    methods.load("harmony-pp").train(spec_for("harmony-pp", **more), Silent(), second)
    third = spec_for("l2l", start_from=str(second))
    ended, _ = train(l2l, third, tmp_path / "third")
    expected, _ = plain.train(spec_for("plain"))
    assert ended.history.losses == pytest.approx(expected, rel=1e-6)
    assert ended.history.losses[:FIRST] == began.history.losses
    assert len(ended.history.step_seconds) == 2, "those of this method"


@pytest.mark.slow
def test_torchs_own_training_goes_on_from_ours_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes one step or two more, from the checkpoint of the one before."""
    fork_ranks(monkeypatch)
    methods = (stronghold, torch_plain, one_f_one_b, data_parallel, fsdp, gpipe, stronghold)
    last, seen = "", []
    for end, method in enumerate(methods, start=2):
        name = f"{end}-{method.__name__}"
        ranks = 2 if method in (one_f_one_b, data_parallel, gpipe) else 1
        spec = spec_for(
            "plain", steps=end, lr_decay_steps=20, save_every=1, start_from=last, ranks=ranks,
            microbatches=2, activations="recompute",
        )  # fmt: skip
        if method is stronghold:
            own = spec.with_(method="stronghold")
            training, _ = train(stronghold, own, tmp_path / name)
            losses, steps = training.history.losses, training.history.step_seconds
        else:
            outcome = method.train(spec, Silent(), tmp_path / name)
            losses, steps = outcome.losses, outcome.step_seconds
        assert losses[: len(seen)] == seen
        assert len(steps) == len(losses) - len(seen)
        last, seen = name, losses
    expected, _ = plain.train(spec.with_(start_from="", save_every=0))
    assert seen == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start_from": "another"}, "there is no such folder, and no run of that key in"),
        ({"lr": 2e-3}, "was made with lr 0.001, this run has 0.002"),
    ],
)
def test_what_cannot_be_gone_on_from_is_one_sentence(tmp_path: Path, changes, words) -> None:
    train(stronghold, spec_for("stronghold", steps=FIRST, save_every=FIRST), tmp_path / "first")
    spec = spec_for("l2l", **{"start_from": "first", **changes})
    with pytest.raises(ValueError, match=words):
        train(l2l, spec, tmp_path / "second")


def test_a_configuration_that_was_moved_is_the_same_model_and_its_weights_fit(
    tmp_path: Path,
) -> None:
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "seq": 8, "vocab": 256, "config_digest": "d"}
    there, here = (ModelSpec(family=f"/{at}/config.json", **sizes) for at in ("there", "here"))
    begun = decided_by(spec_for("plain", model=there))
    lists = ("losses", "step_seconds", "grad_norms", "skipped")
    none = {"next_step": 0, "updates_done": 0, **{name: [] for name in lists}}
    saved = Saved(tmp_path / "step-00000000", Manifest(**none, continues=begun))
    go_on = partial(check_continues, saved, folder=tmp_path / "own")
    go_on(decided_by(spec_for("plain", model=here)))
    with pytest.raises(ValueError, match="was made with family /there/config.json"):
        go_on(decided_by(spec_for("plain", model=replace(here, config_digest="other"))))
    for changes in ({"model": replace(here, seq=4)}, {"model": here, "lr": 1.0}):
        with pytest.raises(ValueError, match="give --weights instead of start_from"):
            go_on(decided_by(spec_for("plain", **changes)))
    with pytest.raises(ValueError, match=r"set hidden to 16, or begin"):
        go_on(decided_by(spec_for("plain", model=replace(here, hidden=8))))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 2e-3}, "was made with lr 0.001, this run has 0.002"),
        ({"batch": 2}, "was made with batch 4, this run has 2"),
        ({"seed": 7}, "was made with seed"),
        ({"text": "other.txt"}, "train on that text"),
        ({"eval_every": 1}, "train on that text"),
        ({"method": "zero-offload"}, "has checkpoints of its engine's own form"),
        ({"steps": FIRST - 1}, "no whole checkpoint of at most 2 steps in"),
        ({"start_from": "{checkpoint}"}, "no run, but a checkpoint; give its run"),
        ({"start_from": "torn"}, "is missing, or has not all of its"),
        ({"start_from": "flipped"}, "has no valid checksum"),
        ({}, ""),
    ],
    ids=str,
)
def test_a_command_refuses_a_start_before_it_writes_anything(
    changes, words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """All that manifests and the text tell; the last one is let through."""
    store, began = Store(tmp_path / "results"), spec_for("stronghold", steps=FIRST)
    train(stronghold, began.with_(save_every=FIRST), first := store.folder("first"))
    (saved,) = (first / "checkpoints").glob("step-*")
    for key, file, size in (("torn", "unit-00002.safetensors", 9), ("flipped", MANIFEST, 99)):
        shutil.copytree(first, store.folder(key))
        os.truncate(store.folder(key) / "checkpoints" / saved.name / file, size)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text("a text of few words, " * 99)
    spec = spec_for(**{"method": "l2l", "start_from": "first"} | changes)
    spec = spec.with_(start_from=spec.start_from.format(checkpoint=saved))
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict()))
    there = {*tmp_path.rglob("*")}
    monkeypatch.setattr("workbench.runs.runner.run", Mock(side_effect=KeyboardInterrupt))
    asked = ["run", "--spec", "spec.json", "--results", str(store.root)]
    assert cli.main(asked) == (BAD_INPUT if words else INTERRUPTED)
    assert words in capsys.readouterr().err
    assert {*tmp_path.rglob("*")} == there


@pytest.mark.parametrize("method", ["harmony-pp", "l2l", "pp-swap"])
def test_what_is_not_there_is_said_before_anything_is_measured(tmp_path: Path, method) -> None:
    spec = spec_for(method, start_from=str(tmp_path / "none"), ranks=1 if method == "l2l" else 2)
    report = Silent()
    with pytest.raises(ValueError, match="there is no such folder, and no run of that key in"):
        methods.load(method).train(spec, report, tmp_path / "runs" / "second")
    assert report.events in ([], [("phase", {"text": "making the model, reading the data"})])
    assert not (tmp_path / "profiles").exists()


def test_what_cannot_be_read_is_named_where_it_lies(tmp_path: Path) -> None:
    """In the folder of the run to start from, not in that of the new one."""
    train(stronghold, spec_for("stronghold", steps=FIRST, save_every=FIRST), tmp_path / "first")
    (saved_,) = (tmp_path / "first" / "checkpoints").glob("step-*")
    file = saved_ / "unit-00002.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(ValueError, match=f"remove {saved_.parent} to begin anew"):
        train(l2l, spec_for("l2l", start_from="first"), tmp_path / "second")


def test_an_engine_with_checkpoints_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="zero-offload has checkpoints of its engine's own form"):
        resolve(spec_for("zero-offload", start_from="0123456789abcdef"))
