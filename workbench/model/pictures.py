"""Labelled pictures: a folder of class folders, arrays, or synthetic ones that can be learnt.

A folder is laid out as ImageNet usually is: one folder a class, PNG or JPEG files in it. Pictures
are scaled so that they just cover the wanted size, cut to it in the middle, and normed with
ImageNet's mean and deviation; there is no random augmentation. Pictures of arrays (CIFAR, digits)
are normed with the mean and deviation of their own, of every tenth. A synthetic picture is the
smooth random pattern of its class plus noise, both keyed, so that training has something to find
and nothing is stored.

A sample is found by its number alone, in a fresh keyed order each epoch, as in `text.Batches`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.sources import file_digest
from workbench.model.keys import key, place_of

ENDINGS = {".png", ".jpg", ".jpeg"}
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of ImageNet's training pictures, for red, green and blue in [0, 1]."""
PATTERN = 4
"""A class's pattern has so many random values a side, smoothly enlarged."""


class Pictures(ABC):
    """Pictures with labels; sample g of a run is one of them, by the run's seed and g alone."""

    name: str
    """Name of the source, for people."""
    digest: str
    """SHA-256 of what decides the pictures; see the class."""
    classes: tuple[str, ...]
    """Names of the classes; a label is an index of them."""
    size: tuple[int, int]
    """Height and width in pixels."""
    seed: int
    """The run's seed."""

    @abstractmethod
    def __len__(self) -> int:
        """Samples in one epoch."""

    @abstractmethod
    def label(self, index: int) -> int:
        """Class of one of the pictures."""

    @abstractmethod
    def picture(self, index: int) -> Tensor:
        """One of the pictures, [3, height, width] fp32."""

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Pictures [len(samples), 3, height, width] fp32 and labels [len(samples)] int64, on the
        CPU. Raises ValueError for a file that is no picture."""
        return self.at([place_of(sample, len(self), self.seed) for sample in samples], samples)

    def at(self, places: Sequence[int], samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """As `rows`, of the pictures at some places."""
        with ThreadPoolExecutor() as pool:  # decoding and drawing leave Python's lock alone
            pictures = torch.stack(list(pool.map(self.picture, places)))
        return pictures, torch.tensor([self.label(index) for index in places])


class SyntheticPictures(Pictures):
    """Pattern of the class plus noise of the same size; the digest is of the arguments.

    Classes are equally frequent where `count` is a multiple of them.
    """

    def __init__(self, *, classes: int, count: int, size: tuple[int, int], seed: int) -> None:
        for name, value in (("classes", classes), ("pictures", count), ("pixels", min(size))):
            if value < 1:
                raise ValueError(f"{value} {name} are none; use at least 1")
        self.name = f"{count} synthetic pictures of {classes} classes, train"
        self.digest = sha256(f"{self.name}, {size[0]}x{size[1]}".encode()).hexdigest()
        self.classes = tuple(str(label) for label in range(classes))
        self.size, self.seed, self.count = size, seed, count

    def __len__(self) -> int:
        return self.count

    def label(self, index: int) -> int:
        return index % len(self.classes)

    def picture(self, index: int) -> Tensor:
        pattern = _drawn(3, PATTERN, PATTERN, seed=key("pictures", "pattern", self.label(index)))
        noise = _drawn(3, *self.size, seed=key("pictures", "train", index))
        return F.interpolate(pattern[None], self.size, mode="bilinear")[0] + noise


class FolderPictures(Pictures):
    """``folder/class/file.png``; the digest is of the files' names and sizes, not their bytes.

    Classes are numbered in the order of their names. Raises ValueError when there are no class
    folders, when one holds no pictures, or when Pillow is not installed.
    """

    def __init__(self, folder: str | Path, *, size: tuple[int, int], seed: int) -> None:
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise ValueError(
                "reading pictures needs the package pillow, which is not installed"
            ) from None
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"there is no folder of pictures at {str(folder)!r}")
        if min(size) < 1:
            raise ValueError(f"pictures of {size[0]} x {size[1]} pixels are none")
        self.files: list[Path] = []
        self.labels: list[int] = []
        kinds = sorted(kind for kind in folder.iterdir() if kind.is_dir())
        for label, kind in enumerate(kinds):
            found = sorted(f for f in kind.iterdir() if f.suffix.lower() in ENDINGS and f.is_file())
            if not found:
                raise ValueError(f"the class folder {str(kind)!r} holds no PNG or JPEG file")
            self.files += found
            self.labels += [label] * len(found)
        if not kinds:
            raise ValueError(
                f"{str(folder)!r} holds no class folders; put the pictures of each class in one"
            )
        self.name, self.size, self.seed = folder.name, size, seed
        self.classes = tuple(kind.name for kind in kinds)
        listing = "".join(
            f"{file.parent.name}/{file.name} {file.stat().st_size}\n" for file in self.files
        )
        self.digest = sha256(listing.encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def label(self, index: int) -> int:
        return self.labels[index]

    def picture(self, index: int) -> Tensor:
        from PIL import Image, ImageOps

        path = self.files[index]
        try:
            with Image.open(path) as opened:
                fitted = ImageOps.fit(
                    opened.convert("RGB"), self.size[::-1], Image.Resampling.BILINEAR
                )
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{str(path)!r} is not a picture: {error}") from None
        values = torch.from_numpy(np.array(fitted)).permute(2, 0, 1).float() / 255.0
        mean, deviation = (torch.tensor(three).view(3, 1, 1) for three in (MEAN, DEVIATION))
        return (values - mean) / deviation


class ArrayPictures(Pictures):
    """Pictures of bytes, scaled where the model's have another size; as many arrays as files."""

    def __init__(
        self,
        name: str,
        parts: Sequence[tuple[np.ndarray, np.ndarray]],
        files: Sequence[Path],
        classes: int,
        *,
        size: tuple[int, int],
        seed: int,
    ) -> None:
        """`parts`: pictures [n, 3 or 1, height, width] uint8, of one colour three times the same,
        and labels [n], of each file. The digest is of the files' bytes
        and the name."""
        self.name, self.size, self.seed = name, size, seed
        self.digest = sha256("".join([name, *map(file_digest, files)]).encode()).hexdigest()
        self.classes = tuple(map(str, range(classes)))
        self._pictures = [pictures for pictures, _ in parts]
        self._labels = np.concatenate([labels for _, labels in parts])
        self._ends = np.cumsum([len(pictures) for pictures in self._pictures])
        seen = np.concatenate([each[::10] for each in self._pictures]).astype(np.float32)
        self._mean, self._deviation = (
            torch.from_numpy(of(seen, axis=(0, 2, 3))).view(-1, 1, 1) for of in (np.mean, np.std)
        )

    def __len__(self) -> int:
        return len(self._labels)

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def picture(self, index: int) -> Tensor:
        file = int(np.searchsorted(self._ends, index, side="right"))
        values = self._pictures[file][index - int(self._ends[file])]  # from the end of its file
        picture = (torch.tensor(values).float() - self._mean) / self._deviation.clamp(min=1e-6)
        if picture.shape[1:] != self.size:
            picture = F.interpolate(picture[None], self.size, mode="bilinear", antialias=True)[0]
        return picture.expand(3, -1, -1)


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
