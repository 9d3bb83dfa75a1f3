"""Files of measurements: whole or not there, of one machine, written by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from workbench.core.jsonfile import read_object
from workbench.core.schema import read_as
from workbench.profile.machine import Machine
from workbench.profile.table import Echo

T = TypeVar("T")

FORMAT = 8
"""Raised when stored measurements mean something else than before."""


def stored(path: Path, machine: Machine, kind: type[T], echo: Echo) -> T | None:
    """The `kind` that `path` holds, if it was measured on this machine; else says why not."""
    try:
        data = read_object(path, "it")
        if data.pop("format", None) != FORMAT:
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
    """Rename a whole file into place. Raises ValueError where the folder cannot be written."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w") as file:
            json.dump({"format": FORMAT, **data}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"{path.parent} cannot be written: {error.strerror}") from error


@contextmanager
def measuring(path: Path, echo: Echo) -> Iterator[None]:
    """One process at a time; the lock goes with its holder, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = (path.parent / ".lock").open("w")
    except OSError as error:
        raise ValueError(f"{path.parent} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            echo("waiting for another process that is measuring this machine")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def now() -> str:
    """The time, as measurements note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
