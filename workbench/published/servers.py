"""What this project measured on servers of several GPUs: the rows of that benchmark, read, checked.

``results/published-here/<device>/servers.csv`` has one row a run, as offload.csv has (here.py), and
is read by the same rules (sheet.py). A row is all ranks of a run together, but for its caps and
peaks of device memory, which are those of one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from workbench.published import sheet

FILE = "servers.csv"
COLUMNS = (
    "method", "ranks", "layers", "hidden", "heads", "seq", "batch", "dtype", "clip",
    "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second",
    "step_seconds_median", "step_seconds_spread", "predicted_step_seconds", "peak_device_gib",
    "predicted_peak_device_gib", "host_gib", "load_gib", "store_gib", "planned_load_gib",
    "planned_store_gib", "final_loss", "commit", "measured_on",
)  # fmt: skip
LABELS = {
    "plain": "plain, on one GPU",
    "data-parallel": "data parallel",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "zero-infinity": "ZeRO-Infinity",
    "dp-swap": "DP Swap",
    "pp-swap": "PP Swap",
    "harmony-dp": "Harmony-DP",
    "harmony-pp": "Harmony-PP",
}
"""The methods a row may name, and what figures call them; in the order in which they are drawn."""
SETTINGS = COLUMNS[:11]
"""What two runs must have in common to be one that was repeated."""
MOVED = ("load_gib", "store_gib", "planned_load_gib", "planned_store_gib")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRun:
    """One run: a row of the file in types. None stands for an empty field."""

    method: str
    """A key of `LABELS`."""
    variant: str
    """What stands in parentheses after the method; empty for the method's own choice."""
    ranks: int
    """GPUs that took part."""
    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    """The minibatch: samples of a step, of all ranks."""
    dtype: str
    clip: float | None
    """The global norm to which gradients are clipped; None without clipping."""
    device_cap_gib: float | None
    """Of each GPU; None for all of its memory."""
    host_cap_gib: float | None
    parameters: int | None
    status: str
    """As in run records; anything but ``ok`` has no speed."""
    samples_per_second: float | None
    step_seconds_median: float | None
    step_seconds_spread: float | None
    """Distance of the quartiles of the steady steps, as a share of the median."""
    predicted_step_seconds: float | None
    peak_device_gib: float | None
    """Of the GPU that needed most."""
    predicted_peak_device_gib: float | None
    host_gib: float | None
    load_gib: float | None
    """Over the host links to all GPUs in a step, as the runtime counted it; None where it does
    not."""
    store_gib: float | None
    """The same from the GPUs."""
    planned_load_gib: float | None
    """What the plan said of `load_gib`."""
    planned_store_gib: float | None
    final_loss: float | None
    commit: str
    date: date
    hardware: str
    """The device as `measured_on` names it."""
    device: str
    """The folder of the file: one per machine."""
    line: int
    """In the file, the header being 1."""
    runs: int = 1
    """How many rows of the file say the same settings; this is the last of them."""

    @property
    def label(self) -> str:
        """The method and its variant as a figure writes them."""
        return f"{LABELS[self.method]} ({self.variant})" if self.variant else LABELS[self.method]


def server_runs(roots: Iterable[Path]) -> list[ServerRun]:
    """The runs in ``<root>/published-here/*/servers.csv`` of every root, the last of equal ones.

    Empty where there is no such file. Raises ValueError as `read_servers` does.
    """
    runs = (run for file in sheet.files(roots, FILE) for run in read_servers(file))
    return sheet.latest(runs, SETTINGS)


def read_servers(path: Path) -> list[ServerRun]:
    """All rows of a file, in order. Lines that begin with ``#`` are comments.

    Raises ValueError for a file without the columns `COLUMNS` and for a row that cannot be right,
    naming file, line, column and value.
    """
    return sheet.read(path, COLUMNS, _READERS, ServerRun, _contradiction)


def _contradiction(run: ServerRun, texts: dict[str, str]) -> str:
    """What the fields of a row say against each other; empty where they agree."""
    if run.method == "plain" and run.ranks > 1:
        return f"ranks is {texts['ranks']!r}, and plain training runs on one GPU"
    return sheet.contradiction(run, texts)


_READERS: dict[str, Callable[[str], Any]] = {
    **sheet.READERS,
    "method": sheet.method_of(LABELS),
    "ranks": sheet.count,
    **dict.fromkeys(MOVED, sheet.amount),
}
