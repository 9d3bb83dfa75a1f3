"""Streams of a device that a training takes, and gives back for the next one in its process.

Matrix products have a workspace, 32 MiB on recent GPUs, for each thread and stream that ever did
one, until the process ends: to free them would pull them from under recordings of another engine.
So a stream is not made anew where one is free that was in use for lanes of that kind: those of
copies multiply nothing, and are left without.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import torch

from workbench.schedule.action import COMPUTE, lane_kind


def take(device: torch.device, lane: str = COMPUTE) -> torch.cuda.Stream:
    """A stream for a lane that nobody else has."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(IndexError):
        return _free(index, lane_kind(lane)).pop()
    return torch.cuda.Stream(device)


def give_back(streams: Mapping[str, torch.cuda.Stream]) -> None:
    """Let others take the streams of these lanes; several may have one. The device is done with all
    that was launched there."""
    for stream, lane in {stream: lane for lane, stream in streams.items()}.items():
        _free(stream.device_index, lane_kind(lane)).append(stream)


@cache
def _free(device: int, kind: str) -> list[torch.cuda.Stream]:
    """Those that nobody has."""
    return []
