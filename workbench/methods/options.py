"""Options that several methods have, and what options of no method can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.core.options import Options
from workbench.core.spec import RunSpec

Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class StateTier(Options):
    """Options of methods whose optimizer states may live on the disk."""

    optimizer_tier: Literal["auto", "host", "disk"] = "auto"
    """Where the optimizer states of offloaded layers live. ``auto`` is the host; where that has no
    room for all of them, STRONGHOLD puts the rest on the disk if `disk_memory` allows it one."""

    @property
    def on_disk(self) -> bool:
        return self.optimizer_tier == "disk"


@dataclass(frozen=True, kw_only=True)
class HostUpdates(StateTier):
    """Options of methods whose host updates run beside the passes of other layers."""

    host_workers: int = 1
    """Host updates that may run at once."""

    def check(self, spec: RunSpec) -> None:
        if not 1 <= self.host_workers <= MOST_WORKERS:
            raise ValueError(
                f"host_workers is {self.host_workers}; it must be at least 1 and at most "
                f"{MOST_WORKERS}, more than one host has use for"
            )


MOST_WORKERS = 256
"""Processors of large hosts; each worker takes time to plan for."""


@dataclass(frozen=True, kw_only=True)
class Clipping(Options):
    """Options of methods that may update on the host before the global norm is known."""

    clipping: Literal["auto", "speculate", "wait"] = "auto"
    """Whether updates of states that live on the host run before the global norm is known, to be
    taken back where gradients are clipped after all, or wait for it. Exact either way."""


IGNORED = {
    "microbatches": (1, "both passes divide the batch by forward_size and backward_size"),
    "activations": ("recompute", "the input of each pack is kept and the rest computed again"),
    "link_bytes_per_s": (None, "the link to the host is the machine's own"),
    "disk_memory": (None, "nothing is on the disk"),
}
"""Field of all methods -> what it may be beside 'auto' where layers visit, and why nothing else."""


@dataclass(frozen=True, kw_only=True)
class Visits(Options):
    """Options of methods whose layers visit several ranks from the host, and divide the batch."""

    forward_size: int | Auto = "auto"
    """Samples of a forward micro-batch, where forward and backward passes divide the batch on their
    own (Harmony), or of all, where the planner chooses them (DP Swap, PP Swap); `microbatches` is
    for the other methods."""
    backward_size: int | Auto = "auto"
    """Samples of a backward micro-batch, as `forward_size`."""

    tries_parts: ClassVar[bool] = False

    def micro_sizes(self, spec: RunSpec) -> set[int]:
        return {size for size in (self.forward_size, self.backward_size) if size != "auto"}

    def check(self, spec: RunSpec) -> None:
        for name in ("forward_size", "backward_size"):
            value = getattr(self, name)
            if value != "auto" and not 1 <= value <= spec.batch:
                raise ValueError(f"{name} is {value}; it must be 1 to {spec.batch}, or auto")
        for name, (only, why) in IGNORED.items():
            value = getattr(spec, name)
            if value not in (only, "auto"):
                raise ValueError(
                    f"{name} is {value!r}; with {spec.method} {why}, leave it at "
                    f"{'none' if only is None else repr(only)}"
                )


@dataclass(frozen=True, kw_only=True)
class Staged(Options):
    """Options of pipelines whose stages may be given."""

    stages: str = "auto"
    """Units of each stage, the embedding and the head among them, as in ``5 4 4 3``; ``auto``
    balances measured time within memory, or, in torch's pipelines, operations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers_of_units("stages", self.stages, STAGES)

    @property
    def given_stages(self) -> list[int]:
        """Units of each stage, where the user gave them; else empty."""
        return numbers_of_units("stages", self.stages, STAGES)


STAGES = "5 4 4 3"
"""Stages in a message to somebody who gave others."""


@dataclass(frozen=True, kw_only=True)
class Chunks(Staged):
    """Options of pipelines with several stages a rank."""

    chunks: int = 2
    """Stages of each rank of an interleaved pipeline; 2 or more."""

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        if self.chunks < 2:
            raise ValueError(f"chunks is {self.chunks}; an interleaved rank has two stages or more")


def numbers_of_units(name: str, text: str, example: str) -> list[int]:
    """Read an option such as ``4 4 3``; empty for ``auto``. Raises ValueError for another text."""
    words = text.split()
    if words == ["auto"]:
        return []
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise ValueError(
            f"{name} is {text!r}; it must be numbers of units such as {example!r}, or auto"
        )
    return [int(word) for word in words]
