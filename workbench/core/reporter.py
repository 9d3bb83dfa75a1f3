"""How a method tells the world what it is doing; the worker gives `train` a Reporter."""

from __future__ import annotations

import sys
from typing import Any, Protocol

COMPILERS = ("_compile.compile_inner", "backward._backward_impl")
"""Names by which torch counts the time that its compiler takes."""
COMPILING, RANKS = "compiling", "waiting for the ranks"
"""Parts of a start: torch's compiler, and until the processes of all ranks are ready."""


class Reporter(Protocol):
    """Given to `train` by the worker, or by anyone who calls a method directly."""

    def phase(self, text: str) -> None:
        """A long preparation begins: ``profiling``, ``building operators``."""

    def step(self, step: int, loss: float, seconds: float) -> None:
        """Step `step` (from 0) is done."""

    def event(self, kind: str, **values: Any) -> None:
        """Anything else worth a line in events.jsonl."""


def compile_seconds() -> float:
    """How long torch's compiler has worked in this process; 0 where it was never needed."""
    utils = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(utils, "compilation_time_metrics", {})
    return float(sum(sum(metrics.get(name, ())) for name in COMPILERS))


class Untold:
    """The reporter of what nobody needs to hear: of ranks whose steps are those of the first."""

    def phase(self, text: str) -> None: ...

    def step(self, step: int, loss: float, seconds: float) -> None: ...

    def event(self, kind: str, **values: Any) -> None: ...
