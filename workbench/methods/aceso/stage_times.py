"""Time and memory of each process in the last step, in a CSV file as the artifact of Aceso
(EuroSys'24) writes it.

Passes are timed by their events, the rest with the device drained before and after, in the last
step alone. Gradients of a tied table are added up with all others, so their column is empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from workbench.methods.aceso.outputs import save_rows
from workbench.schedule.action import Kind
from workbench.schedule.simulate import Event

FOLDER = "stages"
"""Of these files, in a run's folder."""
TIMES = (
    "time", "forward-compute", "backward-compute", "backward-params-all-reduce",
    "backward-embedding-all-reduce", "optimizer", "batch-generator",
)  # fmt: skip
MEMORY = ("allocated", "max_allocated", "reserved", "max_reserved")
PASSES = {Kind.FORWARD: "forward-compute", Kind.BACKWARD: "backward-compute"}
MB = 2**20


class StageTimes:
    """Milliseconds of one step of a process, by the artifact's names."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.on = device, False
        self.ms: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Adds what the block takes, in the step that is timed."""
        if not self.on:
            yield
            return
        self._drain()
        began = time.perf_counter()
        yield
        self._drain()
        self.ms[name] = self.ms.get(name, 0.0) + 1e3 * (time.perf_counter() - began)

    def take(self, events: Iterable[Event]) -> None:
        """Add passes."""
        for event in events:
            if (name := PASSES.get(event.kind)) is not None:
                self.ms[name] = self.ms.get(name, 0.0) + 1e3 * (event.end_s - event.start_s)

    def save(self, folder: Path, *, batch: int, stage: int, rank: int, peak: int) -> None:
        """Write the file; `peak`: bytes that tensors took at most, as far as they were counted."""
        held: dict[str, float] = {"max_allocated": peak / MB}
        if self._device.type == "cuda":
            cuda = torch.cuda
            held = {
                "allocated": cuda.memory_allocated() / MB, "reserved": cuda.memory_reserved() / MB,
                "max_allocated": cuda.max_memory_allocated() / MB,
                "max_reserved": cuda.max_memory_reserved() / MB,
            }  # fmt: skip
        told = self.ms | held
        row = (f"{told[name]:.3f}" if name in told else "" for name in (*TIMES, *MEMORY))
        path = folder / FOLDER / f"stage{stage}_rank{rank}.csv"
        save_rows(path, ("global_batch_size", *TIMES, *MEMORY), [(batch, *row)])

    def _drain(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
