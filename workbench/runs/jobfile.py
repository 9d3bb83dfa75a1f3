"""``job.json``: what the runner tells the guard and the worker besides the spec."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from workbench.core.record import Provenance
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed, write_sealed

NAME = "job.json"


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """One attempt at one run. Not part of the run's identity."""

    key: str
    module: str
    """Importable module whose `train` the worker calls; the worker needs no table of methods."""
    started: str
    """ISO 8601, UTC, to the microsecond: names the attempt, and is the record's `started`."""
    mark: str
    """Value of the environment variable that every process of the run carries (processes.py)."""
    timeout_s: float | None
    """Wall time after which the guard ends the run; None for no limit."""
    resume: bool
    """Whether steps of earlier attempts count, which left their checkpoints."""
    provenance: Provenance
    before_s: float = 0.0
    """Seconds from the command to `started`, where the worker began to import meanwhile
    (ahead.py)."""
    log: str = ""
    """Package that the worker writes curves with, beside its events (logged.py); empty for none."""

    def save(self, folder: Path) -> None:
        """Write it into a run's folder. Raises OSError."""
        write_sealed(folder / NAME, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> JobFile:
        """Raises ValueError where the file does not fit."""
        return read_as(cls, read_sealed(folder / NAME, NAME), NAME)
