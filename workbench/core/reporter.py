"""How a method tells the world what it is doing; the worker gives `train` a Reporter."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from workbench.core.bytesize import format_bytes

COMPILERS = ("_compile.compile_inner", "backward._backward_impl")
"""Names by which torch counts the time that its compiler takes."""
COMPILING, RANKS = "compiling", "waiting for the ranks"
"""Parts of a start: torch's compiler, and until the processes of all ranks are ready."""
MACHINE, DIVIDING = "measuring the machine", "choosing micro-batches"
DATA, PROFILING = "making the model, reading the data", "profiling"
WITHOUT_MEMORY = (MACHINE, DIVIDING, DATA, PROFILING)
"""Parts of a start in which a run lays out none of its memory."""

QUIET_S = 5.0
"""Between two lines about one phase."""


class Reporter(Protocol):
    """Given to `train` by the worker, or by anyone who calls a method directly."""

    def phase(self, text: str) -> None:
        """A long preparation begins: ``profiling``, ``building operators``."""

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        """Step `step` (from 0) is done; the norm is that before clipping, where it is known."""

    def event(self, kind: str, **values: Any) -> None:
        """Anything else worth a line in events.jsonl."""


class Lines:
    """A reporter that writes a line for each phase to the standard error stream, which a notebook
    shows below the cell: what is done, and how long it took."""

    _began = _spoke = 0.0
    """When the phase began, and when it was last told of; 0 is before the first."""

    def phase(self, text: str) -> None:
        """A long preparation begins."""
        self.end()
        self._began = self._spoke = time.monotonic()
        self._write(f"workbench: {text} ... ")

    def end(self) -> None:
        """The phase has ended, if there was one."""
        if self._began:
            self._write(f"{time.monotonic() - self._began:.1f} s\n")
        self._began = 0.0

    def event(self, kind: str, **values: Any) -> None:
        """Tell of an event; now and then of a ``part``, how many of `count` parts are done, and of
        ``bytes``."""
        now, text = time.monotonic(), values.get("text", values.get("reason"))
        if kind == "part" and now - self._spoke > QUIET_S:
            done, count = values["done"], values["count"]
            left = (now - self._began) / done * (count - done)
            text = f"{done} of {count}, about {left:.0f} s left"
        elif kind == "bytes":
            done, whole = format_bytes(values["done_bytes"]), format_bytes(values["all_bytes"])
            text = f"{text}: {done} of {whole}" if now - self._spoke > QUIET_S else ""
        if text and self._began:
            self._spoke = now
            self._write(f"{text}; ")

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        """Write nothing."""

    def say(self, text: str) -> None:
        """Tell of something that takes no time."""
        self.end()
        self._write(f"workbench: {text}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def compile_seconds() -> float:
    """How long torch's compiler has worked in this process; 0 where it was never needed."""
    utils = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(utils, "compilation_time_metrics", {})
    return float(sum(sum(metrics.get(name, ())) for name in COMPILERS))


class Untold:
    """The reporter of what nobody needs to hear: of ranks whose steps are those of the first."""

    def phase(self, text: str) -> None:
        """Write nothing."""

    def end(self) -> None:
        """Write nothing."""

    def say(self, text: str) -> None:
        """Write nothing."""

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        """Write nothing."""

    def event(self, kind: str, **values: Any) -> None:
        """Write nothing."""
