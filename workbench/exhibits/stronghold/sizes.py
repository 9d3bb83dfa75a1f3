"""Runs of each size of an exhibit, as named functions that return whole specs.

* ``smoke``: any laptop, no GPU, real DeepSpeed, real text; budgets of some MiB make memory scarce,
  in the published proportion of device to host, and an emulated link makes transfers as dear as
  they are on a GPU, where the copies of a machine without one would cost nothing.
* ``small``: one GPU, minutes.
* ``paper``: the published model (hidden 2048, 16 heads, sequence 1024, batch 4) under the published
  budgets. Without a GPU it is not run but simulated on the published machine.

Tests have a fourth, ``tiny``, of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.core.bytesize import parse_bytes
from workbench.core.host import available_cores
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.figures.verdict import DEEPSPEED

SIZES = ("smoke", "small", "paper")
LINK_PER_CORE = 75e6
"""Bytes per second of the emulated link for each core: a load of a block then takes about as
long as two forward passes of it, so a window of two cannot hide it and a larger one can, on few
cores or many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The dials of one size; everything else is the same for all methods."""

    name: str
    model: ModelSpec
    """Its `layers` are those of the throughput comparison (figure 8a) and of figure 9."""
    batch: int = 4
    """Samples."""
    steps: int = 8
    """Steps of a run that is timed."""
    device: str
    dtype: str = "fp32"
    window: int
    """STRONGHOLD's window for throughput, in layers; figure 6a uses `small_window`."""
    small_window: int = 4
    depths: tuple[int, ...]
    """Layer counts of the scaling line (figure 8b)."""
    windows: tuple[int, ...]
    """Windows of figure 9."""
    search_device_memory: int
    """Bytes of the largest-model search (figure 6a) and of figure 7a."""
    search_host_memory: int
    search_hidden: int
    search_limit: int
    """No search looks beyond this many layers."""
    link_bytes_per_s: float | None = None
    """Emulated link between host and device, each way, of timed runs on our own runtime."""
    device_memory: int | None = None
    """Cap of the device in the throughput comparisons, in bytes."""
    seed: int | None = None
    """None: the one of all runs."""

    def changed(self, **changes: Any) -> Size:
        """The size with other `layers`, `hidden`, `batch`, `window`, `steps` or `seed`; several
        layers are those of figure 8b, several windows those of figure 9."""
        own = {name: changes.pop(name) for name in ("layers", "hidden") if name in changes}
        if isinstance(own.get("layers"), tuple):
            changes["depths"] = own.pop("layers")
        if "hidden" in own:
            changes["search_hidden"] = own["hidden"]
        if isinstance(window := changes.get("window"), tuple):
            changes["windows"] = changes.pop("window")
        elif window:
            changes["small_window"] = window
        return replace(self, model=replace(self.model, **own), **changes)

    def spec(self, method: str, **changes: Any) -> RunSpec:
        """The run of one method; `layers` and `hidden` may be changed like any field."""
        model = self.model.to_dict()
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
            "activations": "recompute",  # as published
        }
        values |= {} if self.seed is None else {"seed": self.seed}
        return RunSpec.of(**{**values, **changes})

    def timed(self, method: str, **changes: Any) -> RunSpec:
        """A spec for a run whose speed counts: behind the emulated link, if there is one.

        DeepSpeed's copies are not ours to slow down.
        """
        link = None if method in DEEPSPEED else self.link_bytes_per_s
        return self.spec(method, link_bytes_per_s=link, **changes)


def smoke() -> Size:
    """Minutes on two cores: blocks of 0.79 M parameters, budgets of MiB, bytes as tokens."""
    return Size(
        name="smoke",
        model=ModelSpec(layers=8, hidden=256, heads=4, seq=128, vocab=256),
        steps=5,
        device="cpu",
        window=4,
        depths=(4, 8, 12),
        windows=(2, 4, 6, 8),
        search_device_memory=parse_bytes("64MiB"),
        search_host_memory=parse_bytes("170MiB"),
        search_hidden=256,
        search_limit=96,
        link_bytes_per_s=LINK_PER_CORE * max(2, available_cores()),
    )


def small() -> Size:
    """Minutes on one GPU: hidden 1024, a cap of 12 GiB for speed and of 6 GiB for size."""
    return Size(
        name="small",
        model=ModelSpec(layers=24, hidden=1024, heads=16, seq=1024, vocab=50304),
        device="cuda",
        window=8,
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
        name="paper",
        model=ModelSpec(layers=32, hidden=2048, heads=16, seq=1024, vocab=50304),
        device="cuda",
        window=15,
        depths=(16, 24, 32, 40, 48, 56, 64, 78, 92),
        windows=(2, 4, 6, 8, 10, 12, 14, 15),
        search_device_memory=parse_bytes("32GiB"),
        search_host_memory=parse_bytes("90GB"),
        search_hidden=2048,
        search_limit=200,
        device_memory=parse_bytes("32GiB"),
    )


def tiny() -> Size:
    """Size of tests: three layers of 32, and a search that ends at once."""
    return Size(
        name="tiny",
        model=ModelSpec(layers=3, hidden=32, heads=2, seq=16, vocab=256),
        batch=2,
        steps=3,
        device="cpu",
        window=2,
        small_window=2,
        depths=(2, 3),
        windows=(2, 3),
        search_device_memory=parse_bytes("1MiB"),
        search_host_memory=parse_bytes("2MiB"),
        search_hidden=32,
        search_limit=40,
        link_bytes_per_s=200e6,
    )


def named(size: str) -> Size:
    """A size by name; raises ValueError naming the known ones."""
    known = {"smoke": smoke, "small": small, "paper": paper, "tiny": tiny}
    if size not in known:
        raise ValueError(f"unknown size {size!r}; known: {', '.join(SIZES)}")
    return known[size]()
