"""Dials of STRONGHOLD's exhibits (``sizes/stronghold.toml``), and the runs that they ask for.

Budgets of size ``smoke`` are some MiB, which make memory scarce, in the published proportion of
device to host, and an emulated link makes transfers as dear as they are on a GPU, where the copies
of a machine without one would cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.core.host import available_cores
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.exhibits import dials
from workbench.figures.verdict import DEEPSPEED


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestModelSearch:
    """The search for the largest model (figure 6a), which also sets the runs of figure 7a."""

    hidden: int
    device_memory: int
    """Bytes."""
    host_memory: int
    limit: int
    """No search looks beyond this many layers."""

    @property
    def setting(self) -> dict[str, int]:
        """Fields of its runs' specs."""
        names = ("hidden", "device_memory", "host_memory")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class StrongholdSize:
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
    largest: LargestModelSearch
    link_bytes_per_s: float | None = None
    """Emulated link between host and device, each way, of timed runs on our own runtime."""
    link_bytes_per_s_of_a_core: float | None = None
    """The link's for each core of this machine, of two at least, instead."""
    device_memory: int | None = None
    """Cap of the device in the throughput comparisons, in bytes."""
    seed: int | None = None
    """None: the one of all runs."""

    def changed(self, **changes: Any) -> StrongholdSize:
        """The size with other `layers`, `hidden`, `batch`, `window`, `steps` or `seed`; several
        layers are those of figure 8b, several windows those of figure 9."""
        own = {name: changes.pop(name) for name in ("layers", "hidden") if name in changes}
        if isinstance(own.get("layers"), tuple):
            changes["depths"] = own.pop("layers")
        if "hidden" in own:
            changes["largest"] = replace(self.largest, hidden=own["hidden"])
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
        link, of_a_core = self.link_bytes_per_s, self.link_bytes_per_s_of_a_core
        if of_a_core is not None:
            link = of_a_core * max(2, available_cores())
        link = None if method in DEEPSPEED else link
        return self.spec(method, link_bytes_per_s=link, **changes)


def named(size: str) -> StrongholdSize:
    """A size by name; raises ValueError naming the known ones."""
    return dials.named("stronghold", StrongholdSize, size)
