"""Harmony's choice (VLDB'22, section 4): packs of layers and sizes of micro-batches, per pass.

Backward packs cover the model; forward packs cover what lies before the last backward pack, whose
forward pass is part of its backward visit (jit-compute). Harmony-PP deals the packs out to the
ranks in turn, and each runs all samples of the minibatch (input-batch grouping); Harmony-DP gives
every rank all packs and its share of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from workbench.core.division import DP, MODES, PP, Samples, divide, even_share


@dataclass(frozen=True, kw_only=True)
class Packs:
    """The four choices, and for whom."""

    mode: str
    """``pp`` or ``dp``."""
    ranks: int
    minibatch: int
    """Samples of a step, over all ranks."""
    forward_size: int
    """Samples of a forward micro-batch (the paper's U_F)."""
    backward_size: int
    """Samples of a backward micro-batch (U_B)."""
    forward: tuple[range, ...]
    """Units of each forward pack, in order (P_F); none where one backward pack is the model."""
    backward: tuple[range, ...]
    """Units of each backward pack, in the model's order (P_B)."""
    mirrored: bool = False
    """Whether a pack runs backward on the rank that ran it forward, the last pack's neighbours
    taking turns downwards; else turns go on upwards, as published. PP mode."""
    resident: frozenset[int] = frozenset()
    """Units whose weights and optimizer states stay on the one rank that runs them, and are updated
    there. Mirrored packs only."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown; modes are {', '.join(MODES)}")
        for what in ("ranks", "minibatch", "forward_size", "backward_size"):
            if getattr(self, what) < 1:
                raise ValueError(f"{what} is {getattr(self, what)}; at least 1 is needed")
        if self.mode == DP and self.minibatch < self.ranks:
            raise ValueError(
                f"a minibatch of {self.minibatch} samples leaves some of {self.ranks} ranks without"
            )
        if not self.backward:
            raise ValueError("there are no backward packs; one at least must hold the model")
        _check_cover(self.backward, "backward", self.num_units)
        _check_cover(self.forward, "forward", self.backward[-1].start)
        if self.mirrored and (self.mode != PP or self.forward != self.backward[:-1]):
            raise ValueError("mirrored packs are those of PP mode, the same forward and backward")
        if self.resident and not self.mirrored:
            raise ValueError(
                "units stay where one rank runs them: resident ones need mirrored packs"
            )

    @property
    def num_units(self) -> int:
        return self.backward[-1].stop

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Every task of a step in the order in which each rank does its own."""
        if self.mode == DP:
            return tuple(task for rank in range(self.ranks) for task in self._of(rank))
        return tuple(self._of(None))

    @cached_property
    def stashed(self) -> list[int]:
        """Units with which a backward pack begins that does not make its own forward pass, so that
        their inputs wait for it."""
        return [pack.start for pack in self.backward[:-1]]

    def tasks_of(self, rank: int) -> list[Task]:
        """Tasks of one rank, in their order."""
        return self._by_rank[rank]

    @cached_property
    def _by_rank(self) -> list[list[Task]]:
        found: list[list[Task]] = [[] for _ in range(self.ranks)]
        for task in self.tasks:
            found[task.rank].append(task)
        return found

    def keeping(self, resident: frozenset[int]) -> Packs:
        """Packs with these units resident. The tasks are shared, and are not made again."""
        kept = replace(self, resident=resident)
        kept.__dict__["tasks"] = self.tasks
        return kept

    def backward_units(self, rank: int) -> list[int]:
        """The units that a rank runs backward."""
        return [u for task in self.tasks_of(rank) if not task.forward for u in task.units]

    def _of(self, only: int | None) -> list[Task]:
        """The tasks of one rank that has all packs, or of all ranks that take turns."""
        share = self.share(only)
        forth, back = (divide(share, size) for size in (self.forward_size, self.backward_size))
        tasks: list[Task] = []
        backward = self.backward[::-1]
        for number, units in enumerate([*self.forward, *backward]):
            forward = number < len(self.forward)
            position = number
            if self.mirrored and not forward:
                position = len(self.forward) + len(self.backward) - 1 - number
            tasks.append(
                Task(
                    number=number,
                    rank=position % self.ranks if only is None else only,
                    units=units,
                    forward=forward,
                    fused=number == len(self.forward),
                    micros=forth if forward else back,
                )
            )
        return tasks

    def share_of(self, task: Task) -> Samples:
        """The samples that pass a task."""
        return task.micros[0][0], task.micros[-1][1]

    def share(self, rank: int | None) -> Samples:
        """The samples of a rank in DP mode, the first ones getting what does not divide; all of
        them for None."""
        if rank is None:
            return 0, self.minibatch
        return even_share(self.minibatch, rank, self.ranks)


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """One pack on one rank: forward, or recomputation and backward, of all its micro-batches. A
    search makes half a million, which takes three times as long where they are frozen."""

    number: int
    """Its place in a step; equal on all ranks in DP mode."""
    rank: int
    units: range
    forward: bool
    fused: bool
    """The last backward pack, which makes its own forward pass."""
    micros: list[Samples]


def _check_cover(packs: tuple[range, ...], what: str, end: int) -> None:
    at = 0
    for pack in packs:
        if pack.start != at or len(pack) == 0 or pack.step != 1:
            raise ValueError(
                f"{what} packs must follow one another from unit 0 and not be empty; after unit "
                f"{at - 1} comes units {pack.start} to {pack.stop - 1}"
            )
        at = pack.stop
    if at != end:
        raise ValueError(f"{what} packs end before unit {at}, they should end before unit {end}")
