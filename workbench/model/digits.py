"""Handwritten digits that come with this package (data/README.md). Imports no torch.

1,797 pictures of 8 x 8 pixels, 0 to 16 each, by 13 people, in the order in which they were written.
Three of four are trained on, which are the same for everyone; the others are held out.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np

from workbench.model.keys import permuted

FILE = Path(__file__).parent / "data" / "digits.csv.gz"
CLASSES = 10
TRAINED = 1347
"""Digits of the training part."""


@cache
def read_digits(part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Pictures [n, 8, 8] uint8, 0 to 16, and labels [n] int64, neither to be written to: 1,347 of
    ``train`` or the 450 others, of ``test``. Raises ValueError for another part."""
    if part not in ("train", "test"):
        raise ValueError(f"digits have no part {part!r}; it is train or test")
    with gzip.open(FILE, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    order = [permuted(place, len(rows), "digits", "part") for place in range(len(rows))]
    own = rows[order[:TRAINED] if part == "train" else order[TRAINED:]]
    pictures, labels = own[:, :-1].astype(np.uint8).reshape(-1, 8, 8), own[:, -1].copy()
    pictures.flags.writeable = labels.flags.writeable = False
    return pictures, labels
