"""A sweep with a name, a folder, and a process of its own that notebooks and pages watch.

    RESULTS/sweeps/<name>/   sweep.json order.json state.json events.jsonl log.txt lock order.lock

Nothing of a sweep runs in a notebook's kernel, so the kernel stays usable, may be restarted, and
may look at a sweep that somebody else started. The process (sweep_process.py) holds the folder's
lock: a second one gives up, so two tabs cannot start a sweep twice. What people want (run, pause,
cancel, retry) is ``order.json``, what the process does is ``state.json``, both replaced whole; what
is finished is, as always, what the store has records of.

A sweep is either attached, and ends with the process that started it, or detached, and goes on
without it. Either way it can be started again, and goes on with what has no record.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from workbench.core.files import FileLock, write_whole
from workbench.core.paths import import_path
from workbench.core.record import strict
from workbench.core.schema import Measured, read_as
from workbench.core.sealed import read_sealed, sealed, write_sealed
from workbench.runs.store import Store
from workbench.runs.sweep import NAME, VERSION, SweepFile, check_name

State = Literal["new", "waiting", "running", "paused", "done", "cancelled", "interrupted", "failed"]
LIVE: tuple[State, ...] = ("waiting", "running", "paused")
"""States that only a living process can be in."""
Want = Literal["run", "pause", "cancel"]

COMMAND = (sys.executable, "-m", "workbench.sweep_process")
START_S = 15.0
"""Longest time in which a process that was started says so."""


class Orders(TypedDict, total=False):
    """``order.json``."""

    want: Want
    retry: int
    """How many times people asked for that."""


class Running(TypedDict):
    """A point that runs."""

    index: int
    key: str
    where: str | None
    step: int
    steps: int
    loss: Measured | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of a sweep."""

    state: State = "new"
    text: str = ""
    """One sentence, where there is something to say: who is waited for, why it failed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Points by state: pending, running, done, failed."""
    running: list[Running] = field(default_factory=list)
    seconds_left: float | None = None
    pid: int | None = None
    detached: bool = False
    started: float = 0.0
    """Seconds since 1970."""
    retried: int = 0
    """How many of the orders to retry what failed have been obeyed."""


