"""Reading a model profile from the open JSON format.

One object: `model`, `layers` (their number, loss included), per-layer arrays in bytes (`w_bytes`,
`b_bytes`, `k_bytes`, `x_bytes_per_sample`), `cpu_update_time` in microseconds, the profiled sizes
`fwd_microbatch` and `bwd_microbatch`, and four tables: `fwd_time`, `bwd_time` in microseconds,
`fwd_memory`, `bwd_memory` in bytes. A table is `{"class": [...], "values": [...]}`: layer l has the
row `values[class[l]]`, with one entry per size, so that equal layers are written once. A file may
hold more; only these are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypedDict

from workbench.core.jsonfile import read_object
from workbench.core.schema import read_as
from workbench.methods.harmony.published.profiles import Measured, PublishedProfile

Micros = TypedDict("Micros", {"class": list[int], "values": list[list[float]]})
Bytes = TypedDict("Bytes", {"class": list[int], "values": list[list[int]]})


def load(path: str | Path) -> PublishedProfile:
    """A profile; ValueError that names the file and what is wrong with it."""
    path = Path(path)
    data = read_object(path, path.name)
    known = {each.name: data[each.name] for each in fields(ProfileFile) if each.name in data}
    return read_as(ProfileFile, known, path.name).profile()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileFile:
    """The fields of a file; ValueError for numbers below 0 and for lists of the wrong length."""

    model: str
    layers: int
    w_bytes: list[int]
    b_bytes: list[int]
    k_bytes: list[int]
    x_bytes_per_sample: list[int]
    target_bytes_per_sample: int = 0
    cpu_update_time: list[float]
    fwd_microbatch: list[int]
    bwd_microbatch: list[int]
    fwd_time: Micros
    bwd_time: Micros
    fwd_memory: Bytes
    bwd_memory: Bytes

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers}; it must be 1 or more")
        _check("target_bytes_per_sample", [self.target_bytes_per_sample], 1)
        for name in ("w_bytes", "b_bytes", "k_bytes", "x_bytes_per_sample", "cpu_update_time"):
            _check(name, getattr(self, name), self.layers)
        for way in ("fwd", "bwd"):
            sizes = getattr(self, f"{way}_microbatch")
            if not sizes or sizes[0] < 1 or sorted(set(sizes)) != sizes:
                raise ValueError(f"{way}_microbatch must list whole sizes from 1 on, ascending")
            for name in (f"{way}_time", f"{way}_memory"):
                table = getattr(self, name)
                for index, row in enumerate(table["values"]):
                    _check(f"{name}.values[{index}]", row, len(sizes))
                _check(f"{name}.class", table["class"], self.layers)
                if max(table["class"]) >= len(table["values"]):
                    raise ValueError(f"{name}.class names a row that is not in {name}.values")

    def profile(self) -> PublishedProfile:
        return PublishedProfile(
            model=self.model,
            forward=_measured(self.fwd_microbatch, self.fwd_time, self.fwd_memory),
            backward=_measured(self.bwd_microbatch, self.bwd_time, self.bwd_memory),
            weight_bytes=tuple(self.w_bytes),
            buffer_bytes=tuple(self.b_bytes),
            state_bytes=tuple(self.k_bytes),
            input_bytes=tuple(self.x_bytes_per_sample),
            update_seconds=tuple(us * 1e-6 for us in self.cpu_update_time),
            target_bytes=self.target_bytes_per_sample,
        )


def _check(name: str, numbers: Sequence[float], length: int) -> None:
    if len(numbers) != length:
        raise ValueError(f"{name} must hold {length} numbers, found {len(numbers)}")
    if min(numbers) < 0:
        raise ValueError(f"{name} holds {min(numbers)}, which is below 0")


def _measured(sizes: list[int], micros: Micros, memory: Bytes) -> Measured:
    """Equal layers share a row."""
    seconds = [tuple(us * 1e-6 for us in row) for row in micros["values"]]
    peaks = [tuple(row) for row in memory["values"]]
    return Measured(
        microbatches=tuple(sizes),
        seconds=tuple(seconds[row] for row in micros["class"]),
        peak_bytes=tuple(peaks[row] for row in memory["class"]),
    )
