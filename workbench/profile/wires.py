"""What several devices of one machine move between each other and to their host, all at once.

A link that is measured alone says little of four that share the host's memory, and nothing of the
way from device to device. So as many processes as there will be ranks do together what a run does:
load and store pinned memory, write into each other's inboxes (runtime/inbox.py), add up a buffer
over all, and with GPUs update on the host, alone and beside the rest (company.py). How long a
message takes that weighs nothing is seen when one goes around: the copy, the wait for its end, the
word on the board, the look there. It is a bound: in a run the devices wait for a message themselves
(runtime/signals.py), and hosts may be ahead of them.

    python -m workbench.profile.wires FOLDER RANK RANKS DEVICE

is one of them; `measure` starts them and reads what they found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import torch
import torch.distributed as dist

from workbench.core.paths import import_path
from workbench.profile.company import in_company
from workbench.profile.loads import Copy, host_adam_load
from workbench.profile.profile import Wires
from workbench.runtime.board import Board
from workbench.runtime.device_budget import device_meter
from workbench.runtime.inbox import Inbox
from workbench.runtime.loopback import join
from workbench.runtime.threads import update_threads, use_rank_threads
from workbench.schedule.action import D2H, H2D, HOST

BYTES = {"cuda": 64 << 20, "cpu": 8 << 20}
"""Of one transfer."""
SMALL = 4096
"""Bytes of a message whose time is nearly all latency."""
TIMES = 12
LONGEST_S = 180.0
"""Until the processes must have answered."""


def measure(ranks: int, device: str) -> Wires:
    """Start the processes and wait. Raises RuntimeError with what one of them said where it fails,
    and leaves none behind."""
    with tempfile.TemporaryDirectory(prefix="wires-") as name:
        folder, started = Path(name), []
        try:
            Board.make(folder / "board", actions=ranks, ranks=ranks, units=0)
            for rank in range(ranks):
                with (folder / f"log-{rank}.txt").open("w") as log:
                    words = [__name__, name, str(rank), str(ranks), device]
                    command = [sys.executable, "-m", *words]
                    there = {**os.environ, **import_path()}
                    started.append(subprocess.Popen(command, stdout=log, stderr=log, env=there))
            deadline = monotonic() + LONGEST_S
            while any(process.poll() is None for process in started):
                if any(process.poll() for process in started) or monotonic() > deadline:
                    break
                sleep(0.02)
            failed = [rank for rank, process in enumerate(started) if process.poll() != 0]
            if failed:
                said = (folder / f"log-{failed[0]}.txt").read_text().strip().splitlines()
                raise RuntimeError(
                    f"rank {failed[0]} of {ranks} could not measure its links: "
                    f"{said[-1] if said else 'it said nothing in time'}"
                )
            found = [json.loads((folder / f"rates-{r}.json").read_text()) for r in range(ranks)]
        finally:
            for process in started:
                process.kill()
            for process in started:  # many take a while to go, but not one after the other
                process.wait()
    # Whoever is slowest holds up the others.
    slowest = {name: min(each["rates"][name] for each in found) for name in found[0]["rates"]}
    pairs = found[0]["slowdowns"]
    updates = min(each["updates"] for each in found)
    return Wires(
        ranks=ranks,
        message_latency_s=max(each["latency"] for each in found),
        host_adam_params_per_s=ranks * updates or None,
        slowdowns={pair: max(each["slowdowns"][pair] for each in found) for pair in pairs},
        **slowest,
    )


def main(folder: Path, rank: int, ranks: int, kind: str) -> None:
    """One rank's measurements, written to the folder."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    use_rank_threads(device.type, ranks)
    if kind == "cuda":
        torch.cuda.set_device(device)
    join(device, file=folder / "meeting", rank=rank, ranks=ranks)
    nbytes = BYTES[kind]
    on_host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=kind == "cuda")
    here = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    inbox = Inbox(folder, rank, nbytes, device_meter(device), device, lambda: None)
    there = inbox.place((rank + 1) % ranks, 0, nbytes)
    floats = here.view(torch.float32)

    def seconds(action: Callable[[], object]) -> float:
        """Of one, while all ranks do the same."""
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
    board = Board(folder / "board", actions=ranks, ranks=ranks, units=0, rank=rank)

    def send() -> None:
        there[:SMALL].copy_(here[:SMALL], non_blocking=True)
        if kind == "cuda":
            event = torch.cuda.Event(blocking=True)
            event.record()
            event.synchronize()

    told = {"rates": rates, "latency": _around(board, rank, ranks, send)}
    told |= {"updates": 0.0, "slowdowns": {}}
    if kind == "cuda":
        each, told["slowdowns"] = _in_company(device, ranks)
        told["updates"] = each[HOST]
    (folder / f"rates-{rank}.json").write_text(json.dumps(told))
    dist.barrier()  # nobody's inbox may go while others write


def _in_company(device: torch.device, ranks: int) -> tuple[dict[str, float], dict[str, float]]:
    """What a rank's lanes do at the host's memory beside each other, with a GPU."""
    threads = update_threads(device.type, ranks)
    with ExitStack() as stack:
        lanes = {
            H2D: Copy(device, to_device=True),
            D2H: Copy(device, to_device=False),
            HOST: host_adam_load(device, threads, parts=ranks),
        }
        for load in lanes.values():
            stack.enter_context(load)
        return in_company(lanes, dist.barrier)


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


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.stdout.flush()
    os._exit(0)  # a process group whose peers are gone may hang in its destructor
