"""Files of measurements: whole or not there, of one machine, written by one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from workbench.core.files import FileLock
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed, write_sealed
from workbench.profile.machine import Machine
from workbench.profile.table import Echo

T = TypeVar("T")

FORMAT = 12
"""Raised when stored measurements mean something else than before."""
CLOCK_S = 1.0
"""To which times of measurements are noted."""


def stored(path: Path, machine: Machine, kind: type[T], echo: Echo) -> T | None:
    """The `kind` that `path` holds, if it was measured on this machine; else says why not."""
    try:
        data = read_sealed(path, "it")
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError("it is of another version")
        found = read_as(kind, data, "it")
    except FileNotFoundError:
        return None
    except ValueError as error:
        echo(f"{path} is not used, it cannot be read: {error}")
        return None
    difference = machine.difference(found.machine)
    if difference is not None:
        echo(f"{path} is not used, it was measured on another machine: {difference}")
        return None
    return found


def write(path: Path, data: dict[str, Any]) -> None:
    """Put a file in its place. Raises ValueError where the folder cannot be written."""
    try:
        write_sealed(path, {"format": FORMAT, **data})
    except OSError as error:
        raise ValueError(f"{path.parent} cannot be written: {error.strerror}") from error


@contextmanager
def measuring(path: Path, echo: Echo) -> Iterator[None]:
    """One process at a time; the lock goes with its holder, however that ends."""
    lock = path.parent / ".lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock.take(lock)
        if held is None:
            echo("waiting for another process that is measuring this machine")
            held = FileLock.take(lock, wait=True)
    except OSError as error:
        raise ValueError(f"{path.parent} cannot be written: {error.strerror}") from error
    with held:
        yield


def kept(
    path: Path, machine: Machine, kind: type[T], echo: Echo, measure: Callable[[], T], *,
    holds: Callable[[T], bool] = lambda found: True,
) -> T:  # fmt: skip
    """The `kind` that `path` holds, if that was measured on this machine and still `holds`; else it
    is measured now and written, unless another process did so while this one waited."""
    with measuring(path, echo):
        found = stored(path, machine, kind, echo)
        if found is None or not holds(found):
            found = measure()
            write(path, asdict(found))
    return found


def seconds_since(measured: str) -> float:
    """How long ago measurements were noted; infinite where nobody can tell, or it is yet to be."""
    try:
        passed = (datetime.now(UTC) - datetime.fromisoformat(measured)).total_seconds()
    except (TypeError, ValueError):  # of no zone, or no time
        return inf
    return passed if passed >= -CLOCK_S else inf


def now() -> str:
    """The time, as measurements note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
