"""State that passes leave is found wherever it is; what people look at afterwards is no state."""

from __future__ import annotations

import itertools
import random
from array import array
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from workbench.model.state_left import left_in, refuse_changes


def passes(state, leave) -> None:
    """Three passes over the same samples; raises ValueError as a comparison does."""
    module, kept, x = nn.Sequential(nn.Linear(2, 2)), [], torch.ones(2, 2)
    module[0].own = state
    for _ in range(3):
        leave(module[0].own, module(x))
        kept.append(left_in(module))
    refuse_changes(kept)


def deeper(state: list, _) -> None:
    state[0]["deep"][0].n += 1


@pytest.mark.parametrize(
    ("state", "leave"),
    [
        ({"calls": 0}, lambda s, _: s.update(calls=s["calls"] + 1)),
        ([{"deep": (SimpleNamespace(n=0),)}], deeper),
        ([], lambda s, y: s.append(y)),
        (deque([0], maxlen=1), lambda s, _: s.append(s[0] + 1)),
        (np.zeros(3), lambda s, _: s.__iadd__(1)),
        (array("i", [0]), lambda s, _: s.__setitem__(0, s[0] + 1)),
        ([torch.zeros(3)], lambda s, y: s[0].lerp_(y.detach().mean(), 0.1)),
        (Counter(), lambda s, _: s.update("a")),
        ({0}, lambda s, _: s.add(len(s))),
        (itertools.count(), lambda s, _: next(s)),
        (random.Random(0), lambda s, _: s.random()),
        ([nn.Identity()], lambda s, _: setattr(s[0], "n", getattr(s[0], "n", 0) + 1)),
    ],
)  # fmt: skip
def test_state_of_passes_is_found_in_any_container(state, leave):
    with pytest.raises(ValueError, match=r"its attribute ['\"]0.own.*compute it from what"):
        passes(state, leave)


def test_what_a_pass_shows_and_what_the_first_one_keeps_is_no_state():
    passes({}, lambda shown, y: shown.update(last=y.detach(), n=len(y)))
    passes([], lambda tables, y: tables or tables.append(torch.arange(len(y))))
