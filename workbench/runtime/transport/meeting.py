"""Process groups of gloo whose connections are proved.

Ports of gloo ask for no token. Eight bytes of a stranger may be the number of a connection that a
rank waits for; then that rank takes the stranger for its peer, and the peer waits without end. So
all ranks begin to make a group at one moment, which leaves a stranger little time, and then each
sends every other one its number through it. Where one does not arrive, all let go of the group and
make it again, at other ports. NCCL has a secret of its own, which the store tells.

A group is made with a brief timeout, which gloo keeps for sends and receives whatever the group is
told later. So they are given another one with each wait.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Thread

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

PATIENCE = timedelta(hours=12)
"""Ranks wait as long as others take to come and to compute: who hangs is told by a watchdog."""
MAKING = timedelta(seconds=60)
"""For ranks that have all come, to make a group; and for its numbers to arrive."""
ATTEMPTS, LOOK_S, SOON_S = 5, 0.005, 2.0
"""How often a group is made; between two looks at a number's arrival; after that, strangers are
looked for."""
Make = Callable[[int], dist.ProcessGroup | None]
"""From the number of the attempt to its group, with `MAKING` as timeout."""


def proved(
    make: Make, store: dist.Store, *, rank: int, world: int, patience: timedelta,
    members: Sequence[int] | None = None,
) -> dist.ProcessGroup | None:  # fmt: skip
    """Have every rank of a world make a group of some of its ranks, by default the world's own,
    until it is sound; all call it for all groups, in one order. Collectives of the group then wait
    for `patience`; sends and receives, by `wait`, for `PATIENCE`. Raises OSError where a stranger
    comes between each time."""
    whole, members = members is None, members or range(world)
    number = store.add(f"meetings/{rank}", 1)
    for attempt in range(ATTEMPTS):
        at = f"meeting/{number}/{attempt}"
        _all(store, f"{at}/here", world)
        before, group = _sockets().keys(), None
        try:
            group = make(attempt)
            store.set(f"{at}/ends/{rank}", json.dumps([*_sockets().keys() - before]))
            if rank in members:
                _prove(group, members.index(rank), len(members), store, at)
        except RuntimeError as error:
            if not store.check([f"{at}/bad"]):
                store.set(f"{at}/bad", f"rank {rank}: {error}")
        _all(store, f"{at}/told", world)
        if not store.check([f"{at}/bad"]):
            if rank in members:
                _set_pg_timeout(patience, group)
            return group
        for one, descriptor in _sockets().items():
            if one not in before:  # whoever waits there is told, and ends
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
        if whole and dist.is_initialized():
            dist.destroy_process_group()
        elif not whole and isinstance(group, dist.ProcessGroup):
            dist.destroy_process_group(group)
        left, group = [group], None
        Thread(target=left.clear, daemon=True).start()  # its end waits for what gloo waits for
    raise OSError(
        "the ranks could not connect: somebody else has sent bytes to their ports, "
        f"{ATTEMPTS} times ({store.get(f'{at}/bad').decode(errors='replace'):.200})"
    )


def wait(works: Iterable[dist.Work]) -> None:
    """Wait on the host for sends and receives of gloo, as long as others take. Left alone they wait
    for `MAKING`. There are no waits in pieces: where one is over, gloo closes all connections."""
    for work in works:
        work.wait(PATIENCE)


def _all(store: dist.Store, key: str, world: int) -> None:
    """Wait until every rank of the world has come."""
    if store.add(key, 1) == world:
        store.set(f"{key}/all", "1")
    store.wait([f"{key}/all"], PATIENCE)


def _prove(group: dist.ProcessGroup, own: int, count: int, store: dist.Store, at: str) -> None:
    """Send every rank of a group this one's number in it. Raises RuntimeError where another one's
    does not come, or where a rank has failed, as the store tells."""
    sent = torch.full((count,), own)  # [ranks]
    came = torch.full_like(sent, -1)
    work = dist.all_to_all_single(came, sent, group=group, async_op=True)
    began_s, world = time.monotonic(), dist.get_world_size()
    while not work.is_completed():
        if store.check([f"{at}/bad"]):
            raise RuntimeError("another rank has failed")
        waited_s = time.monotonic() - began_s
        if waited_s > SOON_S and (stranger := _stranger(store, f"{at}/ends", world)):
            raise RuntimeError(f"a stranger is at {stranger}")
        if waited_s > MAKING.total_seconds():
            raise RuntimeError(f"no number came within {waited_s:.0f} s")
        time.sleep(LOOK_S)
    work.wait()
    if came.tolist() != [*range(count)]:
        raise RuntimeError(f"numbers {came.tolist()} came")


def _stranger(store: dist.Store, key: str, world: int) -> str:
    """An end of a connection of this host that no rank has, though another one has its other end;
    empty where there is none, or a rank has not told of its own yet. Garbage that gloo takes for
    nothing leaves such ends, too: alone they prove nothing."""
    keys = [f"{key}/{rank}" for rank in range(world)]
    if not store.check(keys):
        return ""
    ends = [(here, there) for each in keys for here, there in json.loads(store.get(each))]
    gone = (a for a in ends if a[0][0] == a[1][0] and a[::-1] not in ends)
    return next((f"{there[0]}:{there[1]}" for _, there in gone), "")


def _sockets() -> dict[tuple, int]:
    """Descriptor of each connection of this process, by its two ends: address and port. Its own
    files are asked, and no table of all connections of the host, which takes 30 times as long."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it is no connection, or is gone
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    inet = one.family in (socket.AF_INET, socket.AF_INET6)
                    if inet and one.type == socket.SOCK_STREAM:
                        found[one.getsockname()[:2], one.getpeername()[:2]] = int(name)
    return found
