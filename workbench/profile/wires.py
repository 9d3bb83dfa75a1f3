"""Measures transfers of several devices of one machine, to each other and to their host, all at
once.

A link that is measured alone says little of four that share the host's memory, and nothing of the
way from device to device. So as many processes as there will be ranks do together what a run does:
load and store pinned memory, write into each other's inboxes (transport/inbox.py), add up a buffer
over all and over groups, and with GPUs update on the host, alone and beside the rest
(contention.py). How long a message takes that weighs nothing is seen when one goes around: the
copy, the wait for its end, the word on the board, the look there. It is a bound: in a run the
devices wait for a message themselves (transport/signals.py), and hosts may be ahead of them.

`measure` starts them (together.py) and reads what they found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from workbench.profile.contention import measure_contention
from workbench.profile.loads import Copy, host_adam_load
from workbench.profile.profile import Wires
from workbench.profile.together import told_by
from workbench.ranks.process import RankContext
from workbench.runtime.executor.board import Board
from workbench.runtime.executor.threads import update_threads
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.transport.inbox import Inbox
from workbench.schedule.action import D2H, H2D, HOST

BYTES = {"cuda": 64 << 20, "cpu": 8 << 20}
"""Bytes of one transfer."""
SMALL = 4096
"""Bytes of a message whose time is nearly all latency."""
TIMES = 12


def measure(ranks: int, device: str) -> Wires:
    """Start the processes and wait. Raises RuntimeError with the cause where one of them fails or
    takes too long, and leaves none behind."""
    found = told_by(ranks, device, __name__, {}, f"the links of {ranks} ranks")
    # The slowest rank holds up the others.
    slowest = {name: min(each["rates"][name] for each in found) for name in found[0]["rates"]}
    pairs = found[0]["slowdowns"]
    updates = min(each["updates"] for each in found)
    return Wires(
        ranks=ranks,
        message_latency_s=max(each["latency"] for each in found),
        host_adam_params_per_s=ranks * updates or None,
        slowdowns={pair: max(each["slowdowns"][pair] for each in found) for pair in pairs},
        reduce_by_group={n: min(each["groups"][n] for each in found) for n in found[0]["groups"]},
        **slowest,
    )


def run_rank(context: RankContext) -> None:
    """One rank's measurements."""
    device, board = context.device, context.board
    kind, rank, ranks = device.type, context.rank, context.ranks
    nbytes = BYTES[kind]
    on_host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=kind == "cuda")
    here = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    inbox = Inbox(context.folder, rank, nbytes, device_meter(device), device, lambda: None)
    there = inbox.place((rank + 1) % ranks, 0, nbytes)
    floats = here.view(torch.float32)

    def seconds(action: Callable[[], object]) -> float:
        """Seconds of one action, while all ranks do it."""
        times = []
        for _ in range(TIMES):
            dist.barrier()
            _wait(device)
            start = perf_counter()
            action()
            _wait(device)
            times.append(perf_counter() - start)
        return median(times)

    rates = {
        "load_bytes_per_s": nbytes / seconds(lambda: here.copy_(on_host, non_blocking=True)),
        "store_bytes_per_s": nbytes / seconds(lambda: on_host.copy_(here, non_blocking=True)),
        "message_bytes_per_s": nbytes / seconds(lambda: there.copy_(here, non_blocking=True)),
        "reduce_bytes_per_s": nbytes / seconds(lambda: dist.all_reduce(floats)),
    }

    def send() -> None:
        there[:SMALL].copy_(here[:SMALL], non_blocking=True)
        if kind == "cuda":
            event = torch.cuda.Event(blocking=True)
            event.record()
            event.synchronize()

    told = {"rates": rates, "latency": _around(board, rank, ranks, send)}
    told["groups"] = {
        str(size): nbytes / seconds(partial(dist.all_reduce, floats, group=group))
        for size, group in _groups(ranks)
    }
    told |= {"updates": 0.0, "slowdowns": {}}
    if kind == "cuda":
        each, told["slowdowns"] = _contended(device, ranks)
        told["updates"] = each[HOST]
    context.tell(told)
    dist.barrier()  # nobody's inbox may go while others write


def _groups(ranks: int) -> list[tuple[int, dist.ProcessGroup]]:
    """This rank's group of each size of which there are several."""
    sizes = [size for size in range(2, ranks) if ranks % size == 0]
    return [(size, dist.new_subgroups(size)[0]) for size in sizes]


def _contended(device: torch.device, ranks: int) -> tuple[dict[str, float], dict[str, float]]:
    """Rates of a rank's lanes at the host's memory beside each other, with a GPU."""
    threads = update_threads(device.type, ranks)
    with ExitStack() as stack:
        lanes = {
            H2D: Copy(device, to_device=True),
            D2H: Copy(device, to_device=False),
            HOST: host_adam_load(device, threads, parts=ranks),
        }
        for load in lanes.values():
            stack.enter_context(load)
        return measure_contention(lanes, dist.barrier)


def _around(board: Board, rank: int, ranks: int, send: Callable[[], None]) -> float:
    """Seconds from one rank to the next of a message that all pass on; 0 on all but the first."""
    laps = []
    for lap in range(TIMES):
        start = perf_counter()
        if rank:
            board.wait(rank - 1, lap)
        send()
        board.publish(rank, lap)
        if rank == 0:
            board.wait(ranks - 1, lap)
            laps.append(perf_counter() - start)
    return median(laps) / ranks if laps else 0.0


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
