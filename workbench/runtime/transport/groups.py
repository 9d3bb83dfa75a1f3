"""Sums over the ranks that name them, which need not be all, and over their replicas; and what all
ranks do as one.

Replicas of one stage of a pipeline add up their gradients, and no other stage's. Three ranks or
more add up 16-bit gradients in fp32 and round the sum once; in a sum in 16 bits each rank would
round it in turn. Gradients of stages that stay with processes of any hosts are fp32 themselves
(updates/stage_weights.py), and need no such care.

Ranks tell each other JSON and tensors. torch's collectives of objects send pickles, by which
whoever reaches a rank's port could have it run code.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.transport import loopback
from workbench.runtime.transport.cut import wait
from workbench.runtime.transport.meeting import MAKING, PATIENCE, proved
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Schedule

PIECE = 1 << 22
"""Elements that ranks exchange at a time for a sum in fp32. No schedule plans this memory, 8 MiB
for each of the tensors of an exchange."""


class Groups:
    """A process group for each set of ranks; the world's, where that is all of them."""

    def __init__(self, schedule: Schedule, everybody: dist.ProcessGroup | None = None) -> None:
        """On every rank before the first step: torch makes a group with all, in one order.
        `everybody` is that of all ranks, the world's by default."""
        self._everybody = everybody
        mesh = schedule.mesh
        self._ranks: dict[tuple, list[int]] = defaultdict(list)
        for action in sorted(schedule.actions, key=lambda action: action.rank):
            if action.kind is Kind.REDUCE:
                self._ranks[action.meeting] += mesh.peers(action.rank)
        self._made = {
            ranks: new_group(ranks)
            for ranks in sorted({*map(tuple, self._ranks.values())})
            if len(ranks) < mesh.processes
        }

    def add_up(self, values: Tensor, action: Action) -> int:
        """Make a rank's flat values the sum of all that take part, which is made in fp32 at the
        least; returns the first of these."""
        ranks = self._ranks[action.meeting]
        group = self._made.get((*ranks,), self._everybody)
        add_up(values, len(ranks), group)
        return ranks[0]


def add_up(values: Tensor, ranks: int, group: dist.ProcessGroup | None) -> None:
    """Make flat values the sum of those of all `ranks` of a group, made in fp32 at the least."""
    if values.itemsize > 2 or ranks < 3:  # a sum of two is rounded once in any case
        dist.all_reduce(values, group=group)
        return
    for piece in values.split(PIECE):
        _add_up_in_fp32(piece, ranks, group)


