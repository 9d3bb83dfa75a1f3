"""The profile of a model that is cut at its CutPoints: one file, of one model on one machine.

    FOLDER/profile.json

A slice is what lies between two CutPoints, the smallest part that a stage can be made of. Measured
are its passes in micro-batches of several sizes, messages within a host and between two, sums over
rings of copies, and how far these deviate. Whoever measures calls `save`; `load` refuses another
model's. Imports no torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from workbench.core.host import device_class, gpus, torch_build
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed, write_sealed
from workbench.profile.units import UnitCost

FILE, VERSION = "profile.json", 2


@dataclass(frozen=True, kw_only=True)
class Named:
    """A model or a machine: its name, and a digest of what decides the numbers."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} ({self.digest})"


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of the model between two CutPoints."""

    weight_bytes: int
    """Bytes of its weights; its gradients have as many."""
    state_bytes: int
    """Bytes of the optimizer's states, fp32 masters among them."""
    boundary_bytes: int
    """Bytes that enter it, a sample: of the first slice those of the model's inputs."""
    update_s: float = 0.0
    """The optimizer's step over it."""
    costs: tuple[UnitCost, ...]
    """Of micro-batches of as many samples as the profile names."""

    @property
    def parameters(self) -> int:
        """Elements of its weights."""
        return self.costs[0].parameters


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A weight that two slices hold: one where both are in one stage."""

    first: int
    second: int
    nbytes: int
    """Of the weight alone."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far single passes or messages deviate from their usual time: jitter."""

    median_s: float = 0.0
    """Half of them deviate by less."""
    sd_s: float = 0.0
    """Standard deviation; of messages, which only come later, of a normal one whose size it is."""


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Messages from one rank to the next while both compute."""

    latency_s: float
    """Seconds of the least message."""
    bytes_per_s: float
    jitter: Deviation = Deviation()


@dataclass(frozen=True, kw_only=True)
class RingSum:
    """An all-reduce: so many bytes, added up over so many ranks."""

    ranks: int
    nbytes: int
    seconds: float
    spread_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SliceProfile:
    """A model on a machine."""

    model: Named
    machine: Named
    device_bytes: int
    """Memory of a device that a process may use."""
    samples: tuple[int, ...]
    """Sizes of micro-batches that were profiled, ascending."""
    slices: tuple[Slice, ...]
    tied: tuple[Tied, ...] = ()
    within: Wire | None = None
    """Messages within a host; None where that was not measured."""
    between: Wire | None = None
    """Messages from host to host."""
    sums: tuple[RingSum, ...] = ()
    jitter: Deviation = Deviation()
    """How far passes of a slice deviate."""
    library_bytes: int = 0
    """Memory of a device that libraries keep."""
    lacking: tuple[int, ...] = ()
    """Samples of micro-batches for which a slice found no memory."""
    version: Literal[2] = VERSION

    def __post_init__(self) -> None:
        sizes = [*self.samples]
        if not sizes or sizes != sorted({*sizes}) or sizes[0] < 1:
            raise ValueError(f"slices have costs of {sizes} samples; they ascend from 1 or more")
        for number, each in enumerate(self.slices):
            if len(each.costs) != len(sizes):
                raise ValueError(
                    f"slice {number} has {len(each.costs)} costs, not those of {sizes} samples"
                )
        for name in ("within", "between"):
            wire = getattr(self, name)
            if wire is not None and (wire.bytes_per_s <= 0 or wire.latency_s < 0):
                raise ValueError(f"{name} is {wire}; its rate is positive, its latency 0 or more")
        for one in self.sums:
            if one.ranks < 2 or one.nbytes < 1:
                raise ValueError(f"sums have {one}; 2 ranks and 1 byte are the least")

    def save(self, folder: Path) -> None:
        """Write it into a folder, whole or not at all; another one there is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        write_sealed(folder / FILE, asdict(self))


def machine_of(device: str) -> Named:
    """This machine, of which devices ``cpu`` or ``cuda`` are used."""
    found = [(gpu.name, gpu.memory_bytes) for gpu in gpus()[:1]] if device == "cuda" else []
    facts = repr((device_class(device), found, torch_build()))
    return Named(name=device_class(device), digest=hashlib.sha256(facts.encode()).hexdigest()[:16])


def load(folder: Path, model: Named | None = None, machine: Named | None = None) -> SliceProfile:
    """The profile in a folder. Raises ValueError where there is none, where it does not fit, and
    where it is of another model or machine than the one named."""
    path = Path(folder) / FILE
    where = f"the profile {path}"
    try:
        data = read_sealed(path, where)
    except FileNotFoundError:
        raise ValueError(f"{where} is not there; a Profiler writes it") from None
    if isinstance(data, dict) and data.get("version", VERSION) != VERSION:
        raise ValueError(f"{where} is of version {data['version']}, not {VERSION}; profile anew")
    found: SliceProfile = read_as(SliceProfile, data, where)
    pairs = {"model": (model, found.model), "machine": (machine, found.machine)}
    for what, (wanted, there) in pairs.items():
        if wanted not in (None, there):
            raise ValueError(f"{where} is of the {what} {there}, not of {wanted}; profile anew")
    return found
