"""CIFAR's published files and the bundled digits as pictures; one sentence for all else."""

import itertools

import numpy as np
import pytest
import torch

from workbench.cli import main
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.cifar import VERSIONS, cifar_at, read_cifar
from workbench.model.digits import read_digits
from workbench.model.families import holds_out, load_data
from workbench.model.held_out import load_part
from workbench.model.keys import place_of

TEN, HUNDRED = VERSIONS


def write(folder, version, names=None):
    """Files of a version with three random pictures each; pictures and labels of all."""
    generator, parts = np.random.default_rng(1), []
    for name in names or version.train:
        labels = generator.integers(0, version.classes, (3, version.labels), dtype=np.uint8)
        values = generator.integers(0, 256, (3, 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.concatenate([labels, values], axis=1).tobytes())
        parts.append((values.reshape(-1, 3, 32, 32), labels[:, -1]))
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def load(source, classes, seq=32):
    spec = ModelSpec(family="wide-resnet", layers=3, hidden=8, seq=seq, vocab=classes)
    return load_data(spec, source, "bytes", seed=1, cache=None)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_binary_version(version, tmp_path):
    inner = tmp_path / version.folder
    inner.mkdir()
    expected, labels = write(inner, version)
    data = load(tmp_path, version.classes)
    made, told = data.rows(range(len(data)))
    at = [place_of(sample, len(data), 1) for sample in range(len(data))]
    assert told.tolist() == labels[at].tolist()
    for colour in range(3):  # normed, so what they were but for place and size
        seen = np.stack([made[:, colour].numpy().ravel(), expected[at, colour].ravel()])
        assert np.corrcoef(seen)[0, 1] == pytest.approx(1.0)
    assert load(inner, version.classes, seq=16).rows([0])[0].shape == (1, 3, 16, 16)
    write(tmp_path, version, [version.test])  # a part by its file, which is mapped
    assert isinstance(read_cifar(*cifar_at(tmp_path / version.test))[0][0], np.memmap)


def test_refuses_other_files(tmp_path, capsys):
    write(tmp_path, TEN)
    file = tmp_path / "data_batch_2.bin"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    words = ["run", "-m", "plain", "--set", "family=wide-resnet", "--text", str(tmp_path)]
    assert main([*words, "--vocab", "10", "--results", str(tmp_path / "results")]) == 2
    assert "data_batch_2.bin has 9218 bytes; CIFAR-10 has records of" in capsys.readouterr().err
    assert not (tmp_path / "results" / "runs").exists()
    file.write_bytes(data[:3073] + b"\x0a" + data[3074:])
    with pytest.raises(ValueError, match="data_batch_2.bin record 2 has the label 10; those of"):
        load(tmp_path, 10)
    file.unlink()
    with pytest.raises(ValueError, match=r"there is no data_batch_2.bin in '.*' with the others"):
        load(tmp_path, 10)


@pytest.mark.parametrize("version", VERSIONS)
def test_never_unpickles(version, tmp_path):
    folder, name = version.pickled
    (tmp_path / folder).mkdir()
    (tmp_path / folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=f"pickled .* binary version, {version.download}"):
        load(tmp_path, version.classes)


def test_digits(tmp_path, capsys):
    (pictures, labels), (others, told) = read_digits(), read_digits("test")
    assert (len(pictures), len(others)) == (1347, 450)
    assert pictures.max() == others.max() == 16
    every = np.bincount(np.concatenate([labels, told])).tolist()
    assert every == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    rows, targets = load("digits", 10, seq=8).rows(range(1347))
    assert (sorted(targets.tolist()), rows.shape) == (sorted(labels.tolist()), (1347, 3, 8, 8))
    words = ["run", "-m", "plain", "--text", "digits", "--results", str(tmp_path)]
    for family, told in (("t5", "t5 reads texts"), ("gpt", "the model reads a text")):
        assert main([*words, "--set", f"family={family}", "--vocab", "300"]) == 2
        assert told in capsys.readouterr().err


def test_held_out_parts_are_their_own(tmp_path):
    write(tmp_path, TEN, [*TEN.train, TEN.test])
    for source, counts in (("digits", (1347, 450)), (tmp_path, (15, 3))):
        spec = ModelSpec(family="wide-resnet", layers=3, hidden=8, seq=8, vocab=10)
        parts = [load_data(spec, source, "", seed=1, cache=None, held_out=h) for h in (False, True)]
        assert holds_out(spec, source)
        assert tuple(map(len, parts)) == counts
        assert parts[0].digest != parts[1].digest
    assert not holds_out(spec, tmp_path / TEN.test)


def test_pictures_are_moved_and_mirrored_by_seed_and_sample():
    """However samples are grouped, and not in evaluations; an epoch later otherwise."""
    model = ModelSpec(family="wide-resnet", layers=3, hidden=8, seq=8, vocab=10)
    given = {"method": "plain", "model": model, "text": "digits", "seed": 5, "eval_every": 1}
    spec = RunSpec.of(**given, augment="crop-flip")
    made = make_model(model)
    (as_is, moved), (shown, asked) = (
        [load_part(one, made, held_out=held) for one in (RunSpec.of(**given), spec)]
        for held in (False, True)
    )
    samples = range(96)
    (plain, labels), (pictures, same) = as_is.rows(samples), moved.rows(samples)
    assert torch.equal(labels, same)
    assert as_is.digest != moved.digest
    torch.testing.assert_close(shown.rows(range(8)), asked.rows(range(8)), rtol=0, atol=0)
    seen = set()
    for sample in samples:
        assert torch.equal(moved.rows([sample])[0][0], pictures[sample])
        around = torch.nn.functional.pad(plain[sample], (1,) * 4)
        for down, right, flip in itertools.product(range(3), range(3), (False, True)):
            crop = around[:, down : down + 8, right : right + 8]
            if torch.equal(crop.flip(-1) if flip else crop, pictures[sample]):
                seen.add((down, right, flip))
                break
        else:
            pytest.fail(f"sample {sample} is no crop")
    assert len(seen) == 18
    again = [g for g in range(1347, 2 * 1347) if torch.equal(as_is.rows([g])[0][0], plain[0])]
    assert not torch.equal(moved.rows(again)[0][0], pictures[0])
    with pytest.raises(ValueError, match="augment is 'crop-flip'; gpt reads no pictures of ours"):
        RunSpec.of(method="plain", augment="crop-flip")
