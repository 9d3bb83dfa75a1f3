"""Updates that are made before the norm is known: what becomes of them when it is.

Shared by the optimizer of one device (optimizer.py) and that of several ranks (host_updates.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from workbench.runtime.updates.adam_step import AdamStep

Slabs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Weights, both moments, gradients."""


class Settled(dict[str, int]):
    """How many updates `stood`, were taken back and made again (`redone`), and had `waited`."""

    def __init__(self) -> None:
        super().__init__(stood=0, redone=0, waited=0)

    def verdict(
        self, guess: AdamStep | None, hyper: AdamStep | None
    ) -> tuple[AdamStep | None, AdamStep | None]:
        """(update to make, update to take back before) where the update was made as `guess` (None:
        it was not) and should be `hyper` (None: the step is skipped)."""
        if guess is not None and guess == hyper:
            self["stood"] += 1
            return None, None
        self["waited" if guess is None else "redone"] += 1
        return hyper, guess


def apply(
    adam: ModuleType, slabs: Slabs, hyper: AdamStep | None, undo: AdamStep | None, **settings: Any
) -> None:
    """Take `undo` back and make `hyper`, as far as there are, on the tier of `adam`."""
    if hyper is not None or undo is not None:
        adam.update(*slabs, hyper, undo=undo, **settings)
