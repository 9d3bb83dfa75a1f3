"""Process groups of a pipeline's workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from workbench.core.stage_map import StageMap
from workbench.runtime.transport.group_transport import Channel
from workbench.runtime.transport.groups import new_group

CARRIERS = ("auto", "nccl", "gloo")
MESSAGE_BLOCKS = 2
"""Blocks of NCCL's kernel for a message. The kernel of a receive waits on the device beside passes,
and with NCCL's own number of blocks takes a tenth of it."""


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
    return new_group(ranks, backend)


Link = tuple[int, int]
"""Positions of a stage and of the one behind it."""


def stage_links(positions: Sequence[int]) -> dict[int, Link]:
    """Stage that others send to -> positions of the stage in front and its own, where these are
    two. Messages of stages that have lanes of their own come in no common order, so each such link
    needs its own channels."""
    pairs = enumerate(pairwise(positions), 1)
    return {stage: (front, back) for stage, (front, back) in pairs if front != back}


def neighbours(
    places: StageMap, links: Sequence[Link] | Mapping[int, Link], rank: int, backend: str,
    everybody: dist.ProcessGroup, device: torch.device,
) -> dict[Channel, dist.ProcessGroup]:  # fmt: skip
    """Carriers of the messages with the neighbours in the pipeline, whose positions `links` are
    pairs of, or of each link of stages (`stage_links`): the group of everybody with gloo, with NCCL
    a communicator for each channel, which has exchanged a number."""
    named = isinstance(links, Mapping)
    every = links.items() if named else [(None, link) for link in links]
    pairs = [
        (places.rank(link[0], replica), places.rank(link[1], replica), *([stage] if named else []))
        for replica in range(places.replicas) for stage, link in every
    ]  # fmt: skip
    return linked(pairs, rank, backend, everybody, device)


def linked(
    pairs: Iterable[tuple[int, ...]], rank: int, backend: str, everybody: dist.ProcessGroup,
    device: torch.device,
) -> dict[Channel, dist.ProcessGroup]:  # fmt: skip
    """Carriers of the messages of a process, as `neighbours` has them, with those that it makes a
    pair with: the process in front, the one behind, and what else names the pair's channels."""
    found: dict[Channel, dist.ProcessGroup] = {}
    for front, back, *more in pairs:
        for forward in (True, False):
            pair = [front, back]
            made = everybody if backend == "gloo" else new_group(pair, backend, options=few())
            if rank not in pair:
                continue
            (peer,) = {*pair} - {rank}
            found[peer, forward, rank == front, *more] = made
            if made is not everybody:
                dist.all_reduce(torch.zeros(1, device=device), group=made)
                number = torch.zeros(1, device=device)
                sends = (rank == front) == forward
                (dist.send if sends else dist.recv)(number, peer, group=made)
    return found


def few() -> dist.ProcessGroupNCCL.Options:
    """NCCL's options of a group for messages."""
    options = dist.ProcessGroupNCCL.Options()
    options.config.min_ctas, options.config.max_ctas = 1, MESSAGE_BLOCKS
    return options


def check_world(places: StageMap) -> None:
    """Raise ValueError where a map is of another world."""
    ranks = places.stages * places.replicas
    if ranks != dist.get_world_size():
        raise ValueError(
            f"stage_to_rank_map {str(places)!r} has {ranks} ranks, and {dist.get_world_size()} "
            "processes run"
        )
