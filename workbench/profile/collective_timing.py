"""Times collectives of groups of processes, one a device: over NCCL, on a processor over gloo.

`measure` starts the processes (together.py). All make the groups of a setting in one order, each is
in one of them, and none does two collectives at once. A GPU's are timed by its own events, several
behind each other, so that it waits for no launch.
"""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Mapping
from dataclasses import astuple
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.profile.bench import timed
from workbench.profile.collectives import Collective, Kind, Setting
from workbench.profile.shards import Repeats
from workbench.profile.timing import summarize
from workbench.profile.together import told_by
from workbench.ranks.process import RankContext
from workbench.runtime.executor.notes import leave
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.groups import as_one, new_group

BURST = 5
"""Collectives that a GPU is waited for together."""


def measure(
    devices: int, device: str, dtype: str, wanted: Mapping[Setting, list[int]], repeats: Repeats,
    keep: Callable[[Collective], None],
) -> None:  # fmt: skip
    """Measure settings at sizes in bytes, and `keep` each as soon as it is known. Raises
    RuntimeError with the cause where a process fails, and leaves none behind."""
    left = [*enumerate(wanted.items())]
    order = {"settings": [(astuple(each), sizes) for each, sizes in wanted.items()],
             "dtype": dtype, "warmup": repeats.warmup, "repeats": repeats.times[0]}  # fmt: skip

    def look(folder: Path) -> bool:
        before = len(left)
        while left and (note := _note(folder, left[0][0])).exists():
            _, (setting, sizes) = left.pop(0)
            told = json.loads(note.read_text())
            keep(Collective(setting=setting, bytes=tuple(sizes), **told))
        return len(left) < before

    told_by(devices, device, __name__, order, "collectives", look)


def _note(folder: Path, number: int) -> Path:
    return folder / f"setting-{number}.json"


def run_rank(context: RankContext) -> None:
    """One device's part in all settings; the first notes how long the slowest device took."""
    order, made = context.order, {}
    for number, (words, sizes) in enumerate(order["settings"]):
        setting = Setting(*words)
        spread = setting.devices, setting.stride
        if spread not in made:
            made[spread] = _joined(context.rank, context.ranks, *spread)
        (group, place), slowest = made[spread], []
        for nbytes in sizes:
            works = place < setting.groups
            took = [_timed(setting.kind, nbytes, group, context)] if works else []
            told = {"took": took, "left": _left()}
            every = as_one(lambda told=told: told, dist.group.WORLD)
            if any(each["left"] for each in every):
                return
            slowest.append(max(one for each in every for one in each["took"]))
        if context.rank == 0:
            seconds, spread = zip(*slowest, strict=True)
            leave(_note(context.folder, number), {"seconds": seconds, "spread": spread})
    context.tell({})
    dist.barrier()


def _left() -> bool:
    """Whether this rank's launcher, which holds the other end of its input, is gone."""
    return bool(select.select([0], [], [], 0)[0])


def _joined(
    rank: int, ranks: int, devices: int, stride: int
) -> tuple[dist.ProcessGroup | None, int]:
    """This rank's group of so many a stride apart, and its number among all of them."""
    if devices == ranks:
        return dist.group.WORLD, 0
    firsts = [n for n in range(ranks) if n % (devices * stride) < stride]
    for place, first in enumerate(firsts):
        members = range(first, first + devices * stride, stride)
        group = new_group(members)
        if rank in members:
            own = group, place
    return own


def _timed(
    kind: Kind, nbytes: int, group: dist.ProcessGroup | None, context: RankContext
) -> tuple[float, float]:
    """Seconds, and their spread."""
    device, order = context.device, context.order
    dtype = DTYPES[order["dtype"]]
    values = torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=device)
    action = _action(kind, values, group)
    action()  # makes the communicator, and loads what it needs
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    rounds = order["warmup"]
    timed([action], device, least=rounds, most=rounds)
    rounds = order["repeats"]
    (taken,) = timed([action], device, least=rounds, most=rounds, burst=min(BURST, rounds),
                     ahead=True)  # fmt: skip
    timing = summarize(taken)
    return timing.seconds, timing.spread


def _action(kind: Kind, values: Tensor, group: dist.ProcessGroup | None) -> Callable[[], object]:
    if kind == "all_reduce":
        return partial(dist.all_reduce, values, group=group)
    count, own = dist.get_world_size(group), len(values)
    do, size = {
        "all_gather": (dist.all_gather_into_tensor, own * count),
        "reduce_scatter": (dist.reduce_scatter_tensor, own // count),
        "all_to_all": (dist.all_to_all_single, own),
    }[kind]
    return partial(do, values.new_empty(size), values, group=group)
