"""A full answer is made in slices, each of which begins a search anew."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.methods.stronghold.search import Search
from workbench.runs.store import Store
from workbench.ui.planner import work
from workbench.ui.planner.control import SLICE_S, Question

MOST = 60
ESTIMATE_S = 2e-3


def test_a_search_that_is_left_again_and_again_is_soon_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where to come back takes longer than a slice. The clock counts what is estimated."""
    estimated, own = [], Search._add

    def counted(search: Search, *choice, **how) -> None:
        estimated.append(choice)
        own(search, *choice, **how)

    monkeypatch.setattr(Search, "_add", counted)
    clock = SimpleNamespace(perf_counter=lambda: ESTIMATE_S * len(estimated))
    monkeypatch.setattr(work, "time", clock)
    asked = Question.of(machine="v100-32gb", method="stronghold", layers=8)
    planner, slices = work.PlannerWork(Store(tmp_path)), 1
    while not planner.work_on(asked, SLICE_S)["done"]:
        slices += 1
        assert slices < MOST
    assert slices > 1
