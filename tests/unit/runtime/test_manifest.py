"""The manifest of a checkpoint is checked whole, and its folder keeps a whole checkpoint."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.methods.harness import Silent, unseal
from workbench import cli
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.continues import TEXT, check_start, decided_by
from workbench.runtime.checkpoint.manifest import MANIFEST, Manifest, Saved, publish
from workbench.training.history import History

UNIT = "unit-00000.safetensors"
SPEC = RunSpec(method="plain", steps=50, save_every=1, model=ModelSpec(hidden=64))


def made_up(folder: Path, continues: dict, name: str = UNIT) -> Path:
    """A checkpoint of two steps, the last of which was skipped."""
    (folder / ".step").mkdir(parents=True)
    (folder / ".step" / name).write_bytes(b"weights")
    done = {"next_step": 2, "updates_done": 1, "skipped": [1], "step_seconds": [0.1]}
    done |= {"losses": [1.5, float("nan")], "grad_norms": [None, 0.5], "continues": continues}
    return publish(folder / ".step", Manifest(**done))


def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path: Path) -> None:
    path, draw = made_up(tmp_path, {"batch": 4}), random.Random(0)
    data = (path / MANIFEST).read_bytes()
    assert str(Saved.read(path).manifest.losses) == "[1.5, nan]"
    for at in range(len(data)):
        flipped = bytes([data[at] ^ 1 << draw.randrange(8)])
        (path / MANIFEST).write_bytes(data[:at] + flipped + data[at + 1 :])
        with pytest.raises(OSError, match="has no valid checksum"):
            Saved.read(path)


def test_a_sealed_manifest_of_another_version_is_refused(tmp_path, monkeypatch) -> None:
    real = json.dumps
    monkeypatch.setattr(json, "dumps", lambda told, **more: real(told | {"version": 3}, **more))
    with pytest.raises(ValueError, match="version is 3; it must be 2"):
        Saved.read(made_up(tmp_path, {}))


def test_files_are_checked_and_only_read_where_they_are_listed(tmp_path: Path) -> None:
    saved = Saved.read(made_up(tmp_path, {}, checkpoint.STATISTICS))  # "weights" is no such file
    with pytest.raises(OSError, match="the checkpoint step-00000002 cannot be read"):
        checkpoint.statistics(saved)
    unlisted = replace(saved, manifest=replace(saved.manifest, files={}))
    assert checkpoint.statistics(unlisted) == {}
    (saved.path / UNIT).write_bytes(b"added since")
    with checkpoint.reader(saved, 0) as read, pytest.raises(OSError, match="it has no unit-00000"):
        read("weight/x", torch.zeros(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"next_step": 9}, "next_step is 9, beside 2 losses"),
        ({"updates_done": 2}, "and 3 updates and skipped steps"),
        ({"crc33": {}}, "unknown field 'crc33'"),
        ({"losses": ["1.5", "one"]}, "losses[1] is 'one'; it must be a number"),
        ({"crc32": {UNIT: 1}}, "is not the file that the manifest is of"),
        ({"files": ..., "continues": ...}, "does not say which training it is of"),
    ],
)
def test_what_is_not_sound_is_not_trusted(tmp_path, capsys, changes, words) -> None:
    good, bad = made_up(tmp_path / "checkpoints", {}), made_up(tmp_path / "other", {})
    bad = bad.rename(good.parent / "step-00000001")
    unseal(good)
    unseal(bad, **changes)
    before = [(path / MANIFEST).read_bytes() for path in (good, bad)]
    assert cli.main(["trust", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert [(path / MANIFEST).read_bytes() for path in (good, bad)] == before


@pytest.mark.parametrize(
    ("lacks", "adds", "words"),
    [
        ("tied", {}, None),
        ("hidden", {}, "made with hidden 2048, this run has 64: .*; set hidden to 2048"),
        ("", {"form": "DeepSpeed"}, "by DeepSpeed in its own form, and nothing else goes on from"),
        ("", {"rope": None}, "made with rope None, which is unknown to this method and version"),
    ],
)
def test_a_field_that_a_checkpoint_lacks_has_its_default(tmp_path, lacks, adds, words) -> None:
    continues = decided_by(SPEC) | {TEXT: "1f"} | adds
    continues["model"].pop(lacks, None)
    made_up(tmp_path / "checkpoints", continues)
    with pytest.raises(ValueError, match=words) if words else nullcontext():
        check_start(SPEC, tmp_path)


def test_on_a_full_disk_the_oldest_makes_room_and_a_whole_one_stays(tmp_path: Path) -> None:
    """Room for two; then for one, of two of which the newer one has a bad block."""
    history, report, room = History(SPEC.with_(save_every=0), tmp_path, None), Silent(), 2

    class Holder:
        def write(self, folder: Path) -> None:
            if len([*tmp_path.glob("*/step-*")]) >= room:
                raise OSError(28, "No space left on device")
            (folder / UNIT).write_bytes(b"weights")

    for step in range(42):
        if step == 40:
            room = 1
            (tmp_path / "checkpoints" / "step-00000040" / UNIT).write_bytes(b"weighty")
        history.ended(step, 1.0, 0.1, None, skipped=False, report=report)
        history.save(step + 1, step + 1, Holder(), report)
        (newest, *_) = checkpoint.whole(tmp_path / "checkpoints")
        assert newest.path.name == f"step-{step + 1 if step < 40 else 39:08d}"
    reason = "the checkpoint step-00000041 was not written: [Errno 28] No space left on device"
    lost = f"2 checkpoints were not written; the first: {reason}"
    assert history.notes == [checkpoint.MADE_ROOM, lost]
