"""Counts copies over the links of one process and their bytes; on a CPU, emulates a slower link.

Bytes over the host's link are counted by their way and by what they are; what devices exchange, by
what it is alone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from workbench.core.record import BETWEEN, PARTS
from workbench.schedule.action import Kind
from workbench.schedule.schedule import Schedule

PASSING_BYTES = 1 << 15
_PARTS = {
    Kind.LOAD: "weights_in",
    Kind.GRAD_OUT: "gradients_out",
    Kind.FETCH: "activations_in",
    Kind.STASH: "activations_out",
    Kind.SUM_IN: "sums_in",
    Kind.SUM_OUT: "sums_out",
    Kind.SEND: "p2p",
    Kind.SEND_GRAD: "p2p",
    Kind.REDUCE: "all_reduced",
}
"""Kind of action -> the part of the traffic over the link, or to other devices, that it moves."""


def planned_parts(schedule: Schedule, batch: int) -> dict[str, int]:
    """Bytes that a step of several ranks, with so many samples, should move over the link and
    between devices, by part."""
    moved = dict.fromkeys(PARTS + BETWEEN, 0)
    for replica in range(schedule.replicas):
        for action in schedule.of_replica(replica, batch).actions:
            if action.kind in _PARTS:
                moved[_PARTS[action.kind]] += action.nbytes
    return moved


def counted_parts(ranks: Iterable[Mapping[str, int]], steps: int) -> dict[str, int]:
    """Bytes a step, by part, from counts of ranks in `steps` steps (`Traffic.parts`); {} where
    there were none."""
    total = Counter()
    for parts in ranks:
        total.update(parts)
    return {part: total[part] // steps for part in PARTS + BETWEEN} if steps else {}


class Traffic:
    """Counts bytes by their way: ``load`` to the device, ``store`` to the host, ``read`` from the
    disk and ``write`` to it. Called by all lanes."""

    def __init__(self, device: torch.device, link_bytes_per_s: float | None = None) -> None:
        """A link that is emulated sleeps for what its copies would take longer. Raises ValueError
        for one beside a real link."""
        if link_bytes_per_s and device.type != "cpu":
            raise ValueError(
                f"a link of {link_bytes_per_s:g} bytes/s cannot be emulated on {device}; leave "
                "link_bytes_per_s out, or use the cpu"
            )
        self.moved = {"load": 0, "store": 0, "read": 0, "write": 0}
        self.parts = Counter()
        """The bytes whose action was told, by what they are, and all between devices."""
        self._rate, self._lock = link_bytes_per_s, threading.Lock()

    def copy(self, way: str, target: Tensor, source: Tensor, kind: Kind | None = None) -> None:
        """One transfer, on the current stream, of an action of a kind."""
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if self._rate:
            time.sleep(max(0.0, start + source.nbytes / self._rate - time.perf_counter()))
        self.count(way, source.nbytes, kind)

    def count(self, way: str, nbytes: int, kind: Kind | None = None) -> None:
        """Count bytes that were moved by other means."""
        with self._lock:
            self.moved[way] += nbytes
            if kind is not None:
                self.parts[_PARTS[kind]] += nbytes

    def between(self, nbytes: int, kind: Kind) -> None:
        """Count bytes that went to other devices, and not over the host's link."""
        with self._lock:
            self.parts[_PARTS[kind]] += nbytes


def in_passing(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device that queues behind no transfer: CUDA sends up to 64 KiB of pageable
    memory with the commands, and more by the copy engine, which may be busy with states for long.
    """
    if device.type == "cpu":
        return tensor
    copy = torch.empty_like(tensor, device=device)
    pieces = (t.view(-1).split(PASSING_BYTES // t.itemsize) for t in (copy, tensor.contiguous()))
    for target, source in zip(*pieces, strict=True):
        target.copy_(source)
    return copy
