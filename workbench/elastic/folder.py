"""Files of a job's folder: where its manager is, how far it is, and where its checkpoints lie.

A `Folder` writes them in a thread: its disk may be busy for longer than agents wait for a beat, or
never answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workbench.core.files import write_whole
from workbench.core.jsonfile import read_json
from workbench.core.schema import read_as
from workbench.elastic.aside import InTurn
from workbench.elastic.worker import CHECKPOINTS, LOSS_LOG, NOTE

DOOR, STATE, SLOW = "manager.json", "state.json", "slow_machines.out"
Newest = Callable[[Iterable[Path], str, int | None], int | None]
"""From folders of checkpoints, a job's id, and the step that it began from to the step of its
newest sound one."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """``manager.json``: where a manager is, for those who may read its folder."""

    pid: int
    address: str
    port: int
    token: str

    def __post_init__(self) -> None:
        """Raise ValueError for what no process or port can have."""
        for name, most in (("pid", 2**22), ("port", 2**16 - 1)):
            if not 0 < (value := getattr(self, name)) <= most:
                raise ValueError(f"{name} is {value}; it must be from 1 to {most}")


@dataclass(frozen=True, kw_only=True)
class Noted:
    """``checkpoints.json``: the folder of the last checkpoint that a worker has put in place."""

    folder: str


@dataclass(frozen=True, kw_only=True)
class State:
    """``state.json``: what people read, and a job is resumed from."""

    round: int
    phase: str
    shape: str | None
    step: int | None
    committed: int | None
    hosts: dict[str, str]
    ranks: dict[str, list[int]]
    spare: dict[str, int]
    events: list[tuple[float, str]]
    port: int
    job: str = ""
    """Id that the job's checkpoints name; those of a state without one name none."""
    began: int | None = None
    """Step that its first round went on from."""


def read_file(kind: type, folder: Path) -> Any:
    """A `State`, `Door` or `Noted` of a job's folder, None where there is none. Raises ValueError,
    which names the file."""
    path = folder / {State: STATE, Door: DOOR, Noted: NOTE}[kind]
    try:
        return read_as(kind, read_json(path, str(path)), str(path))
    except FileNotFoundError:
        return None


class Folder:
    """A job's folder, as its manager writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: dict[str, str] = {}
        self._unwritten: dict[str, str] = {}
        self._turn = InTurn()

    def open_door(self, door: Door) -> None:
        """Tell where the manager is, to those alone who may be told its token. Raises OSError."""
        write_whole(self.path / DOOR, json.dumps(asdict(door)), mode=0o600)

    def put(self, name: str, text: str) -> None:
        """Write a file where it changes, the newest text alone, and do not force it to the disk."""
        if text != self._written.get(name, ""):
            self._written[name] = self._unwritten[name] = text
            self._turn.do(partial(self._write, name))

    def log(self, line: str) -> None:
        """Add a line to the log of losses."""

        def add() -> None:
            with (self.path / LOSS_LOG).open("a") as file:
                file.write(line + "\n")

        self._turn.do(add)

    def close(self) -> None:
        """Bring the last words to the disk, if that answers; the manager is gone then."""
        self._turn.do(partial((self.path / DOOR).unlink, missing_ok=True))
        self._turn.finish()

    def newest(self, find: Newest, job: str, known: int | None, began: int | None) -> int | None:
        """Step of the newest sound checkpoint of a job, None where it has none; the one that is
        `known` where the checkpoints cannot be seen from here. Raises ValueError where none is left
        of those that were known."""
        noted = read_file(Noted, self.path)
        folders = [self.path / CHECKPOINTS, *([Path(noted.folder)] if noted else [])]
        newest = find(folders, job, began)
        if noted is None or not folders[-1].is_dir():
            newest = max((n for n in (newest, known) if n is not None), default=None)
        if known is not None and newest is None:
            raise ValueError(
                f"{folders[-1]} has no sound checkpoint of this job any more, which goes on from "
                f"one of step {known}; put it back, or begin anew in another --folder"
            )
        return newest

    def _write(self, name: str) -> None:
        if (text := self._unwritten.pop(name, None)) is not None:
            part = self.path / f"{name}.part"
            part.write_text(text)
            part.replace(self.path / name)
