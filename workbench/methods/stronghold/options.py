"""Options of STRONGHOLD: which layers have their weights, states and activations where."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from workbench.core.spec import RunSpec
from workbench.methods.options import Auto, Clipping, HostUpdates


@dataclass(frozen=True, kw_only=True)
class Options(HostUpdates, Clipping):
    """Settings of STRONGHOLD; the planner chooses those that are ``auto``."""

    window: int | Auto = "auto"
    """Layers on the device at once; 2 to the number of layers."""
    resident: int | Auto = "auto"
    """First layers whose weights and optimizer states never leave the device."""
    pulled: int | Auto = "auto"
    """Layers after the resident ones whose weights stay on the device while their optimizer states
    come from the host to be updated there."""
    kept: int | Auto = "auto"
    """Last layers that keep their activations, where `activations` is ``auto``."""
    ends: Auto | Literal["device", "host"] = "auto"
    """Where the embedding and the head are updated, and their optimizer states lie. ``auto`` is the
    device, or the host where nothing fits otherwise."""
    disk_layers: int | Auto = "auto"
    """Last layers whose optimizer states live on the disk, where `optimizer_tier` is ``auto``."""

    @property
    def on_disk(self) -> bool:
        return super().on_disk or self.disk_layers not in ("auto", 0)

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        deep = spec.model.deep
        layers = inf if deep is None else deep
        most = "the number of layers" if deep is None else f"{deep}"
        has = "" if deep is None else f"the model has {deep} layers, so "
        if self.window != "auto" and not 2 <= self.window <= max(2, layers):
            raise ValueError(
                f"a window of {self.window} layers is out of range; {has}it must be 2 to {most}, "
                "or auto"
            )
        for name in ("resident", "kept", "pulled", "disk_layers"):
            value = getattr(self, name)
            if value != "auto" and not 0 <= value <= layers:
                raise ValueError(f"{name} is {value}; it must be 0 to {most}, or auto")
        none = self.kept == 0 and spec.activations != "keep"
        if self.kept != "auto" and spec.activations != "auto" and not none:
            raise ValueError(
                f"kept is {self.kept} and activations {spec.activations!r}; only with activations "
                "auto some layers keep theirs"
            )
        if self.disk_layers != "auto" and self.optimizer_tier != "auto":
            raise ValueError(
                f"disk_layers is {self.disk_layers} and optimizer_tier {self.optimizer_tier!r}; "
                "only with optimizer_tier auto some layers' states are on the disk"
            )
