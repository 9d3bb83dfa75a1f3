"""A run keeps what it has saved, and continues no other run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baselines import l2l
from tests.methods.harness import Silent, assert_equals_plain, run, start, unseal
from tests.methods.plain import MODEL
from workbench import cli
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.manifest import MANIFEST
from workbench.training.run import Training

Ended = Callable[[Path], tuple[Training, dict[str, Tensor]]]
"""Leaves in a folder what a run of STRONGHOLD to its end has left, and gives training and
parameters."""


def saved(folder) -> list[str]:
    """Names in the folder of checkpoints, hidden ones too."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def one_by_one(limit: int, error: BaseException):
    """`save_file` that raises `error` at its call number `limit` and from then on."""
    real, calls = checkpoint.save_file, 0

    def save_file(*args):
        nonlocal calls
        calls += 1
        if calls >= limit:
            raise error
        real(*args)

    return save_file


@pytest.fixture
def spec(spec_for):
    return spec_for(window=2, resident=0, steps=6, lr_decay_steps=20, save_every=2)


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Callable:
    """Trains a spec, once for all that ask."""

    @cache
    def made(spec):
        folder = tmp_path_factory.mktemp("ended")
        return *run(stronghold, spec, folder), folder

    return made


@pytest.fixture
def ended(once, spec) -> Ended:
    def copied(to: Path):
        *found, folder = once(spec)
        shutil.copytree(folder, to, dirs_exist_ok=True)
        return found

    return copied


def test_killed_while_saving(spec, ended, tmp_path, monkeypatch):
    """The half of a checkpoint is no checkpoint, and goes with the next one that is saved."""
    whole, expected = ended(tmp_path / "whole")
    monkeypatch.setattr(checkpoint, "save_file", one_by_one(11, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(stronghold, spec, tmp_path)
    monkeypatch.undo()
    assert saved(tmp_path) == ["step-00000002"]
    killed = tmp_path / "checkpoints" / ".step-00000004"  # what SIGKILL leaves there
    killed.mkdir()
    (killed / "unit-00000.safetensors").write_bytes(b"half")
    again, parameters = run(stronghold, spec, tmp_path)
    assert again.executor.step_numbers == [2, 3, 4, 5]
    assert saved(tmp_path) == ["step-00000004", "step-00000006"]
    assert again.history.losses == whole.history.losses
    for name, value in expected.items():
        assert torch.equal(parameters[name], value), name


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), checkpoint.SafetensorError("I/O error: os error 28")],
)
def test_a_full_disk_costs_the_checkpoint_and_nothing_else(spec, tmp_path, monkeypatch, error):
    training, report = start(stronghold, spec, tmp_path), Silent()
    # Seven units: the first checkpoint is written, the second in part, the third not at all.
    monkeypatch.setattr(checkpoint, "save_file", one_by_one(10, error))
    training.run(report)
    parameters = training.parameters()
    training.close()
    assert_equals_plain(spec, training, parameters)
    assert saved(tmp_path) == ["step-00000002"]
    assert [kind for kind, _ in report.events if "saved" in kind] == [
        "saved", "not_saved", "not_saved",
    ]  # fmt: skip
    (note,) = [note for note in training.outcome("test").notes if "not written" in note]
    assert "2 checkpoints were not written; the first: the checkpoint step-00000004" in note
    monkeypatch.undo()
    again, _ = run(stronghold, spec, tmp_path)
    assert again.executor.step_numbers[0] == 2
    assert again.history.losses == training.history.losses


def damage(path, how: str) -> None:
    file = path / "unit-00003.safetensors"
    data = bytearray(file.read_bytes())
    if how == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif how == "gone":
        file.unlink()
    elif how == "without manifest":
        (path / MANIFEST).unlink()
    elif how == "one update more":
        told = (path / MANIFEST).read_text()
        (path / MANIFEST).write_text(told.replace('"updates_done": 6', '"updates_done": 7'))
    elif how == "flipped":
        data[-5] ^= 1  # a bit of a weight
        file.write_bytes(data)
    else:
        data[8:16] = b"\xff" * 8  # the header that says what lies where
        file.write_bytes(data)


