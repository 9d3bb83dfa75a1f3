"""Bandwidth of messages between two processes of one machine, by their size: over gloo on a
processor, over NCCL where two GPUs are.

`measure` starts the processes and reads what they found.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import torch
import torch.distributed as dist

from workbench.ranks.failures import RankFailed
from workbench.ranks.launcher import RankLauncher
from workbench.ranks.process import RankContext
from workbench.runtime.memory.tiers import OutOfMemory

MB = 1 << 20
LONGEST_S = 180.0
TOO_LONG = f"they have not answered after {LONGEST_S:.0f} s"


def measure(device: str, sizes: list[int], warmup: int, repeats: int) -> list[float]:
    """Seconds of a message of each size, in MB of 2^20 bytes: medians. Raises RuntimeError with the
    cause where a process fails or takes too long, and leaves none behind."""
    with tempfile.TemporaryDirectory(prefix="messages-") as name:
        order = {"sizes": sizes, "warmup": warmup, "repeats": repeats}
        with closing(RankLauncher(Path(name), __name__, 2, device=device, quiet=True)) as ran:
            deadline = monotonic() + LONGEST_S
            try:
                ran.make_board({"actions": 2, "ranks": 2, "units": 0})
                ran.start(order, meets=True)
                while ran.check(lambda: TOO_LONG if monotonic() > deadline else None):
                    sleep(0.02)
            except (RankFailed, OutOfMemory, ValueError, OSError) as error:
                raise RuntimeError(f"messages were not measured: {error}") from error
            return ran.results()[1]["seconds"]


def run_rank(context: RankContext) -> None:
    """One end of the messages: the first process sends, the second tells how long they took."""
    order, device, found = context.order, context.device, []
    for size in order["sizes"]:
        data = torch.zeros(size * MB, dtype=torch.uint8, device=device)
        times = []
        for _ in range(order["warmup"] + order["repeats"]):
            dist.barrier()
            began = perf_counter()
            dist.recv(data, 0) if context.rank else dist.send(data, 1)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(perf_counter() - began)
        found.append(median(times[order["warmup"] :]))
    context.tell({"seconds": found})
    dist.barrier()
