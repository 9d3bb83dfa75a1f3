"""Python's garbage collector, which goes through all objects again and again while modules are
imported: a million of them, which stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Within, the collector does nothing, which makes imports of torch and its compiler shorter by
    a fifth."""
    works = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if works:
            gc.enable()


def free_unreachable() -> None:
    """Free tensors that nobody reaches any more, of modules that refer to themselves: before memory
    is measured or laid out, and before anything is kept from the collector."""
    gc.collect()


def keep_what_is_there(*, collect: bool = True) -> None:
    """Let the garbage collector look no more at what exists: models, schedules and what compilers
    left are a million objects, through which it goes for a quarter of a second and more, while no
    thread launches anything.
    """
    if collect:
        gc.collect()
    gc.freeze()
