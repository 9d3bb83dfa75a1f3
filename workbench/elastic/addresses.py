"""Addresses of hosts, and the one interface by which a manager is reached."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import psutil


def is_here(host: str) -> bool:
    """Whether a host is this machine, by an address of its loopback interface."""
    return host == "localhost" or host.startswith("127.")


def address_towards(hosts: Sequence[str], say: Callable[[str], object]) -> str:
    """This machine's address on the interface by which it reaches the first of the hosts that has
    an address. `say` is told of those before it that have none. Raises ValueError where no host has
    one."""
    lacking = []
    for host in hosts:
        if is_here(host):
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))  # sends nothing
            except OSError as error:
                lacking.append(f"the host {host} is not reached: {error.strerror}")
                continue
            address = probe.getsockname()[0]
        break
    else:
        if len(lacking) == len(hosts):
            raise ValueError(f"{'; '.join(lacking)}; mend the machine list, or give --manager_ip")
        address = "127.0.0.1"
    for each in lacking:
        say(f"{each}; the job begins without it")
    return address


def listen(address: str, before: int) -> socket.socket:
    """A socket at the port of before, where agents that are left of then learn that they are; or at
    another. Raises ValueError for an address that is none of this machine's."""
    for port in dict.fromkeys((before, 0)):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            return listener
        except OSError as error:
            listener.close()
            why = error.strerror
    raise ValueError(f"the manager cannot listen at {address}: {why}; give another --manager_ip")


def interface_of(address: str) -> str | None:
    """Network interface that has an address, where one has."""
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None
