"""Where a run may run: each GPU is a place, and so are the processors.

Two runs at one place would measure each other, so a place is held by one run at a time (which may
hold several GPUs), whoever started it: sweeps of several notebooks, command lines and results
folders wait for each other. It is held by a file lock in a folder that all processes of a user
share; the kernel ends the lock with the last process that has it, and the file says who that is.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workbench.core import host
from workbench.core.files import FileLock
from workbench.core.jsonfile import read_object

FOLDER = "WORKBENCH_PLACES"
"""Environment variable that names another folder for the locks: users who share a machine's GPUs
may share it too."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Something that one run at a time may have."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    """What a run there needs in its environment."""


class Held:
    """Places that this process has."""

    def __init__(self, places: list[Place], fds: list[int]) -> None:
        self.name = " and ".join(place.name for place in places)
        self.fds = fds
        """Pass them to a child to make the locks last as long as the child."""
        self.environment: dict[str, str] = {}
        for place in places:
            for name, value in place.environment.items():
                known = self.environment.get(name)
                self.environment[name] = f"{known},{value}" if known else value

    def release(self) -> None:
        """This process's share; does nothing the second time."""
        while self.fds:
            os.close(self.fds.pop())


def places(device: str) -> list[Place]:
    """The places of this machine for a resolved device: one for ``cpu``, each visible GPU for
    ``cuda``."""
    if device != "cuda":
        return [Place(name="the processors")]
    visible = os.environ.get(VISIBLE)
    numbers = map(str, range(len(host.gpus()))) if visible is None else visible.split(",")
    return [Place(name=f"GPU {n}", environment={VISIBLE: n}) for n in map(str.strip, numbers)]


def take(among: list[Place], count: int, what: str) -> Held | None:
    """So many of these places, or None while others have too many of them. `what` is told to those
    who wait.

    Raises OSError where the folder of the locks cannot be used.
    """
    taken, fds = [], []
    try:
        for place in among:
            if len(taken) < count and (fd := _lock(place, what)) is not None:
                taken.append(place)
                fds.append(fd)
        if len(taken) == count:
            return Held(taken, fds)
    except BaseException:
        Held(taken, fds).release()
        raise
    Held(taken, fds).release()
    return None


def _lock(place: Place, what: str) -> int | None:
    """A descriptor that holds the place, or None while another process does."""
    lock = FileLock.take(_file(place), mode=0o600)
    if lock is None:
        return None
    told = json.dumps({"pid": os.getpid(), "what": what}).encode()
    os.pwrite(lock.fd, told, 0)  # first, so that there is no moment without a holder
    os.ftruncate(lock.fd, len(told))
    return lock.fd


def holder(place: Place) -> str:
    """Who has a place, in words."""
    with suppress(OSError, ValueError, KeyError):
        told = read_object(_file(place), "it")
        return f"{told['what']}, process {told['pid']}"
    return "another process"


def _file(place: Place) -> Path:
    named = os.environ.get(FOLDER)
    folder = Path(named or Path(tempfile.gettempdir()) / f"workbench-places-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not named and folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to another user; set {FOLDER} to a folder of your own"
        )
    return folder / f"{place.name.replace(' ', '-').replace('/', '-')}.lock"
