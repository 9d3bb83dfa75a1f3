"""What each size of an exhibit runs, as named functions that return whole specs.

* ``smoke``: any laptop, no GPU, real DeepSpeed, real text; budgets of some MiB make memory scarce.
* ``small``: one GPU, minutes.
* ``paper``: the published model (hidden 2048, 16 heads, sequence 1024, batch 4) under the published
  budgets. Without a GPU it is not run but simulated on the published machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.model.spec import ModelSpec
from workbench.runs.spec import RunSpec
from workbench.units import parse_bytes

SIZES = ("smoke", "small", "paper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The dials of one size; everything else is the same for all methods."""

    model: ModelSpec
    """Its `layers` are those of the throughput comparison (figure 8a)."""
    batch: int
    steps: int
    device: str
    dtype: str
    window: int
    """STRONGHOLD's window for throughput; figure 6a uses `small_window`."""
    small_window: int
    depths: tuple[int, ...]
    """Layer counts of the scaling line (figure 8b)."""
    windows: tuple[int, ...]
    """Windows of figure 9."""
    search_device_memory: int
    search_host_memory: int
    """Budgets of the largest-model search (figure 6a)."""
    search_hidden: int
    search_limit: int
    """No search looks beyond this many layers."""
    link_bytes_per_s: float | None = None
    """Emulated link for figures 8b and 9, where a host copy would cost next to nothing."""
    device_memory: int | None = None
    """Cap of the device in the throughput comparisons."""

    def spec(self, method: str, **changes) -> RunSpec:
        """The run of one method; `layers` and `hidden` may be changed like any field."""
        model = {**self.model.to_dict()}
        for name in ("layers", "hidden"):
            if name in changes:
                model[name] = changes.pop(name)
        values = {
            "method": method,
            "model": ModelSpec.from_dict(model),
            "batch": self.batch,
            "steps": self.steps,
            "device": self.device,
            "dtype": self.dtype,
            "device_memory": self.device_memory,
        }
        return RunSpec(**{**values, **changes})


def smoke() -> Size:
    """Minutes on two cores: blocks of 0.8 M parameters, budgets of MiB, bytes as tokens."""
    return Size(
        model=ModelSpec(layers=12, hidden=256, heads=4, seq=128, vocab=256),
        batch=4,
        steps=8,
        device="cpu",
        dtype="fp32",
        window=4,
        small_window=2,
        depths=(4, 8, 12, 16, 24),
        windows=(2, 4, 6, 8, 10, 12),
        search_device_memory=parse_bytes("48MiB"),
        search_host_memory=parse_bytes("96MiB"),
        search_hidden=128,
        search_limit=96,
        link_bytes_per_s=400e6,
    )


def small() -> Size:
    """Minutes on one GPU: hidden 1024, a cap of 4 GiB."""
    return Size(
        model=ModelSpec(layers=24, hidden=1024, heads=16, seq=1024, vocab=50304),
        batch=4,
        steps=8,
        device="cuda",
        dtype="fp32",
        window=8,
        small_window=4,
        depths=(8, 12, 16, 24, 32, 48),
        windows=(2, 4, 6, 8, 10, 12, 15),
        search_device_memory=parse_bytes("6GiB"),
        search_host_memory=parse_bytes("16GiB"),
        search_hidden=1024,
        search_limit=160,
        device_memory=parse_bytes("12GiB"),
    )


def paper() -> Size:
    """The published runs: fp32, batch 4, 32 GiB of device and 90 GB of host memory."""
    return Size(
        model=ModelSpec(layers=32, hidden=2048, heads=16, seq=1024, vocab=50304),
        batch=4,
        steps=8,
        device="cuda",
        dtype="fp32",
        window=15,
        small_window=4,
        depths=(16, 24, 32, 40, 48, 56, 64, 78, 92),
        windows=(2, 4, 6, 8, 10, 12, 14, 15),
        search_device_memory=parse_bytes("32GiB"),
        search_host_memory=parse_bytes("90GB"),
        search_hidden=2048,
        search_limit=200,
        device_memory=parse_bytes("32GiB"),
    )


def named(size: str) -> Size:
    """A size by name; raises ValueError naming the known ones."""
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; known: {', '.join(SIZES)}")
    return {"smoke": smoke, "small": small, "paper": paper}[size]()
