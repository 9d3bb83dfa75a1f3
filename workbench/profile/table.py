"""The measured machine as a table: named figures, each with its unit and spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from workbench.profile.machine import Machine
from workbench.profile.profile import Hardware
from workbench.profile.timing import Timing

Echo = Callable[[str], None]
"""Hears what is going on, line by line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    value: float
    unit: str
    """``B/s``, ``params/s``, ``FLOP/s``, ``s``, or ``x`` for a factor."""
    spread: float = 0.0
    """Half the distance of the quartiles, relative to the value."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The measured machine."""

    machine: Machine
    hardware: Hardware
    figures: tuple[Figure, ...]
    measured: str
    """When, ISO 8601, UTC."""
    seconds: float
    """Seconds that measuring took."""
    others: float
    """Cores that other programs used meanwhile, in the worst of the figures."""
    notes: tuple[str, ...] = ()


@dataclass
class Table:
    """Figures as they come in."""

    echo: Echo
    seconds: float
    """Length of one timing."""
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: float = 0.0
    """Cores that other programs used, in the worst of the figures so far."""

    def add(
        self, name: str, value: float, unit: str, *, spread: float = 0.0, others: float = 0.0
    ) -> float:
        """Enter a figure and return its value."""
        self.figures.append(Figure(name=name, value=value, unit=unit, spread=spread))
        self.others = max(self.others, others)
        self.echo(f"{name}: {format_figure(value, unit)}")
        return value

    def enter(self, name: str, timing: Timing, unit: str = "s", amount: float = 0.0) -> float:
        """Enter the seconds of a timing, or with an `amount` the rate at which it was done."""
        value = amount / timing.seconds if amount else timing.seconds
        return self.add(name, value, unit, spread=timing.spread, others=timing.others)

    def value(self, name: str) -> float:
        """The value of a figure that was entered."""
        return next(figure.value for figure in self.figures if figure.name == name)


def format_figure(value: float, unit: str) -> str:
    """The figure for people, to three digits.

    >>> format_figure(55.4e9, "B/s"), format_figure(3.1e-5, "s"), format_figure(1.042, "x")
    ('55.4 GB/s', '31 us', '1.04 x')
    """
    if unit == "x":
        return f"{value:.2f} x"
    steps = (("", 1.0), ("m", 1e-3), ("u", 1e-6), ("n", 1e-9)) if unit == "s" else ()
    steps = steps or (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
    prefix, factor = next((step for step in steps if value >= step[1]), steps[-1])
    return f"{value / factor:.3g} {prefix}{unit}"
