"""CIFAR-10 and CIFAR-100 as they were published for programs in C. Imports no torch.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). The binary version is
read: records of a label (CIFAR-100: the coarse one, then the fine one, which counts) and 32 x 32
bytes of red, of green and of blue. Files are mapped, so that a process reads only what it asks
for. The version for Python is pickled, which could run anything, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from workbench.core.sources import file_digest

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A data set as it was published for programs in C."""

    name: str
    folder: str
    """Its name in the download."""
    train: tuple[str, ...]
    test: str
    labels: int
    """Bytes of labels before each picture, of which the last one counts."""
    classes: int
    pickled: tuple[str, str]
    """Folder and first file of the version for Python."""
    download: str

    @property
    def record(self) -> int:
        """Bytes of a label and its picture."""
        return self.labels + PIXELS


VERSIONS = (
    Version(
        name="CIFAR-10", folder="cifar-10-batches-bin", test="test_batch.bin", labels=1, classes=10,
        train=tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
        pickled=("cifar-10-batches-py", "data_batch_1"), download="cifar-10-binary.tar.gz",
    ),
    Version(
        name="CIFAR-100", folder="cifar-100-binary", test="test.bin", labels=2, classes=100,
        train=("train.bin",), pickled=("cifar-100-python", "train"),
        download="cifar-100-binary.tar.gz",
    ),
)  # fmt: skip


def cifar_at(source: str | Path) -> tuple[Version, list[Path]] | None:
    """The version that lies at a path, and its files: of a folder the training part, else the file
    of a part. None where there is none. Raises ValueError for the version for Python, and for a
    training part of which a file is missing."""
    path = Path(source)
    for version in VERSIONS:
        if path.name in (*version.train, version.test) and path.is_file():
            return version, [path]
        for folder in (path, path / version.folder):
            files = [folder / name for name in version.train]
            found = [file.is_file() for file in files]
            if all(found):
                return version, files
            if any(found):
                missing = files[found.index(False)].name
                raise ValueError(f"there is no {missing} in {str(folder)!r}; {version.name} has it")
        folder, file = version.pickled
        if any((at / file).is_file() for at in (path, path / folder)):
            raise ValueError(
                f"{str(source)!r} has {version.name} for Python, which is pickled and could run "
                f"anything; download the binary version, {version.download}"
            )
    return None


def read_cifar(version: Version, files: list[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pictures [n, 3, 32, 32] uint8, mapped, and labels [n] int64 of each file. Raises ValueError,
    one sentence with the file, for what is no whole number of records, and for a label that the
    data set does not have."""
    parts = []
    for file in files:
        nbytes = file.stat().st_size
        if not nbytes or nbytes % version.record:
            raise ValueError(
                f"{file.name} has {nbytes} bytes; {version.name} has records of {version.record} "
                f"bytes, at least one: unpack {version.download} again"
            )
        records = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, version.record)
        labels = records[:, version.labels - 1].astype(np.int64)
        if (wrong := labels >= version.classes).any():
            at = int(wrong.argmax())
            raise ValueError(
                f"{file.name} record {at + 1} has the label {labels[at]}; those of {version.name} "
                f"are 0 to {version.classes - 1}"
            )
        parts.append((records[:, version.labels :].reshape(-1, 3, SIDE, SIDE), labels))
    return parts


def digest_of(files: list[Path]) -> str:
    """SHA-256 of the bytes of all files."""
    return sha256("".join(map(file_digest, files)).encode()).hexdigest()
