"""Checkpoints that a user's own code sets, of torch's re-entrant kind.

`torch.utils.checkpoint` has two kinds. The re-entrant one refuses `torch.autograd.grad`, by which
layers are taken backward here. It computes what the other kind does, so within a pass of ours the
other kind takes its place. Elsewhere it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.utils import checkpoint as torchs

from workbench.model.drawn import current, drawing


def recomputed(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call a function whose activations are computed again in the backward pass; the repetition
    draws the random numbers of the first time, and counts nothing twice."""
    now = current()

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), nullcontext() if now is None else drawing(now.again())

    return torchs.checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts,
        early_stop=stops_early(now), **kwargs,
    )  # fmt: skip


def stops_early(of: Any) -> bool:
    """Whether repetitions of a pass, or of passes of a model, may end at the last tensor that a
    backward pass needs. `F.rrelu` draws its slopes into one that autograd has noted before."""
    return not any(draw.hidden for draw in getattr(of, "draws", ()))


class Reentrant(torchs.CheckpointFunction):
    """Stands for torch's own function in a process that has run a pass of ours."""

    @classmethod
    def apply(cls, function: Callable, preserve: bool, *args: Any) -> Any:
        """As torch's; a pass whose random numbers belong to samples draws them again."""
        if current() is None:
            return super().apply(function, preserve, *args)
        return recomputed(function, *args)


def take_over() -> None:
    """Have `Reentrant` called where torch's function was."""
    torchs.CheckpointFunction = Reentrant
