"""Shapes and lists; and what the command line refuses."""

from __future__ import annotations

import socket
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from workbench.cli import varuna as cli_varuna
from workbench.elastic.messages import Message, Order, pack, unpack
from workbench.elastic.placement import address_towards, fixed, place, read_list, shares


def test_a_list_of_machines() -> None:
    assert read_list("a:3\n\n# old\nb.c-d  # new\n", 4) == {"a": 3, "b.c-d": 4}
    for text, why in [("a\na:2\n", "a second time"), ("a b", "line 1"), ("a:0", "ADDRESS:SLOTS")]:
        with pytest.raises(ValueError, match=why):
            read_list(text, 4)


def test_shares_are_exact_and_ranks_fill_hosts_in_turn() -> None:
    assert shares(8192, 7) == (1171, 1171, 1170, 1170, 1170, 1170, 1170)
    with pytest.raises(ValueError, match="too small for 3 replicas"):
        fixed(2, 1, 2)(6, 2)
    with pytest.raises(ValueError, match="4 stages need 4 slots, and there are 3"):
        fixed(4, 1, 8)(3, 2)
    seats = place(fixed(2, 1, 9)(7, 4), {"a": 4, "b": 1, "c": 2, "d": 1})
    assert seats == {"a": range(4), "b": range(4, 5), "c": range(5, 6)}


@pytest.mark.parametrize(
    ("hosts", "address", "lacking"),
    [
        (["127.0.0.2", "localhost"], "127.0.0.1", []),
        (["127.0.0.2", "far"], "10.0.0.9", []),
        (["none", "127.0.0.2", "far", "nobody", "far2"], "10.0.0.9", ["none", "nobody"]),
        (["none", "localhost"], "127.0.0.1", ["none"]),
        (["none", "nobody"], None, []),
    ],
)
def test_hosts_without_an_address_are_named_and_others_give_it(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], address: str | None, lacking: list[str]
) -> None:
    def connect(to: tuple[str, int]) -> None:
        if not to[0].startswith("far"):
            raise socket.gaierror(-2, "Name or service not known")
        reached.append({"far": "10.0.0.9", "far2": "10.0.1.9"}[to[0]])

    opened, said, reached = MagicMock(), [], []
    opened.return_value.__exit__.return_value = None
    opened.return_value.__enter__.return_value = MagicMock(
        connect=connect, getsockname=lambda: (reached[-1], 4711)
    )
    monkeypatch.setattr(socket, "socket", opened)
    if address is None:
        with pytest.raises(ValueError, match="^host none of list has .*; host nobody of .*_ip$"):
            address_towards(hosts, "list", said.append)
    else:
        assert address_towards(hosts, "list", said.append) == address
    told = (
        "host {} of list has no address (Name or service not known); the job goes on without it, "
        "unless --connect reaches it"
    )
    assert said == [told.format(host) for host in lacking]


def test_messages_are_data_of_known_kinds() -> None:
    message = Message(kind="ended", round=1, rank=2, failure="died")
    assert unpack(pack(message)) == message
    for line in (b"", b"[]", b'{"kind": "shell"}', b'{"kind": "ended", "rank": "1"}', b'{"a": 1}'):
        with pytest.raises(ValueError, match="a message"):
            unpack(line)
    with pytest.raises(ValueError, match="a message"):
        unpack(pack(message), Order)


@pytest.mark.parametrize(
    ("listed", "flags", "why"),
    [
        ("", (), "names no host"),
        ("a b c", (), "line 1"),
        ("127.0.0.2\n127.0.0.2:1", (), "a second time"),
        ("127.0.0.2:8", ("--nstages", 2, "--chunk_size", 1, "--batch_size", 3), "too small"),
        ("127.0.0.2", ("--nstages", 5, "--chunk_size", 1), "need 5 slots"),
        ("127.0.0.2", ("--nstages", 2), "both"),
        ("127.0.0.2", ("--nstages", 0, "--chunk_size", 1), "from 1 to"),
        ("127.0.0.2", ("--batch_size", "9" * 30), f"--batch_size is {'9' * 30}; .* from 1 to"),
        ("127.0.0.2", ("--nstages", 2, "--chunk_size", 1, "--connect", "ssh {host}"), "command"),
        ("127.0.0.2", ("--nstages", 2, "--chunk_size", 1), "there is no script"),
        ("127.0.0.2", ("--nstages", 1, "--chunk_size", 1, "--horizon", "-1"), "over 0"),
        ("127.0.0.2", ("--nstages", 2, "--chunk_size", 1, "--batch_size", "x"), "invalid int"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path, listed: str, flags: tuple, why: str
) -> None:
    (tmp_path / "list").write_text(listed)
    words = ["--machine_list", tmp_path / "list", "--folder", tmp_path / "run", "--batch_size", 8]
    with pytest.raises(ValueError, match=why) as error:
        cli_varuna.main([*map(str, (*words, *flags, tmp_path / "none.py"))])
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["list"]
