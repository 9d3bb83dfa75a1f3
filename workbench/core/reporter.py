"""How a method tells the world what it is doing; the worker gives `train` a Reporter."""

from __future__ import annotations

from typing import Any, Protocol


class Reporter(Protocol):
    """Given to `train` by the worker, or by anyone who calls a method directly."""

    def phase(self, text: str) -> None:
        """A long preparation begins: ``profiling``, ``building operators``."""

    def step(self, step: int, loss: float, seconds: float) -> None:
        """Step `step` (from 0) is done."""

    def event(self, kind: str, **values: Any) -> None:
        """Anything else worth a line in events.jsonl."""


class Untold:
    """The reporter of what nobody needs to hear: of ranks whose steps are those of the first."""

    def phase(self, text: str) -> None: ...

    def step(self, step: int, loss: float, seconds: float) -> None: ...

    def event(self, kind: str, **values: Any) -> None: ...
