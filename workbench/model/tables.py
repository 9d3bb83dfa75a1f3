"""Tables that code keeps beside a module: in a dictionary of its file, or by functools.lru_cache.

A module is looked at without values before it trains. What it computes once meanwhile, and keeps,
would have none ever after, in the user's own model too. So a module that keeps tables is called
on a few samples before, and one that has kept a tensor without values all the same is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from workbench.model.decompose.merge import BATCHES
from workbench.model.drawn import unkeyed
from workbench.model.reachable import CACHED, contents, variables_of

HOLDERS = (Tensor, MutableMapping, list, tuple, set, CACHED)
COST = 2e10
"""Operations of the calls that are made for the tables, at the most: a second or two."""
BARE = (
    "{!r}, which the module's code or loss_fn keeps, holds a tensor that was made while the module "
    "was looked at, without values; keep a table in a buffer of the module, or call the model once "
    "before on such a batch; log beside engine.step, which returns the loss"
)


class Looked(Protocol):
    """A module with its loss function, and a batch for them (objective.py)."""

    first: Any
    """The batch: its `tensors`, and `named` for so many rows."""

    def parameters(self) -> Iterable[Tensor]:
        """All weights."""

    def twin(self) -> Any:
        """A copy that may be called."""


@contextmanager
def tables_kept(objective: Looked) -> Iterator[None]:
    """An objective may be looked at without values inside. Raises ValueError at the end for what
    has kept some of that, which is taken out."""
    if any(map(_keeps_tensors, variables_of(objective).values())) and _cost(objective) <= COST:
        _call(objective)
    found: list[str] = []
    try:
        yield
    finally:
        found += taken_out(variables_of(objective))
    refuse(found)


def taken_out(variables: Mapping[str, Any]) -> list[str]:
    """Names of variables that held tensors without values, which are taken out of containers."""
    found = [name for name, value in variables.items() if _holds_bare(value)]
    for name in found:
        _clean(variables[name])
    return found


def refuse(found: Sequence[str]) -> None:
    """Raise ValueError for the first of the names that were `taken_out`, if there is one."""
    if found:
        raise ValueError(BARE.format(found[0]))


def _keeps_tensors(value: Any) -> bool:
    if isinstance(value, MutableMapping):
        return all(isinstance(each, Tensor | tuple | list) for each in value.values())
    return isinstance(value, CACHED)


def _cost(objective: Looked) -> float:
    if any(p.is_meta for p in objective.parameters()):
        return math.inf
    weights = sum(p.numel() for p in objective.parameters())
    row = max(tensor[0].numel() for tensor in objective.first.tensors)
    return 2.0 * weights * row * sum(BATCHES)


def _call(objective: Looked) -> None:
    """What fails here, fails again where it is told."""
    with suppress(Exception), torch.no_grad(), unkeyed(), torch.random.fork_rng(devices=[]):
        for rows in BATCHES:  # those that it will be looked at with
            objective.twin()(*objective.first.named(rows).values())


def _holds_bare(value: Any) -> bool:
    """Whether a container, or the table of a function, has a tensor without values."""
    held = contents("", value, {}, lambda each: isinstance(each, HOLDERS))
    return any(isinstance(each, FakeTensor) or getattr(each, "is_meta", False) for _, each in held)


def _clean(value: Any) -> None:
    """Leave out what holds tensors without values."""
    if isinstance(value, CACHED):
        value.cache_clear()
    elif isinstance(value, MutableMapping):
        for key in [k for k, each in value.items() if _holds_bare(each)]:
            del value[key]
    elif isinstance(value, list):
        value[:] = [each for each in value if not _holds_bare(each)]
