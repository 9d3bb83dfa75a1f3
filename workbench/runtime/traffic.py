"""What crosses the links of one process: copies and their bytes; on a CPU, also a slower link."""

from __future__ import annotations

import threading
import time

import torch
from torch import Tensor


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
        self._rate, self._lock = link_bytes_per_s, threading.Lock()

    def copy(self, way: str, target: Tensor, source: Tensor) -> None:
        """One transfer, on the current stream."""
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if self._rate:
            time.sleep(max(0.0, start + source.nbytes / self._rate - time.perf_counter()))
        self.count(way, source.nbytes)

    def count(self, way: str, nbytes: int) -> None:
        """Of what was moved by other means."""
        with self._lock:
            self.moved[way] += nbytes
