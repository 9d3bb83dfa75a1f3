"""Batches of a run from any data set whose samples are found by their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.model.families import Data


class Draws:
    """Step t has samples t B to (t + 1) B - 1, as `text.Batches` has of a text."""

    def __init__(self, data: Data, batch: int) -> None:
        """Raises ValueError for a batch of no samples."""
        if batch < 1:
            raise ValueError(f"a batch of {batch} samples is none; it must be at least 1")
        self.data, self.batch_size = data, batch

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self.data)

    @property
    def digest(self) -> str:
        """Digest of the data."""
        return self.data.digest

    def samples(self, step: int) -> tuple[int, ...]:
        """Global numbers of the samples of a step."""
        return tuple(range(step * self.batch_size, (step + 1) * self.batch_size))

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """Inputs of the model, the targets last, on the CPU."""
        return self.data.rows(samples)

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Inputs of a step, the targets last, on the CPU."""
        return self.rows(self.samples(step))
