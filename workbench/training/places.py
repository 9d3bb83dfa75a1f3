"""Where an evaluation takes place: on the device that trains, as long as it has room.

Training is settled between two steps, so what its passes took at their peak is free, and no more
than that is taken: first with weights that come ahead of their turn, then with as little as
possible. A plan that leaves less may leave something under its budget. Where that is too little,
too, the processor is the place, in fp32.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from typing import TypeVar

import torch

from workbench.runtime.executor import stream_pool
from workbench.runtime.memory.device_budget import lent
from workbench.runtime.passes.visiting import Place

HOST = Place(device=torch.device("cpu"), dtype=torch.float32)
SHARE, LEAN_SHARE = 2, 8
"""Of free bytes, for copies of weights: a half, or where that was too much an eighth."""
T = TypeVar("T")


class Unable(Exception):
    """Work cannot be done on a device."""


def somewhere(
    work: Callable[[Place], T], device: torch.device, dtype: torch.dtype, budget: int | None,
    say: Callable[[str], None],
) -> T:  # fmt: skip
    """The result of `work` in the first place where it can be done, which is the processor where
    that trains. `budget`: bytes of the device that training may take. `say` hears why a GPU was not
    the place."""
    why = ""
    for way in ways(device, dtype, budget):
        with way as place:
            try:
                return work(place)
            except torch.OutOfMemoryError as error:
                _let_go(error)
                why = "the device has no room beside training"
            except Unable as error:
                _let_go(error)
                why = str(error)
                break
    if why:
        say(f"evaluated on the processor, in fp32: {why}")
    return work(HOST)


def _let_go(error: BaseException | None) -> None:
    """Clear the frames that it has passed, which hold tensors."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def ways(
    device: torch.device, dtype: torch.dtype, budget: int | None
) -> Iterator[AbstractContextManager[Place]]:
    """Places on a GPU, those first that take nothing which training did not."""
    for beyond, lean in product((False, True), repeat=2) if device.type == "cuda" else ():
        yield _way(device, dtype, budget, beyond=beyond, lean=lean)


@contextmanager
def _way(
    device: torch.device, dtype: torch.dtype, budget: int | None, *, beyond: bool, lean: bool
) -> Iterator[Place]:
    # Other streams than training's would have workspaces of their own.
    passes = torch.cuda.stream(stream_pool.between_steps(device))
    with lent(device, budget, beyond=beyond) as free, passes:
        room = free // (LEAN_SHARE if lean else SHARE)
        yield Place(device=device, dtype=dtype, room=room, lean=lean)


@contextmanager
def foreign(place: Place) -> Iterator[None]:
    """Within, code passes that nobody has tried on the device: where it fails there, Unable is
    raised, and it is tried on the processor."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if place.room is None:
            raise
        reason = next(iter(str(error).splitlines()), "")
        raise Unable(f"{type(error).__name__} on the device: {reason}") from error
