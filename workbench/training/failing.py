"""Steps of a user's own loop that fail: what is told of them, and whether others may follow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torch import nn

from workbench.core.mistakes import without_prefix
from workbench.core.reporter import Reporter
from workbench.model.objective import PREFIX
from workbench.ranks.peers import Peers
from workbench.runtime.updates.adam_step import Diverged
from workbench.training.loop import Steps


class Failing:
    """Part of an engine whose steps may fail."""

    steps: int
    grad_norm: float | None
    skipped: int
    _failure: str
    _module: nn.Module
    _peers: Peers
    _report: Reporter
    _steps: Steps | None

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell what fails within as its user knows it; go on after it where that is possible."""
        number = self.steps
        try:
            yield
        except BaseException as error:
            told = ValueError(str(error)) if isinstance(error, Diverged) else error
            without_prefix(told, PREFIX, own=hasattr(self._module, PREFIX[:-1]))
            if self._steps is not None and not self._steps.whole:
                self._fail(f"step {number}", told)
            if told is error:
                raise
            raise told from None
        finally:
            self._report.end()

    def _tell_skipped(self, number: int) -> None:
        if not math.isfinite(self.grad_norm or 0.0):
            self.skipped += 1
            self._report.say(f"step {number} is left out, since its gradients are not finite")

    def _fail(self, failed: str, error: BaseException) -> None:
        """Go on after a step that has changed nothing; else `_check_open` will tell of it."""
        said = f"{type(error).__name__}: {error!s:.200}".removesuffix(": ")
        self._failure, self._steps.whole = f"{failed} failed ({said})", False
        if len(self._peers.folders) == 1 and failed != "load":
            with suppress(Exception):  # a device that has failed fails here, too
                self._steps.whole = self._steps.forget()

    def _settle(self) -> None:
        """Wait until all updates of the last step are made."""
        try:
            self._steps.settle()
        except BaseException as error:
            self._fail(f"step {self.steps - 1}", error)
            raise
