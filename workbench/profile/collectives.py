"""Seconds of collectives between devices of one machine, by size, as data.

Groups of 2, 4, 8... devices are measured: neighbours, and those a stride apart; the first group
while the others rest, and all at once, as the rows of an operator and its replicas are. Between two
measured sizes lies a line: a latency and a bandwidth. collective_timing.py measures, and
collective_store.py keeps what was measured. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from workbench.profile.machine import Machine

Kind = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SMALLEST, MB = 4096, 1 << 20
"""Bytes of the smallest collective that is measured, whose time is nearly all latency."""


@dataclass(frozen=True, order=True, slots=True)
class Setting:
    """Devices that do one collective."""

    devices: int
    """Of a group."""
    stride: int
    """From one of a group to the next."""
    groups: int
    """That are at work at once."""
    kind: Kind

    @property
    def among(self) -> tuple[int, int, Kind]:
        """Devices, stride and kind."""
        return self.devices, self.stride, self.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Times of one setting. Sizes are bytes of what each device brings: to a gather its share, to
    all others a whole."""

    setting: Setting
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Medians, of the slowest device."""
    spread: tuple[float, ...]
    """Half the distance of the quartiles, relative to the median."""

    def at(self, nbytes: float) -> float:
        """Seconds of any size: on the line between its neighbours. Smaller ones take as long as the
        smallest, larger ones go at the rate of the largest.

        >>> one = Collective(setting=Setting(2, 1, 1, "all_reduce"), bytes=(10, 20, 40),
        ...                  seconds=(1.0, 2.0, 5.0), spread=(0.0, 0.0, 0.0))
        >>> [one.at(size) for size in (1, 10, 15, 30, 80)]
        [1.0, 1.0, 1.5, 3.5, 10.0]
        """
        sizes, times = self.bytes, self.seconds
        if nbytes >= sizes[-1]:
            return times[-1] * nbytes / sizes[-1]
        place = bisect_left(sizes, nbytes)
        if place == 0:
            return times[0]
        low, high = sizes[place - 1 : place + 1]
        part = (nbytes - low) / (high - low)
        return times[place - 1] + part * (times[place] - times[place - 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives:
    """Collectives of one kind of numbers on one machine."""

    machine: Machine
    measured: str
    """When the first was."""
    probe_s: float
    """A matrix product, timed just before."""
    found: tuple[Collective, ...] = ()

    def of(self, kind: str, devices: int, stride: int = 1) -> Collective | None:
        """One of such groups, as many at once as were measured; None where none was."""
        fits = [each for each in self.found if each.setting.among == (devices, stride, kind)]
        return max(fits, key=lambda each: each.setting.groups, default=None)


def settings(devices: int) -> Iterator[Setting]:
    """All settings of so many devices, a power of two."""
    for count in powers(2, devices):
        for stride in powers(1, devices // count):
            for groups in dict.fromkeys([1, devices // count]):
                yield from (Setting(count, stride, groups, kind) for kind in KINDS)


def sizes(setting: Setting, most_mb: int) -> list[int]:
    """Bytes at which it is measured: a group's together are no more than so many MB."""
    most = most_mb * MB // setting.devices
    return [n for n in powers(SMALLEST, most) if n >= MB or n.bit_length() % 2]


def powers(first: int, most: int) -> list[int]:
    """Powers of two.

    >>> powers(2, 9)
    [2, 4, 8]
    """
    return [first << power for power in range(max(0, (most // first).bit_length()))]
