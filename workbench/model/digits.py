"""Handwritten digits that come with this package (data/README.md). Imports no torch.

1,797 pictures of 8 x 8 pixels, 0 to 16 each, by 13 people, in the order in which they were written.
Three of four are trained on, which are the same for everyone; the others are held out.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from workbench.model.keys import permuted

FILE = Path(__file__).parent / "data" / "digits.csv.gz"
CLASSES = 10
SIDE = 8
BRIGHTEST = 16
TRAINED = 1347
"""Digits of the training part: three of four."""
PARTS = ("train", "test")


@cache
def read_digits(part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Pictures [n, 8, 8] uint8, 0 to 16, and labels [n] int64, neither to be written to: 1,347 of
    ``train`` or the 450 others, of ``test``. Raises ValueError for another part."""
    if part not in PARTS:
        raise ValueError(f"digits have no part {part!r}; it is one of {', '.join(PARTS)}")
    rows = np.loadtxt(gzip.decompress(FILE.read_bytes()).decode().splitlines(), delimiter=",")
    order = [permuted(place, len(rows), "digits", "part") for place in range(len(rows))]
    own = order[:TRAINED] if part == PARTS[0] else order[TRAINED:]
    pictures = rows[own, :-1].astype(np.uint8).reshape(-1, SIDE, SIDE)
    labels = rows[own, -1].astype(np.int64)
    for array in (pictures, labels):
        array.flags.writeable = False
    return pictures, labels


def digest_of(part: str = "train") -> str:
    """SHA-256 of a part's pictures and labels."""
    pictures, labels = read_digits(part)
    return sha256(pictures.tobytes() + labels.tobytes()).hexdigest()
