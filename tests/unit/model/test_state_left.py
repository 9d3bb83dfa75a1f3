"""State that passes leave is found wherever it is; what people look at afterwards is no state."""

from __future__ import annotations

import itertools
import random
import re
from array import array
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from workbench.model.state_left import left_in, refuse_changes


def generating():
    n = 0
    while True:
        n += 1
        yield n


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
        (generating(), lambda s, _: next(s)),
        ([nn.Identity()], lambda s, _: setattr(s[0], "n", getattr(s[0], "n", 0) + 1)),
    ],
)  # fmt: skip
def test_state_of_passes_is_found_in_any_container(state, leave):
    with pytest.raises(ValueError, match=r"its attribute ['\"]0.own.*compute it from what"):
        passes(state, leave)


def test_what_a_pass_shows_and_what_the_first_one_keeps_is_no_state():
    passes({}, lambda shown, y: shown.update(last=y.detach(), n=len(y)))
    passes([], lambda tables, y: tables or tables.append(torch.arange(len(y))))


def closed():
    calls = [0]

    def count() -> int:
        calls[0] += 1
        return calls[0]

    return count


def counting(by=[0]) -> int:  # noqa: B006  # as people write it
    counting.calls = getattr(counting, "calls", 0) + 1
    by[0] += 1
    return 1


class Calls:
    n = 0

    def __init__(self) -> None:
        self.own, self.unread, self.parts = 0, 0, [0]

    def add(self) -> int:
        self.own += 1
        return self.own


table: dict[str, int] = {"calls": 0}
drawn, calls, seen, closing, total = random.Random(0), Calls(), [], closed(), 0


def in_all() -> int:
    global total  # noqa: PLW0603  # as people write it
    total += 1
    return total


class Beside(nn.Module):
    """Its pass leaves something beside it."""

    def __init__(self, leave) -> None:
        super().__init__()
        self.leave = leave

    def forward(self, x):
        return x * bool(self.leave())


@pytest.mark.parametrize(
    ("name", "leave"),
    [
        ("table['calls']", lambda: table.update(calls=table["calls"] + 1)),
        ("calls[0]", closed()),
        ("calls[0]", lambda: closing()),
        ("counting(by)[0]", lambda: counting()),
        ("calls.own", lambda: calls.add()),
        ("Calls.n", lambda: setattr(Calls, "n", Calls.n + 1)),
        ("total", in_all),
        ("drawn", lambda: drawn.random()),
        ("seen[1]", lambda: seen.append(torch.ones(3))),
    ],
)  # fmt: skip
def test_state_beside_a_module_is_found_wherever_its_code_names_it(name, leave):
    module, kept = nn.Sequential(Beside(leave)), []
    for _ in range(3):
        module(torch.ones(1))
        calls.unread += 1
        kept.append(left_in(module))
    with pytest.raises(ValueError, match=f"the variable ['\"]{re.escape(name)}.* leave nothing"):
        refuse_changes(kept)
