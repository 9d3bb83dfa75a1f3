"""Locks of this machine's devices: each GPU has one, and so have the processors.

Two runs on one device would measure each other, so a device is held by one run at a time (which may
hold several GPUs): sweeps of several notebooks, command lines and results folders wait for each
other. The lock is a file lock in a folder that all processes of a user share. The kernel ends it
with the last process that has it, and the file names the holder.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from workbench.core import host
from workbench.core.files import FileLock, private_folder
from workbench.core.jsonfile import read_object

FOLDER = "WORKBENCH_PLACES"
"""Environment variable that names another folder for the locks: users who share a machine's GPUs
may share it too."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class LockableDevice:
    """A GPU, or all processors: a device that one run at a time may hold."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of a run there."""


class HeldDevices:
    """Devices that this process holds."""

    def __init__(self, devices: list[LockableDevice], fds: list[int]) -> None:
        self.name = " and ".join(device.name for device in devices)
        self.fds = fds
        """Pass them to a child to make the locks last as long as the child."""
        self.environment: dict[str, str] = {}
        for device in devices:
            for name, value in device.environment.items():
                known = self.environment.get(name)
                self.environment[name] = f"{known},{value}" if known else value

    def release(self) -> None:
        """Give this process's locks back; does nothing the second time."""
        while self.fds:
            os.close(self.fds.pop())


def lockable_devices(kind: str) -> list[LockableDevice]:
    """Devices of this machine for a run's ``device``: the processors for ``cpu``, each visible GPU
    for ``cuda``."""
    if kind != "cuda":
        return [LockableDevice(name="the processors")]
    visible = os.environ.get(VISIBLE)
    numbers = map(str, range(len(host.gpus()))) if visible is None else visible.split(",")
    return [
        LockableDevice(name=f"GPU {n}", environment={VISIBLE: n}) for n in map(str.strip, numbers)
    ]


def take(among: list[LockableDevice], count: int, what: str) -> HeldDevices | None:
    """Lock `count` of these devices; None while others hold too many. `what` names this holder to
    those who wait.

    Raises OSError where the folder of the locks cannot be used.
    """
    taken, fds = [], []
    try:
        for device in among:
            if len(taken) < count and (fd := _lock(device, what)) is not None:
                taken.append(device)
                fds.append(fd)
        if len(taken) == count:
            return HeldDevices(taken, fds)
    except BaseException:
        HeldDevices(taken, fds).release()
        raise
    HeldDevices(taken, fds).release()
    return None


def _lock(device: LockableDevice, what: str) -> int | None:
    """A file descriptor that holds the device, or None while another process does."""
    lock = FileLock.take(_file(device), mode=0o666 if os.environ.get(FOLDER) else 0o600)
    if lock is None:
        return None
    told = json.dumps({"pid": os.getpid(), "what": what}).encode()
    os.pwrite(lock.fd, told, 0)  # first, so that there is no moment without a holder
    os.ftruncate(lock.fd, len(told))
    return lock.fd


def holder(device: LockableDevice) -> str:
    """The holder of a device, in words."""
    with suppress(OSError, ValueError, KeyError):
        told = read_object(_file(device), "it")
        return f"{told['what']}, process {told['pid']}"
    return "another process"


def _file(device: LockableDevice) -> Path:
    named = os.environ.get(FOLDER)
    folder = Path(named or Path(tempfile.gettempdir()) / f"workbench-places-{os.getuid()}")
    if named:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        try:
            private_folder(folder)
        except PermissionError as error:
            raise PermissionError(f"{error}; set {FOLDER} to a folder of your own") from None
    return folder / f"{device.name.replace(' ', '-').replace('/', '-')}.lock"
