"""Bandwidth of messages between two processes of one machine, by their size: over gloo on a
processor, over NCCL where two GPUs are.

`measure` starts the processes (together.py) and reads what they found.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from workbench.profile.collectives import MB
from workbench.profile.together import told_by
from workbench.ranks.process import RankContext


def measure(device: str, sizes: list[int], warmup: int, repeats: int) -> list[float]:
    """Seconds of a message of each size, in MB of 2^20 bytes: medians. Raises RuntimeError with the
    cause where a process fails or takes too long, and leaves none behind."""
    order = {"sizes": sizes, "warmup": warmup, "repeats": repeats}
    return told_by(2, device, __name__, order, "messages")[1]["seconds"]


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
