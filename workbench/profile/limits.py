"""The sizes of micro-batches that a model and its device allow, looked for once and kept.

    RESULTS/profiles/<device class>/limits-<key>.json

They are of one budget and of one most that was asked for; a larger batch is looked at anew where
there was room for all of the smaller one. Imports no torch until something is tried.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from workbench.core.spec import RunSpec
from workbench.profile.files import kept, stored
from workbench.profile.machine import Machine, this_machine
from workbench.profile.profile import Limits
from workbench.profile.store import path_of, silent
from workbench.profile.table import Echo


@dataclass(frozen=True, kw_only=True)
class FoundLimits:
    """Micro-batches that a device has room for."""

    machine: Machine
    limits: Limits
    tried: int
    """Samples up to which they were looked for."""
    budget: int
    """Bytes of the device."""

    def __post_init__(self) -> None:
        numbers = {"tried": self.tried, "budget": self.budget, **asdict(self.limits)}
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"{name} is {number}; it must be at least 1")

    def up_to(self, most: int) -> Limits | None:
        """The limits among sizes up to `most`; None where they may lie beyond what was tried."""
        found = self.limits
        if most < found.smallest or (most > self.tried and found.forward == self.tried):
            return None
        return replace(found, forward=min(found.forward, most), backward=min(found.backward, most))


def limits_for(spec: RunSpec, results: Path, budget: int, echo: Echo = silent) -> Limits:
    """How many samples of the spec's batch a micro-batch may have on a device of `budget` bytes:
    stored, or looked for now.

    Raises ValueError: NoRoom (probe.py) where the device has none for the fewest, CannotRun where
    no number runs.
    """
    machine = this_machine(spec.device)
    path = _path(spec, results, machine)

    def looked_for() -> FoundLimits:
        from workbench.profile.probe import limits

        echo("looking for the largest micro-batch that the device has room for")
        known = limits(spec, machine.device, budget, spec.batch)
        return FoundLimits(machine=machine, limits=known, tried=spec.batch, budget=budget)

    return kept(
        path, machine, FoundLimits, echo, looked_for,
        holds=lambda found: found.budget == budget and found.up_to(spec.batch) is not None,
    ).up_to(spec.batch)  # fmt: skip


def stored_limits(spec: RunSpec, results: Path, echo: Echo = silent) -> Limits | None:
    """Stored limits of the spec's micro-batches, or None; nothing is tried."""
    machine = this_machine(spec.device)
    found = stored(_path(spec, results, machine), machine, FoundLimits, echo)
    return None if found is None else found.up_to(spec.batch)


def _path(spec: RunSpec, results: Path, machine: Machine) -> Path:
    """Named by the model without its depth, dtype, and what the device's budget depends on."""
    return path_of(spec, results, machine, "limits", spec.dtype, spec.device_memory, spec.ranks)
