"""Process groups of a pipeline's workers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.distributed as dist

from workbench.core.stage_map import StageMap
from workbench.runtime import loopback
from workbench.runtime.group_transport import Channel
from workbench.runtime.groups import PATIENCE

CARRIERS = ("auto", "nccl", "gloo")


def device_of(device: int | str | torch.device, local_rank: int) -> torch.device:
    """A process's device; -1 is its GPU, where there is one. Raises ValueError for one that is not
    there."""
    if device == -1:
        number = max(0, local_rank)
        device = number if torch.cuda.is_available() else "cpu"
    found = torch.device(device) if not isinstance(device, int) else torch.device("cuda", device)
    if found.type == "cuda":
        if (found.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device is {found}; there are {torch.cuda.device_count()} GPUs")
        torch.cuda.set_device(found)
    return found


def join(device: torch.device) -> None:
    """Join the world that the environment names, unless the script has; without one, that
    of this process alone, which listens on loopback only."""
    if dist.is_initialized():
        return
    if "RANK" in os.environ:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    else:
        loopback.join(device, patience=PATIENCE)


def carrier(wanted: str, device: torch.device) -> str:
    """The backend of messages and sums. Raises ValueError for NCCL without a GPU."""
    if wanted not in CARRIERS:
        raise ValueError(f"transport is {wanted!r}; give {', '.join(CARRIERS)}")
    if wanted == "nccl" and device.type != "cuda":
        raise ValueError("transport is 'nccl', which needs a GPU; give gloo or auto")
    return ("nccl" if device.type == "cuda" else "gloo") if wanted == "auto" else wanted


def group(ranks: Iterable[int], backend: str) -> dist.ProcessGroup | None:
    """A group of these ranks; all processes of the world make all groups, in one order. None for
    one rank."""
    ranks = sorted(ranks)
    if len(ranks) < 2:
        return None
    return dist.new_group(ranks, backend=backend, timeout=PATIENCE)


def neighbours(
    places: StageMap, rank: int, backend: str, everybody: dist.ProcessGroup, device: torch.device,
    *, ring: bool = False,
) -> dict[Channel, dist.ProcessGroup]:  # fmt: skip
    """What carries messages with the neighbours in the pipeline, in a `ring` from the last to the
    first, too: the group of everybody with gloo, with NCCL a communicator for each channel, which
    has exchanged a number."""
    found: dict[Channel, dist.ProcessGroup] = {}
    for replica in range(places.replicas):
        members = [places.rank(stage, replica) for stage in range(places.stages)]
        around = members[:1] if ring and len(members) > 1 else []
        for pair in pairwise(members + around):
            for forward in (True, False):
                made = everybody if backend == "gloo" else group(pair, backend)
                if rank not in pair:
                    continue
                (peer,) = {*pair} - {rank}
                found[peer, forward, rank == pair[0]] = made
                if made is not everybody:
                    dist.all_reduce(torch.zeros(1, device=device), group=made)
                    number = torch.zeros(1, device=device)
                    sends = (rank == pair[0]) == forward
                    (dist.send if sends else dist.recv)(number, peer, group=made)
    return found


def check_world(places: StageMap) -> None:
    """Raise ValueError where a map is of another world."""
    ranks = places.stages * places.replicas
    if ranks != dist.get_world_size():
        raise ValueError(
            f"stage_to_rank_map {str(places)!r} has {ranks} ranks, and {dist.get_world_size()} "
            "processes run"
        )
