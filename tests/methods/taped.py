"""CUDA graphs on a machine without a GPU: operations are noted, and done again on the same memory.

With them `Replays` runs as it does on a GPU, but for the memory of its pool, of which nothing is
used again.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from workbench.runtime.passes import replay


class Tape(TorchDispatchMode):
    """A graph."""

    def __init__(self) -> None:
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        self.done.append((func, args, kwargs or {}, made))
        return made

    @torch.no_grad()
    def replay(self) -> None:
        with _disable_current_modes():
            for func, args, kwargs, made in self.done:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextmanager
def recording(pool):
    with pytest.MonkeyPatch.context() as patch, Tape() as tape:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        yield tape


class Meter:
    """A meter of the processor's memory, asked as one of a GPU."""

    device = torch.device("cpu")

    def __init__(self, own) -> None:
        self.zeros = own.zeros

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set_apart(self, nbytes):
        pass


class Taped(replay.Replays):
    """`Replays` of tapes, which notes those that are made."""

    made = ()

    def __init__(self, run, boundary, meter, **how) -> None:
        super().__init__(run, boundary, Meter(meter), **how)
        self.passes = 0
        type(self).made += (self,)

    def _pass(self, key):
        super()._pass(key)
        self.passes += 1


def on_tapes(monkeypatch) -> type[Taped]:
    """Have recordings be tapes; a class that takes the place of `Replays`."""
    for of, stand_in in {
        "synchronize": lambda *_: None, "empty_cache": lambda: None, "graph_pool_handle": tuple,
        "stream": lambda _: nullcontext(), "is_current_stream_capturing": lambda: False,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, of, stand_in)
    monkeypatch.setattr(replay, "recording", recording)
    monkeypatch.setattr(replay, "pool_bytes", lambda _: 0)
    monkeypatch.setattr(replay, "there", Tensor.detach)
    monkeypatch.setattr(replay.stream_pool, "take", lambda _: None)
    monkeypatch.setattr(replay.stream_pool, "give_back", lambda _: None)
    return type("Noted", (Taped,), {"made": ()})
