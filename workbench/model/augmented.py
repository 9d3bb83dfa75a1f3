"""Pictures that are moved and mirrored as they are trained on: the usual recipe for CIFAR.

He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016, section 4.2): a picture of 32
pixels gets 4 more on each side, of the mean colour, and a crop of 32 of it, or its mirror image, is
trained on. Other sizes get an eighth of a side. Where the crop lies and whether it
is mirrored follows from the run's seed and the sample's number, so that every method, rank and
resumed run sees equal pictures, and another epoch other ones. Evaluations see pictures as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.model.keys import key

if TYPE_CHECKING:
    from workbench.model.families import Data

SHARE = 8
"""A side over the pixels that are added to each side of a picture."""


class Augmented:
    """Data whose first tensor is pictures, moved and mirrored by sample. A `families.Data`."""

    def __init__(self, data: Data, seed: int) -> None:
        self._data, self.seed = data, seed
        self.name = f"{data.name}, cropped and mirrored"
        self.digest = sha256(f"{data.digest} crop-flip".encode()).hexdigest()

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self._data)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `Data.rows`."""
        return self._moved(self._data.rows(samples), samples)

    def at(self, places: Sequence[int], samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `Data.at`."""
        return self._moved(self._data.at(places, samples), samples)

    def _moved(self, rows: tuple[Tensor, ...], samples: Sequence[int]) -> tuple[Tensor, ...]:
        pictures, *others = rows  # [samples, 3, height, width], of mean 0
        high, wide = pictures.shape[-2:]
        up, left = (max(1, side // SHARE) for side in (high, wide))
        around = F.pad(pictures, (left, left, up, up))
        found = torch.empty_like(pictures)
        for row, sample in enumerate(samples):
            drawn, down = divmod(key(self.seed, "augment", sample), 2 * up + 1)
            mirrored, right = divmod(drawn, 2 * left + 1)
            part = around[row, :, down : down + high, right : right + wide]
            found[row] = part.flip(-1) if mirrored % 2 else part
        return found, *others
