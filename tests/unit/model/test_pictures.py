"""Pictures of class folders or drawn by key: the same for everyone, one sentence if broken."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.model.keys import place_of
from workbench.model.pictures import DEVIATION, MEAN, FolderPictures, SyntheticPictures

ROOT = Path(__file__).resolve().parents[3]
SIZE = (12, 20)
SAMPLES = [5, 0, 1000, 3]


@pytest.fixture
def folder(tmp_path):
    """Two classes of one colour each, 60 x 40 pixels: red PNGs, a blue JPEG and a grey PNG."""
    image = pytest.importorskip("PIL.Image")
    for name in ("red", "other"):
        (tmp_path / name).mkdir()
    for index in range(3):
        image.new("RGB", (60, 40), (255, 0, 0)).save(tmp_path / "red" / f"{index}.png")
    image.new("RGB", (60, 40), (0, 0, 255)).save(tmp_path / "other" / "b.JPEG", quality=95)
    image.new("L", (60, 40), 128).save(tmp_path / "other" / "a.png")
    (tmp_path / "other" / "notes.txt").write_text("no picture")
    return tmp_path


def synthetic(**changes):
    return SyntheticPictures(**{"classes": 4, "count": 10, "size": SIZE, "seed": 1, **changes})


def colour(picture):
    """The mean red, green and blue of a picture, in [0, 1]."""
    values = picture * torch.tensor(DEVIATION).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    return values.mean((1, 2)).tolist()


def test_class_folders(folder):
    pictures = FolderPictures(folder, size=SIZE, seed=1)
    assert len(pictures) == 5
    assert pictures.classes == ("other", "red")
    assert [pictures.label(index) for index in range(5)] == [0, 0, 1, 1, 1]
    expected = [[128 / 255] * 3, [0, 0, 1], *[[1, 0, 0]] * 3]
    for index, values in enumerate(expected):
        assert colour(pictures.picture(index)) == pytest.approx(values, abs=0.02)
    images, labels = pictures.rows(range(5))
    assert images.shape == (5, 3, *SIZE)
    assert images.dtype == torch.float32
    assert [
        pictures.label(place_of(sample, len(pictures), pictures.seed)) for sample in range(5)
    ] == labels.tolist()


def test_pictures_are_scaled_to_cover_and_cut_in_the_middle(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "one").mkdir()
    values = np.zeros((40, 120, 3), dtype=np.uint8)
    values[:, 40:80] = 255  # black, white, black thirds
    image.fromarray(values).save(tmp_path / "one" / "a.png")
    picture = FolderPictures(tmp_path, size=(20, 20), seed=1).picture(0)
    assert colour(picture[:, :, 1:-1]) == pytest.approx([1, 1, 1], abs=0.01)


def test_the_digest_follows_names_and_sizes(folder):
    first = FolderPictures(folder, size=SIZE, seed=1).digest
    assert FolderPictures(folder, size=SIZE, seed=2).digest == first
    (folder / "red" / "2.png").rename(folder / "red" / "9.png")
    second = FolderPictures(folder, size=SIZE, seed=1).digest
    with (folder / "red" / "9.png").open("ab") as file:
        file.write(b" ")
    assert len({first, second, FolderPictures(folder, size=SIZE, seed=1).digest}) == 3


def test_synthetic_pictures_show_their_class():
    pictures = synthetic(count=400)
    by_class = [torch.stack([pictures.picture(4 * i + c) for i in range(100)]) for c in range(4)]
    means = torch.stack([stack.mean(0).flatten() for stack in by_class])
    apart = torch.cdist(means, means) / means[0].numel() ** 0.5  # noise of 100 pictures is 0.14
    assert (apart + torch.eye(4) > 0.4).all()
    assert by_class[0].std(0).mean().item() == pytest.approx(1.0, abs=0.05)


def test_digests_of_synthetic_pictures_follow_what_decides_them():
    first = synthetic().digest
    assert synthetic(seed=2).digest == first
    others = [{"classes": 5}, {"count": 11}, {"size": (20, 12)}]
    assert len({first, *(synthetic(**changes).digest for changes in others)}) == 4


def test_an_epoch_visits_every_picture_once_in_a_new_order():
    pictures = synthetic(count=40)
    epochs = [
        [place_of(40 * epoch + place, len(pictures), pictures.seed) for place in range(40)]
        for epoch in (0, 1)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 2
    assert epochs[0] != epochs[1]
    other = synthetic(count=40, seed=2)
    assert epochs[0] != [place_of(place, len(other), other.seed) for place in range(40)]


@pytest.mark.parametrize("kind", ["folder", "synthetic"])
def test_a_sample_is_the_same_in_any_order(kind, folder):
    pictures = FolderPictures(folder, size=SIZE, seed=1) if kind == "folder" else synthetic()
    before = torch.get_rng_state()
    images, labels = pictures.rows(SAMPLES)
    for place, sample in reversed(list(enumerate(SAMPLES))):
        image, label = pictures.rows([sample])
        assert torch.equal(image[0], images[place])
        assert label[0] == labels[place]
    assert torch.equal(before, torch.get_rng_state())


def test_a_sample_is_the_same_in_any_process():
    images, labels = synthetic().rows(SAMPLES)
    code = (
        "import hashlib; from workbench.model.pictures import SyntheticPictures;"
        f"rows = SyntheticPictures(classes=4, count=10, size={SIZE}, seed=1).rows({SAMPLES});"
        "print(hashlib.sha256(b''.join(v.numpy().tobytes() for v in rows)).hexdigest())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    joined = images.numpy().tobytes() + labels.numpy().tobytes()
    assert answer.stdout.strip() == hashlib.sha256(joined).hexdigest()


@pytest.mark.parametrize("broken", [b"", b"no picture", None])
def test_refuses_a_file_that_is_no_picture(folder, broken):
    path = folder / "red" / "1.png"
    path.write_bytes(path.read_bytes()[:-40] if broken is None else broken)
    with pytest.raises(ValueError, match=r"1.png' is not a picture: ") as error:
        FolderPictures(folder, size=SIZE, seed=1).rows(range(5))
    assert "\n" not in str(error.value)


def test_refuses_folders_without_pictures(folder):
    with pytest.raises(ValueError, match="there is no folder of pictures at"):
        FolderPictures(folder / "nowhere", size=SIZE, seed=1)
    with pytest.raises(ValueError, match="holds no class folders"):
        FolderPictures(folder / "red", size=SIZE, seed=1)
    with pytest.raises(ValueError, match="12 x 0 pixels are none"):
        FolderPictures(folder, size=(12, 0), seed=1)
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="the class folder .*empty' holds no PNG or JPEG file"):
        FolderPictures(folder, size=SIZE, seed=1)


def test_says_when_pillow_is_not_installed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match="needs the package pillow, which is not installed"):
        FolderPictures(folder, size=SIZE, seed=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": 0}, "0 classes are none; use at least 1"),
        ({"count": 0}, "0 pictures are none; use at least 1"),
        ({"size": (0, 4)}, "0 pixels are none; use at least 1"),
    ],
)
def test_refuses_synthetic_pictures_of_nothing(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        synthetic(**changes)
