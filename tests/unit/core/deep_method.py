"""Options of a made-up method, as somebody adds one who adds a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workbench.core import options
from workbench.core.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Options(options.Options):
    depth: int | Literal["auto"] = "auto"
    """How many layers ``deep`` it goes, 100 % at most."""
    end: Literal["first", "last"] = "first"
    """Which layer it begins with."""

    def check(self, spec: RunSpec) -> None:
        if self.depth != "auto" and self.depth > spec.model.layers:
            raise ValueError(f"depth is {self.depth}; it must be at most {spec.model.layers}")
