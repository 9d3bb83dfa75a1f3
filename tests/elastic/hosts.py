"""Hosts of a job, all on this machine. With root, each has its own namespaces (network, pid, ipc,
mount) and shares files alone with others; else they are addresses of the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare")))
ALONE = "unshare --pid --ipc --mount --fork --kill-child --mount-proc"
ON = f"ip netns exec {{host}} {ALONE} sh -c 'mount -t tmpfs shm /dev/shm && \"$@\"' sh {{command}}"


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


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
