"""Streams of a device that a training takes, and gives back for the next one in its process.

Matrix products have a workspace, 32 MiB on recent GPUs, for each thread and stream that ever did
one, until the process ends: to free them would pull them from under recordings of another engine.
So a stream is not made anew where one is free that was in use for lanes of that kind: those of
copies multiply nothing, and are left without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch

from workbench.schedule.action import COMPUTE, lane_kind


def take(device: torch.device, lane: str = COMPUTE) -> torch.cuda.Stream:
    """A stream for a lane that nobody else has."""
    streams = _streams(_index(device), lane_kind(lane))
    stream = streams.free.pop() if streams.free else torch.cuda.Stream(device)
    streams.taken.append(stream)
    return stream


def give_back(streams: Mapping[str, torch.cuda.Stream]) -> None:
    """Let others take the streams of these lanes; several may have one. The device is done with all
    that was launched there."""
    for stream, lane in {stream: lane for lane, stream in streams.items()}.items():
        found = _streams(stream.device_index, lane_kind(lane))
        found.taken.remove(stream)
        found.free.append(stream)


def between_steps(device: torch.device) -> torch.cuda.Stream | None:
    """The stream on which a training's passes run, for passes between two steps; None where there
    is no training."""
    taken = _streams(_index(device), COMPUTE).taken
    return taken[-1] if taken else None


@dataclass
class _Streams:
    """Streams of a device for lanes of one kind: free ones, and ones that trainings have."""

    free: list[torch.cuda.Stream] = field(default_factory=list)
    taken: list[torch.cuda.Stream] = field(default_factory=list)


@cache
def _streams(device: int, kind: str) -> _Streams:
    return _Streams()


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
