"""Which rank has which stage of a pipeline, as workers are told it: ``0,4;1,5;2,6;3,7;``."""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT = re.compile(r"(?:\d+(?:,\d+)*;)+", re.ASCII)


@dataclass(frozen=True)
class StageMap:
    """P stages times D replicas. Where a rank has several stages, a stage here is all that it has.

    >>> found = StageMap.parse("0,4;1,5;2,6;3,7;")
    >>> found.stages, found.replicas, found.place(6), found.rank(2, 1)
    (4, 2, (2, 1), 6)
    """

    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each stage; replica d of the pipeline is made of the d-th of each."""

    @classmethod
    def parse(cls, text: str) -> StageMap:
        """Read a map. Raises ValueError for one that is malformed, repeats a rank or lacks one."""
        if not TEXT.fullmatch(text):
            raise ValueError(
                f"stage_to_rank_map is {text!r}; give the ranks of each stage, joined by a comma, "
                "and end each stage with a semicolon, as in 0,2;1,3;"
            )
        ranks = tuple(tuple(map(int, stage.split(","))) for stage in text[:-1].split(";"))
        if len({*map(len, ranks)}) > 1:
            raise ValueError(
                f"stage_to_rank_map {text!r} has stages of {sorted({*map(len, ranks)})} ranks; "
                "each stage needs as many as the others"
            )
        every = sorted(rank for stage in ranks for rank in stage)
        for rank, wanted in zip(every, range(len(every)), strict=True):
            if rank != wanted:
                fault = f"repeats rank {rank}" if rank < wanted else f"lacks rank {wanted}"
                raise ValueError(f"stage_to_rank_map {text!r} {fault}")
        return cls(ranks)

    @classmethod
    def of(cls, stages: int, replicas: int) -> StageMap:
        """Neighbours in a pipeline are neighbours among the ranks: replica d has the ranks from
        d * stages on."""
        ranks = range(stages * replicas)
        return cls(tuple(tuple(ranks[stage::stages]) for stage in range(stages)))

    @property
    def stages(self) -> int:
        """Pipeline depth P."""
        return len(self.ranks)

    @property
    def replicas(self) -> int:
        """Pipelines side by side D."""
        return len(self.ranks[0])

    def place(self, rank: int) -> tuple[int, int]:
        """(stage, replica) of a rank."""
        for stage, ranks in enumerate(self.ranks):
            if rank in ranks:
                return stage, ranks.index(rank)
        raise ValueError(f"rank {rank} is not in the map of {self.stages * self.replicas} ranks")

    def rank(self, stage: int, replica: int) -> int:
        """The rank of a replica's stage."""
        return self.ranks[stage][replica]

    def __str__(self) -> str:
        return "".join(",".join(map(str, ranks)) + ";" for ranks in self.ranks)
