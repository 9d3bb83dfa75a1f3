"""CIFAR-10 and CIFAR-100 as they were published for programs in C. Imports no torch.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). Records are a label
(CIFAR-100: the coarse one, then the fine one, which counts) and 32 x 32 bytes of red, of green and
of blue. Files are mapped, so that a process reads only what it asks for. The version for Python is
pickled, which could run anything, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIDE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A data set in its binary version."""

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


def cifar_at(path: Path, held_out: bool = False) -> tuple[Version, list[Path]] | None:
    """The version that lies at a path, and its files: of a folder the training part, or the other
    where it is `held_out`, else the file of a part. None where there is none. Raises ValueError for
    the version for Python, and for a training part of which a file is missing."""
    for version in VERSIONS:
        if path.name in (*version.train, version.test) and path.is_file():
            return None if held_out else (version, [path])
        for folder in (path, path / version.folder):
            files = [folder / name for name in ([version.test] if held_out else version.train)]
            missing = [file.name for file in files if not file.is_file()]
            if not missing:
                return version, files
            if len(missing) < len(files):
                raise ValueError(f"there is no {missing[0]} in {str(folder)!r} with the others")
        folder, file = version.pickled
        if (path / file).is_file() or (path / folder / file).is_file():
            raise ValueError(
                f"{str(path)!r} has {version.name} for Python, which is pickled and could run "
                f"anything; download the binary version, {version.download}"
            )
    return None


def read_cifar(version: Version, files: list[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pictures [n, 3, 32, 32] uint8, mapped, and labels [n] int64 of each file. Raises ValueError,
    one sentence with the file, for what is no whole number of records, and for a label that the
    data set does not have."""
    parts, record = [], version.labels + 3 * SIDE * SIDE
    for file in files:
        nbytes = file.stat().st_size
        if not nbytes or nbytes % record:
            raise ValueError(
                f"{file.name} has {nbytes} bytes; {version.name} has records of {record} bytes, at "
                f"least one: unpack {version.download} again"
            )
        records = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, record)
        labels = records[:, version.labels - 1].astype(np.int64)
        if (wrong := labels >= version.classes).any():
            at = int(wrong.argmax())
            raise ValueError(
                f"{file.name} record {at + 1} has the label {labels[at]}; those of {version.name} "
                f"are 0 to {version.classes - 1}"
            )
        parts.append((records[:, version.labels :].reshape(-1, 3, SIDE, SIDE), labels))
    return parts
