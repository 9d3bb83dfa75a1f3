"""Process groups of ranks, which talk over this machine's loopback interface and nothing else.

Ranks find each other through a file. Each listens for the others while the run lasts, on a port
that asks for no token, since gloo and NCCL have none. Left alone, these choose an interface where
others may connect; so it is set here, whatever the environment says.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workbench.runtime.transport.meeting import MAKING, PATIENCE, proved

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def join(
    device: torch.device,
    *,
    file: Path | None = None,
    rank: int = 0,
    ranks: int = 1,
    patience: timedelta = PATIENCE,
) -> None:
    """Join the process group of the ranks that share `file`; without one, of this process alone.
    Operations wait for `patience`."""
    os.environ.update(LOOPBACK)
    backend, gpu = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if file is None:
        join_world(backend, dist.HashStore(), 0, 1, patience)
    else:
        store = dist.FileStore(str(file.resolve()), ranks)
        join_world(backend, store, rank, ranks, patience, device_id=gpu)


def join_world(
    backend: str, store: dist.Store, rank: int, ranks: int, patience: timedelta, **more: Any,
) -> None:  # fmt: skip
    """Make the process group of all ranks, which `store` brings together. Raises OSError where its
    connections are disturbed."""
    own = {"rank": rank, "world_size": ranks, **more}
    if "gloo" not in backend or ranks == 1:
        dist.init_process_group(backend, store=store, timeout=patience, **own)
        return

    def make(attempt: int) -> dist.ProcessGroup:
        part = dist.PrefixStore(f"world-{attempt}", store)
        dist.init_process_group(backend, store=part, timeout=MAKING, **own)
        return dist.group.WORLD

    proved(make, store, rank=rank, world=ranks, patience=patience)
