"""CIFAR's published files and the bundled digits as pictures; one sentence for all else."""

import numpy as np
import pytest
import torch

from workbench.cli import main
from workbench.core.model_spec import ModelSpec
from workbench.model.cifar import VERSIONS, cifar_at, read_cifar
from workbench.model.digits import read_digits
from workbench.model.families import load_data
from workbench.model.keys import place_of

MODEL = {"family": "wide-resnet", "layers": 3, "hidden": 8, "seq": 32}
TEN, HUNDRED = VERSIONS


def write(folder, version, count=3, part=None):
    """Files of a version with random pictures: (pictures [n, 3, 32, 32], labels [n])."""
    generator = np.random.default_rng(1)
    for name in part or version.train:
        labels = generator.integers(0, version.classes, (count, version.labels), dtype=np.uint8)
        bytes_ = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, bytes_], axis=1).tobytes())
        yield bytes_.reshape(-1, 3, 32, 32), labels[:, -1].astype(np.int64)


def load(source, classes, **changes):
    spec = ModelSpec(**{**MODEL, "vocab": classes, **changes})
    return load_data(spec, source, "bytes", seed=1, cache=None)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_the_binary_version(version, tmp_path):
    (tmp_path / version.folder).mkdir()
    parts = [*write(tmp_path / version.folder, version)]
    expected = np.concatenate([pictures for pictures, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    data = load(tmp_path, version.classes)
    assert (data.name, len(data)) == (version.name, len(labels))
    made, told = data.rows(range(len(data)))
    at = [place_of(sample, len(data), 1) for sample in range(len(data))]
    assert told.tolist() == labels[at].tolist()
    for channel in range(3):  # normed, so what they were but for place and size
        seen = np.stack([made[:, channel].numpy().ravel(), expected[at, channel].ravel()])
        assert np.corrcoef(seen)[0, 1] == pytest.approx(1.0)
        assert abs(float(made[:, channel].mean())) < 0.2
    assert load(tmp_path / version.folder, version.classes).digest == data.digest
    [_] = write(tmp_path, version, part=[version.test])  # a part by its file
    assert cifar_at(tmp_path / version.test) == (version, [tmp_path / version.test])
    assert len(load(tmp_path / version.test, version.classes)) == 3
    assert load(tmp_path, version.classes, seq=16).rows([0])[0].shape == (1, 3, 16, 16)


def test_files_are_mapped(tmp_path):
    [*write(tmp_path, HUNDRED)]
    [(pictures, labels)] = read_cifar(HUNDRED, [tmp_path / "train.bin"])
    assert isinstance(pictures, np.memmap)
    assert pictures.shape == (3, 3, 32, 32)
    assert labels.dtype == np.int64


def test_refuses_other_files(tmp_path, capsys):
    [*write(tmp_path, TEN)]
    file = tmp_path / "data_batch_2.bin"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    words = ["run", "-m", "plain", "--set", "family=wide-resnet", "--text", str(tmp_path)]
    assert main([*words, "--vocab", "10", "--results", str(tmp_path / "results")]) == 2
    told = "data_batch_2.bin has 9218 bytes; CIFAR-10 has records of 3073 bytes, at least one"
    assert told in capsys.readouterr().err
    file.write_bytes(data[: TEN.record] + b"\x0a" + data[TEN.record + 1 :])
    with pytest.raises(ValueError, match="data_batch_2.bin record 2 has the label 10; those of"):
        load(tmp_path, 10)
    file.write_bytes(data)
    with pytest.raises(ValueError, match="CIFAR-10 has 10 classes, and the model tells 9 apart"):
        load(tmp_path, 9)
    file.unlink()
    with pytest.raises(ValueError, match=r"there is no data_batch_2.bin in '.*'; CIFAR-10 has it"):
        load(tmp_path, 10)
    assert not (tmp_path / "results" / "runs").exists()


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_never_unpickles(version, tmp_path):
    folder, name = version.pickled
    (tmp_path / folder).mkdir()
    (tmp_path / folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    for source in (tmp_path, tmp_path / folder):
        with pytest.raises(ValueError, match=f"pickled .* binary version, {version.download}"):
            load(source, version.classes)


def test_digits():
    pictures, labels = read_digits()
    others, told = read_digits("test")
    assert (len(pictures), len(others)) == (1347, 450)
    assert pictures.max() == others.max() == 16
    assert np.bincount(np.concatenate([labels, told])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    data = load("digits", 10, seq=8)
    rows, targets = data.rows(range(1347))
    assert sorted(targets.tolist()) == sorted(labels.tolist())
    assert rows.shape == (1347, 3, 8, 8)
    assert torch.equal(rows[:, 0], rows[:, 2])
    with pytest.raises(ValueError, match="digits have no part 'val'; it is one of train, test"):
        read_digits("val")


def test_digits_are_no_text(tmp_path, capsys):
    words = ["run", "-m", "plain", "--text", "digits", "--results", str(tmp_path)]
    for family, told in (("t5", "t5 reads texts"), ("gpt", "the model reads a text")):
        assert main([*words, "--set", f"family={family}", "--vocab", "300"]) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
