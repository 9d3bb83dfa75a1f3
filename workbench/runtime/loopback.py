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

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def join(
    device: torch.device,
    *,
    file: Path | None = None,
    rank: int = 0,
    ranks: int = 1,
    patience: timedelta | None = None,
) -> None:
    """Join the process group of the ranks that share `file`; without one, of this process alone."""
    os.environ.update(LOOPBACK)
    where: dict[str, Any] = {"store": dist.HashStore()}
    backend, gpu = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    if file is not None:
        where = {"init_method": f"file://{file.resolve()}", "device_id": gpu}
    dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=patience, **where)