class Campaign:
    """A named sweep in a store, seen from outside. Making one touches nothing."""

    def __init__(self, store: Store, name: str) -> None:
        """Raises ValueError for a name that cannot be a folder's."""
        self.store, self.name = store, check_name(name, "a sweep")
        self.folder = store.root / "sweeps" / name
        self._process: subprocess.Popen | None = None

    @classmethod
    def all(cls, store: Store) -> list[Campaign]:
        """The sweeps there are, by name."""
        names = (path.parent.name for path in (store.root / "sweeps").glob("*/sweep.json"))
        return [cls(store, name) for name in sorted(names) if NAME.fullmatch(name)]

    @classmethod
    def create(cls, store: Store, data: dict[str, Any], *, replace: bool = False) -> Campaign:
        """Write a sweep down under its ``name``.

        `replace` another sweep of that name: for a caller who has seen that no process runs it.
        Raises ValueError for a sweep that is malformed, or whose name another one has, and
        StoreError.
        """
        data = {"version": VERSION} | data
        file = SweepFile.parse(data, "sweep")
        campaign = cls(store, file.name)
        path = campaign.folder / "sweep.json"
        kept = {name: value for name, value in data.items() if name != "results"}
        text = json.dumps(kept | {"name": file.name}, indent=1) + "\n"
        with suppress(ValueError):  # one that cannot be read is another one
            if path.exists() and campaign.data == json.loads(text):
                return campaign
        if path.exists() and not replace:
            raise ValueError(
                f"there is another sweep named {campaign.name!r}; give this one a name of its own"
            )
        try:
            campaign.folder.mkdir(parents=True, exist_ok=True)
            (campaign.folder / "events.jsonl").unlink(missing_ok=True)  # of the sweep before
            write_whole(path, sealed(text))
        except OSError as error:
            raise store.unusable(error) from error
        return campaign

    @property
    def data(self) -> dict[str, Any]:
        """The sweep as written down. Raises ValueError where the file is missing or malformed."""
        return self.file.data

    @property
    def file(self) -> SweepFile:
        """The sweep file, parsed."""
        return SweepFile.load(self.folder / "sweep.json")

    # -- what people want -----------------------------------------------------------------------

    def start(self, *, detached: bool = False) -> bool:
        """Start the sweep's process, or let a paused one go on; returns whether one was started.

        Waits until the process says what it does. An attached one ends with this process, a
        detached one does not. Raises ValueError for a malformed sweep, and StoreError.
        """
        self.file  # noqa: B018 - a malformed one is refused here, where people see it
        self.go_on()
        if self.alive:
            return False
        words = [*COMMAND, str(self.folder)]
        # The end that is ours is never closed: it closes when this process ends, however it does.
        reading, _ours = os.pipe()
        try:
            with (self.folder / "log.txt").open("ab") as log:
                self._process = subprocess.Popen(
                    [*words, "--detached"] if detached else words,
                    stdin=subprocess.DEVNULL if detached else reading,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **import_path()},
                )
        except OSError as error:
            raise self.store.unusable(error) from error
        finally:
            os.close(reading)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if _state_of(self.folder).pid == self._process.pid:
                break
            time.sleep(0.02)
        return True

    def go_on(self) -> None:
        """Take back that it was to pause or to be cancelled."""
        self._order(want="run")

    def pause(self) -> None:
        """Start nothing more; what runs is let finish."""
        self._order(want="pause")

    def cancel(self) -> None:
        """End what runs and start nothing more."""
        self._order(want="cancel")

    def retry(self, *, detached: bool = False) -> None:
        """Run what failed once more, and whatever else is left."""
        self._order(again=True)
        self.start(detached=detached)

    def orders(self) -> Orders:
        """Orders that people gave; none where the file does not fit."""
        return _read(Orders, self.folder / "order.json")[0]

    def _order(self, *, again: bool = False, **changes: Any) -> None:
        """Change what people want, one page at a time. The system ends the turn of one killed."""
        try:
            with FileLock.take(self.folder / "order.lock", wait=True):
                orders = self.orders() | changes
                if again:
                    orders["retry"] = orders.get("retry", 0) + 1
                write_sealed(self.folder / "order.json", orders)
        except OSError as error:
            raise self.store.unusable(error) from error

    # -- what is --------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether a process runs the sweep."""
        if self._process is not None:
            self._process.poll()  # one of our own that ended is nobody's zombie
        return FileLock.is_taken(self.folder / "lock")

    def status(self) -> Status:
        """State of the sweep, also where its process was killed."""
        alive, found = self.alive, _state_of(self.folder)
        if found.state in LIVE and not alive:
            words = "its process was ended; start it again and it goes on with the remaining runs"
            return replace(found, state="interrupted", text=words, running=[], seconds_left=None)
        return replace(found, text=found.text or _read(Orders, self.folder / "order.json")[1])

    def lock(self) -> FileLock | None:
        """The lock of the process that runs the sweep; None while another process has it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return FileLock.take(self.folder / "lock")
        except OSError as error:
            raise self.store.unusable(error) from error

    def say(self, status: Status) -> None:
        """Replace what the sweep is said to be doing; for the process that runs it."""
        try:
            write_sealed(self.folder / "state.json", strict(asdict(status)))
        except OSError as error:
            raise self.store.unusable(error) from error


def _state_of(folder: Path) -> Status:
    """The state that the process said last, or why it cannot be read."""
    found, why = _read(Status, folder / "state.json")
    return replace(found, text=found.text or why)


def _read(kind: type, path: Path) -> tuple[Any, str]:
    """The `kind` that a file holds; where it does not fit, an empty one, and why."""
    try:
        return read_as(kind, read_sealed(path, "it"), "it"), ""
    except FileNotFoundError:
        return kind(), ""
    except ValueError as error:
        return kind(), f"{path} is not used: {error}"
