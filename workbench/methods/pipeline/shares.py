"""Rows of a global batch, divided among replicas and micro-batches.

No row is lost or counted twice, whatever divides: replicas differ by at most one row, and so do the
micro-batches of a replica (the original trains on a smaller batch, and weighs a short micro-batch
as much as a full one).
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.division import even_share


@dataclass(frozen=True, kw_only=True)
class Shares:
    """A batch of `batch` rows on `replicas` pipelines, in micro-batches of `micro_size` at most.

    >>> shares = Shares(batch=7, replicas=2, micro_size=2)
    >>> shares.micros, shares.share(0), shares.share(1), [*map(shares.rows(1).__getitem__, (0, 1))]
    (2, range(0, 4), range(4, 7), [range(0, 2), range(2, 3)])
    """

    batch: int
    replicas: int
    micro_size: int
    multiple: int = 1
    """Of which micro-batches are."""

    def __post_init__(self) -> None:
        if self.micro_size < 1:
            raise ValueError(f"chunk_size is {self.micro_size}; a micro-batch has a row at least")
        if self.batch < self.replicas:
            raise ValueError(
                f"a batch of {self.batch} rows leaves some of {self.replicas} replicas without "
                f"any; use a batch of {self.replicas} at least, or fewer replicas"
            )

    @property
    def micros(self) -> int:
        """Micro-batches N of each replica: as many as the largest share needs."""
        return -(-len(self.share(0)) // (self.micro_size * self.multiple)) * self.multiple

    @property
    def repeats(self) -> bool:
        """Whether some micro-batch is empty."""
        return self.batch // self.replicas < self.micros

    def share(self, replica: int) -> range:
        """Rows of the global batch that are a replica's."""
        return range(*even_share(self.batch, replica, self.replicas))

    def rows(self, replica: int) -> list[range]:
        """Rows of each micro-batch, counted within the replica's share; an empty one where a
        smaller share has fewer rows than micro-batches."""
        size = len(self.share(replica))
        return [range(*even_share(size, micro, self.micros)) for micro in range(self.micros)]