def _add_up_in_fp32(values: Tensor, ranks: int, group: dist.ProcessGroup | None) -> None:
    """Make flat 16-bit values the sum of those of all `ranks` of a group, rounded once.

    Each rank adds up one share for all, so no more bytes travel than for a sum in 16 bits.
    """
    share = -(-len(values) // ranks)
    whole = values.new_zeros(ranks * share)  # [values, and zeros to equal shares]
    whole[: len(values)] = values
    came = torch.empty_like(whole)
    dist.all_to_all_single(came, whole, group=group)
    total = came.view(ranks, share).sum(0, dtype=torch.float32).to(values.dtype)  # [share]
    dist.all_gather([*whole.view(ranks, share)], total, group=group)
    values.copy_(whole[: len(values)])


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


def join(device: torch.device) -> bool:
    """Join the world that the environment names, unless the script has; without one, that of this
    process alone. One of one host listens on loopback only. Returns whether to leave it in the end:
    several processes could not join a second time, theirs stays."""
    if dist.is_initialized():
        return False
    if "RANK" in os.environ:
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
            os.environ.update(loopback.LOOPBACK)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store, rank, ranks = next(dist.rendezvous("env://", timeout=PATIENCE))
        store.set_timeout(PATIENCE)
        loopback.join_world(backend, store, rank, ranks, PATIENCE)
    else:
        loopback.join(device)
    return dist.get_world_size() == 1


def new_group(
    ranks: Iterable[int] | None = None, backend: str | None = None, patience: timedelta = PATIENCE,
    *, options: Any = None,
) -> dist.ProcessGroup | None:  # fmt: skip
    """A process group of some ranks, by default of all and of the world's backend; all ranks call
    it, in one order. Its operations wait for `patience`. `options` are NCCL's. Raises OSError
    where its connections are disturbed."""
    members = [*range(dist.get_world_size())] if ranks is None else sorted(ranks)
    if "gloo" not in (backend or dist.get_backend()) or len(members) == 1:
        return dist.new_group(members, backend=backend, timeout=patience, pg_options=options)
    return proved(
        lambda _: dist.new_group(members, backend=backend, timeout=MAKING),
        dist.distributed_c10d._get_default_store(), rank=dist.get_rank(),
        world=dist.get_world_size(), patience=patience, members=members,
    )  # fmt: skip


def as_one(do: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any]:
    """Have every rank of a group do something; returns what all of them found, by rank: values of
    JSON. None is this process alone.

    Raises, on every rank, the ValueError, OSError or OutOfMemory of the first one that has one; one
    of a class that this rank does not know as ValueError or OSError. It has an attribute `of_all`.
    """
    if group is None:
        return [do()]
    try:
        mine = {"found": do()}
    except (OSError, ValueError, SafetensorError, OutOfMemory) as error:
        kind, own = type(error), {"args": [str(error)], "fields": {}}
        if kind.__module__.startswith("workbench."):
            own = {"args": error.args, "fields": vars(error)}
        base = "ValueError" if isinstance(error, ValueError) else "OSError"
        mine = {"failed": {"kind": _name(kind), "base": base, **own}}
    sent = json.dumps(mine, default=str if "failed" in mine else None).encode()
    told = [json.loads(each) for each in _of_all(sent, group)]
    for failed in (each["failed"] for each in told if "failed" in each):
        known = {_name(k): k for base in (ValueError, OSError, OutOfMemory) for k in _kinds(base)}
        plain = {"ValueError": ValueError}.get(failed["base"], OSError)
        ours = failed["kind"].startswith("workbench.")
        kind = known.get(failed["kind"], plain) if ours else plain
        error = kind.__new__(kind, *failed["args"])  # how it was initialized, its fields tell
        vars(error).update(failed["fields"], of_all=True)
        raise error
    return [each["found"] for each in told]


def of_first(value: Any, group: dist.ProcessGroup | None) -> Any:
    """A value of JSON that the first rank of a group has, on every rank."""
    mine = b"" if dist.get_rank(group) else json.dumps(value).encode()
    return json.loads(_of_all(mine, group)[0])


def tensors_of_all(
    mine: Mapping[str, Tensor], group: dist.ProcessGroup | None
) -> list[dict[str, Tensor]]:
    """Named tensors of every rank, by rank, as copies on the host."""
    copies = {n: each.detach().cpu().clone().contiguous() for n, each in mine.items()}
    if group is None:
        return [copies]
    return [load(each) for each in _of_all(save(copies), group)]


def _of_all(mine: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    """Bytes of every rank, by rank."""
    on_gpu = dist.get_backend(group) == dist.Backend.NCCL
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    own = torch.tensor([len(mine)], device=device)  # [1]
    sizes = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    wait(dist.all_gather(sizes, own, group=group, async_op=True), group)
    lengths = [int(size) for size in sizes]
    own = torch.zeros(max(lengths), dtype=torch.uint8)  # [bytes of the longest]
    own[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else own[:0]
    own = own.to(device)
    told = [torch.empty_like(own) for _ in lengths]
    wait(dist.all_gather(told, own, group=group, async_op=True), group)
    every = zip(told, lengths, strict=True)
    return [each[:length].cpu().numpy().tobytes() for each, length in every]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
