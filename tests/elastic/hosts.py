"""Hosts of a job, all on this machine. With root, each has its own namespaces (network, pid, ipc,
mount) and shares files alone with others; else they are addresses of the loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.runs.helpers import ROOT as CHECKOUT
from tests.runs.helpers import living, wait_for

VARUNA = (sys.executable, "-m", "workbench.cli", "varuna")
ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare")))
ON = (
    "ip netns exec {host} unshare --pid --ipc --mount --fork --kill-child --mount-proc "
    "sh -c 'mount -t tmpfs shm /dev/shm && \"$@\"' sh {command}"
)


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Names of hosts, flags of the job, and a command's first words where it is to reach them."""

    names: tuple[str, ...]
    flags: tuple[str, ...] = ("--manager_ip", "127.0.0.1")
    inside: tuple[str, ...] = ()

    def link(self, host: str, state: str) -> None:
        """Take a host's cable out (``down``), or put it in again (``up``)."""
        ip(f"-n {self.inside[-1]} link set port{self.names.index(host)} {state}")


@contextmanager
def some_hosts(count: int) -> Iterator[Hosts]:
    """So many hosts, with a bridge between them."""
    if not ROOT:
        warnings.warn("no root: hosts have no namespaces, but are 127.0.0.x", stacklevel=3)
        yield Hosts(names=tuple(f"127.0.0.{n + 2}" for n in range(count)))
        return
    bridge, *names = (f"wb-{os.getpid()}-{name}" for name in ("bridge", *range(count)))
    try:
        for name in (bridge, *names):
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
        ip(f"-n {bridge} link add bridge type bridge")
        ip(f"-n {bridge} addr add 10.77.9.254/24 dev bridge")
        ip(f"-n {bridge} link set bridge up")
        for n, name in enumerate(names):
            ip(f"-n {bridge} link add port{n} type veth peer name own netns {name}")
            ip(f"-n {bridge} link set port{n} master bridge up")
            ip(f"-n {name} addr add 10.77.9.{n + 1}/24 dev own")
            ip(f"-n {name} link set own up")
        flags = ("--manager_ip", "10.77.9.254", "--connect", ON)
        inside = ("ip", "netns", "exec", bridge)
        yield Hosts(names=tuple(names), flags=flags, inside=inside)
    finally:
        for name in (bridge, *names):
            subprocess.run(["ip", "netns", "del", name], check=False)


class Launched:
    """A job that a test starts on some hosts; its processes are known, so that none may be left."""

    def __init__(self, to: Path) -> None:
        self.to, self.folder, self.list = to, to / "run", to / "list"
        self.seen: dict[int, psutil.Process] = {}
        self.manager: subprocess.Popen | None = None

    def launch(self, *words: object, inside: tuple[str, ...] = ()) -> None:
        told = ["--machine_list", self.list, "--folder", self.folder, "--morph", "always", *words]
        with (self.to / "manager.log").open("ab") as log:
            command = [*inside, *VARUNA, *map(str, told)]
            self.manager = subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log)

    def hosts(self, *names: str) -> None:
        part = self.list.with_suffix(".part")
        part.write_text("\n".join(names))
        part.replace(self.list)

    def remember(self) -> None:
        if self.manager is not None and self.manager.poll() is None:
            for process in psutil.Process(self.manager.pid).children(recursive=True):
                self.seen.setdefault(process.pid, process)

    def end(self) -> None:
        if self.manager is not None and self.manager.poll() is None:
            for number in (signal.SIGTERM, signal.SIGINT):  # asked twice, it ends at once
                self.manager.send_signal(number)
            self.manager.wait(60)
        assert wait_for(lambda: not living(self.seen.values())), "a process is left"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