@pytest.mark.parametrize(
    "how", ["cut", "gone", "garbled", "flipped", "without manifest", "one update more"]
)
def test_a_damaged_checkpoint_is_passed_over_and_named(spec, ended, tmp_path, how):
    whole, _ = ended(tmp_path)
    damage(tmp_path / "checkpoints" / "step-00000006", how)
    again, parameters = run(stronghold, spec, tmp_path)
    assert again.executor.step_numbers == [4, 5]
    assert again.history.losses == whole.history.losses
    assert_equals_plain(spec, again, parameters)
    assert saved(tmp_path) == ["step-00000004", "step-00000006"]
    (note,) = again.history.notes
    named = "manifest.json" if how in ("without manifest", "one update more") else "unit-00003"
    assert note.startswith(f"the checkpoint step-00000006 cannot be read: {named}")
    assert note.endswith("; the run went on from step-00000004")


def test_garbled_checkpoints_only_are_not_a_new_beginning(spec, ended, tmp_path):
    ended(tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        damage(path, "garbled")
    with pytest.raises(ValueError, match="cannot be read: .*; remove .*checkpoints to begin anew"):
        run(stronghold, spec, tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 8}, "was made with batch 4, this run has 8"),
        ({"seed": 1}, "was made with seed 1234, this run has 1"),
        ({"clip": None}, "was made with clip 0.5, this run has None"),
        (
            {"model": replace(MODEL, dropout=0.0)},
            "dropout 0.1, this run has 0.0: .* set dropout to",
        ),
        ({"text": __file__}, "was made with text of SHA-256"),
        (
            {"steps": 12, "lr_decay_steps": None},
            "set lr_decay_steps to 20, or remove the checkpoint",
        ),
    ],
)
def test_another_training_is_not_continued(spec, ended, tmp_path, changes, sentence):
    ended(tmp_path)
    before = saved(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        run(stronghold, spec.with_(**changes), tmp_path)
    assert saved(tmp_path) == before


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_methods_continue_one_another(spec, tmp_path, tier):
    """Resident, then L2L with accumulation, then STRONGHOLD: one training."""
    run(resident, spec.with_(steps=2), tmp_path)
    run(l2l, spec.with_(steps=4, microbatches=2, optimizer_tier=tier), tmp_path)
    last, parameters = run(stronghold, spec.with_(optimizer_tier=tier), tmp_path)
    assert last.executor.step_numbers == [4, 5]
    assert_equals_plain(spec, last, parameters)


def test_a_run_that_has_all_its_steps_claims_no_bytes(spec, ended, tmp_path):
    """Killed after the last checkpoint and before its record: nothing was moved this time."""
    whole, _ = ended(tmp_path)
    again, _ = run(stronghold, spec, tmp_path)
    outcome = again.outcome("test")
    assert outcome.losses == whole.history.losses
    assert set(outcome.moved_bytes.values()) == {None}
    assert outcome.peak_bytes["device"] is None
    assert "no bytes were counted" in outcome.notes[-1]


def test_a_checkpoint_of_before_manifests_were_sealed_is_read_once_it_is_trusted(
    spec, ended, tmp_path
):
    whole, _ = ended(tmp_path)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    unseal(older, sums=False)  # as written before there were any checksums
    unseal(newer)
    with pytest.raises(ValueError, match=f"`workbench trust {newer}` rewrites one that you trust"):
        run(stronghold, spec, tmp_path)
    assert cli.main(["trust", str(tmp_path)]) == 0
    again, _ = run(stronghold, spec, tmp_path)
    assert again.executor.step_numbers == []
    assert again.history.losses == whole.history.losses
