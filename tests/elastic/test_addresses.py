"""The address of a manager, where hosts of the list have none."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest

from workbench.elastic import addresses


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that knows the host `far` alone."""

    def connect(to: tuple[str, int]) -> None:
        if to[0] != "far":
            raise socket.gaierror(-2, "Name or service not known")

    probe = Mock(connect=connect, getsockname=lambda: ("10.0.0.9", 4711))
    monkeypatch.setattr(
        addresses.socket,
        "socket",
        Mock(return_value=Mock(__enter__=lambda _: probe, __exit__=Mock(return_value=None))),
    )


@pytest.mark.parametrize(
    ("hosts", "address", "lacking"),
    [
        (["127.0.0.2", "localhost"], "127.0.0.1", []),
        (["127.0.0.2", "far"], "10.0.0.9", []),
        (["none", "127.0.0.2", "far", "nobody"], "10.0.0.9", ["none"]),
        (["none", "localhost"], "127.0.0.1", ["none"]),
    ],
)
def test_hosts_without_an_address_are_named_and_others_give_it(
    hosts: list[str], address: str, lacking: list[str]
) -> None:
    said: list[str] = []
    assert addresses.address_towards(hosts, said.append) == address
    told = "the host {} is not reached: Name or service not known; the job begins without it"
    assert said == [told.format(host) for host in lacking]


def test_where_no_host_has_an_address_there_is_no_job() -> None:
    with pytest.raises(ValueError, match="^the host none is .*; the host nobody is .*_ip$"):
        addresses.address_towards(["none", "nobody"], print)
