"""A run's curves for TensorBoard or Weights & Biases, written by these libraries themselves.

The worker writes them beside its events, so they also go on where whoever asked has left. Steps
count from 1, as evaluations do: a value at step n is of the weights after n steps, but for the loss
and the norm of that step's gradients. A run that goes on from a checkpoint writes over the steps
after it. What a library raises ends the log, not the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.core.model_spec import PICTURED
from workbench.core.record import HELD_OUT
from workbench.core.spec import RunSpec

TENSORBOARD, WANDB = "tensorboard", "wandb"
LOGS = (TENSORBOARD, WANDB)
"""Packages, which their names install."""
MODE = "WANDB_MODE"
"""Variable of the environment by which Weights & Biases is told where runs go."""

Values = Mapping[str, float]


def check_log(log: str) -> None:
    """Raise ValueError for a log that nobody writes, and for a package that is not installed."""
    if log and log not in LOGS:
        raise ValueError(f"log is {log!r}; it must be one of {', '.join(LOGS)}")
    if log and find_spec(log) is None:
        raise ValueError(f"log is {log!r}, and its package is not installed; pip install {log}")


def where_logged(log: str, folder: Path) -> str:
    """A line on what shows the log of a run's folder; empty where there is none."""
    if not log or not (folder / log).is_dir():
        return ""
    if log == TENSORBOARD:
        return f"log: tensorboard --logdir {folder / TENSORBOARD}"
    return f"log: {folder / WANDB}; wandb sync sends runs that were offline"


class Log:
    """The curves of one attempt at a run."""

    def __init__(self, log: str, spec: RunSpec, folder: Path, tell: Callable[[str], None]) -> None:
        """`folder` is the run's own; `tell` hears why the log ended, where it did. No library is
        loaded yet."""
        self._log, self._spec, self._folder, self._tell = log, spec, folder, tell
        self._planned: Values = {}
        self._steps = 0
        self._put: Callable[[Values, int], None] | None = None
        self._end: Callable[[], None] = lambda: None

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None) -> None:
        """Write the values of step `step` (from 0)."""
        spec = self._spec
        by_token = not spec.model.custom and spec.model.family not in PICTURED
        unit, size = ("tokens", spec.model.seq) if by_token else ("samples", 1)
        values = {"train/loss": loss, "train/learning_rate": spec.learning_rate(step)}
        if grad_norm is not None:
            values["train/gradient_norm"] = grad_norm
        if seconds > 0:
            values[f"train/{unit}_per_second"] = spec.batch * size / seconds
        self._steps = step + 1
        self._write({**self._planned, **values}, step + 1)
        self._planned = {}

    def event(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write what an event tells: an evaluation, and the bytes that are planned."""
        if kind == "evaluated":
            told = {f"held_out/{n}": float(values[n]) for n in HELD_OUT if n in values}
            self._write(told, values["step"])
        elif kind == "plan":
            self._planned = _bytes("planned_bytes", values.get("peak_bytes"))
        elif kind == "resumed":
            self._steps = values["next_step"]

    def ended(self, peak_bytes: Mapping[str, int | None]) -> None:
        """Write the most bytes of each tier that were in use."""
        self._write(_bytes("peak_bytes", peak_bytes), self._steps)

    def close(self) -> None:
        """All is on the disk."""
        with suppress(Exception):  # the library's; the run has ended
            self._end()

    def _write(self, values: Values, step: int) -> None:
        if not self._log or not values:
            return
        try:
            if self._put is None:
                opened = {TENSORBOARD: self._tensorboard, WANDB: self._wandb}[self._log]
                self._put, self._end = opened(step)
            self._put(values, step)
        except Exception as error:
            self._tell(f"{self._log} ends here: {type(error).__name__}: {error}")
            self._log = ""

    def _tensorboard(self, first: int) -> tuple[Callable[[Values, int], None], Callable[[], None]]:
        from torch.utils.tensorboard import SummaryWriter

        # What an attempt before wrote of this step and those after it no longer counts.
        writer = SummaryWriter(str(self._folder / TENSORBOARD), purge_step=first)

        def put(values: Values, step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return put, writer.close

    def _wandb(self, first: int) -> tuple[Callable[[Values, int], None], Callable[[], None]]:
        import wandb

        run = wandb.init(
            project="workbench", id=self._folder.name, dir=str(self._folder), resume="allow",
            config=self._spec.to_dict(), mode=None if MODE in os.environ else "offline",
        )  # fmt: skip
        return lambda values, step: run.log(dict(values), step=step), run.finish


def _bytes(name: str, tiers: Mapping[str, Any] | None) -> Values:
    return {f"{name}/{tier}": float(n) for tier, n in (tiers or {}).items() if n is not None}
