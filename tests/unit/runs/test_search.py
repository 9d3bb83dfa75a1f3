"""The search finds the largest model that trains, in few probes, each of them a record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.helpers import left_behind
from workbench.core import methods
from workbench.runs.overrides import make_spec
from workbench.runs.search import Search, at_layers, next_probe, planned_largest
from workbench.runs.store import Store

HERE = Path(__file__).resolve().parent


@given(ceiling=st.integers(0, 250), guess=st.integers(-3, 260), limit=st.integers(1, 200))
def test_the_answer_is_found_wherever_it_is_and_whatever_the_guess(
    ceiling: int, guess: int, limit: int
) -> None:
    fits: dict[int, bool] = {}
    while (layers := next_probe(fits, guess=guess, limit=limit)) is not None:
        assert layers not in fits
        assert 1 <= layers <= limit
        fits[layers] = layers <= ceiling
        assert len(fits) <= 18
    found = max((n for n, ok in fits.items() if ok), default=0)
    assert found == min(ceiling, limit)
    if found < limit:
        assert fits[found + 1] is False, "one layer more has really been seen to fail"


@pytest.mark.parametrize("off", range(-4, 5))
def test_a_guess_that_is_nearly_right_costs_few_probes(off: int) -> None:
    fits: dict[int, bool] = {}
    while (layers := next_probe(fits, guess=25 + off, limit=96)) is not None:
        fits[layers] = layers <= 25
    assert len(fits) <= (2 if off in (0, 1) else 6)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A results folder and a method with a ceiling; no process is left at the end."""
    method = methods.Method(name="ceiling", label="C", module="ceiling_method", summary="tests")
    monkeypatch.setitem(methods.METHODS, "ceiling", method)
    monkeypatch.setattr(methods, "code_version", lambda name: "code")
    monkeypatch.syspath_prepend(HERE)
    store = Store(tmp_path / "results")
    yield store
    assert left_behind(store.root) == []


def search(store: Store, text: str, **options: object) -> Search:
    spec = make_spec({"method": "ceiling", "text": text, "steps": 3, "device": "cpu"})
    return Search(spec, store, **{"limit": 40, **options})


def test_two_probes_where_the_planner_is_right(store: Store) -> None:
    first = search(store, "6 6")
    assert not first.complete
    assert first.run() == 6
    assert [p.spec.model.layers for p in first.points] == [6, 7]
    assert [p.record.status for p in first.points] == ["ok", "oom_host"]
    assert all(p.record.spec["steps"] >= 3 for p in first.points)
    assert f"process {os.getpid()} " not in store.find(first.points[1].key).message


def test_a_wrong_planner_costs_probes_and_not_the_answer(store: Store) -> None:
    assert search(store, "4 6").run() == 4
    assert search(store, "8 6").run() == 8
    assert search(store, "0 2").run() == 0


def test_what_is_known_is_not_probed_again(store: Store) -> None:
    search(store, "3 3").run()
    again = search(store, "3 3")
    assert again.complete
    assert again.ended
    assert again.run() == 3
    assert all(point.cached for point in again.points)
    forced = search(store, "3 3", force=True)
    assert not forced.complete
    assert forced.run() == 3
    assert not any(point.cached for point in forced.points)


def test_a_search_goes_on_where_it_was_left(store: Store) -> None:
    part = search(store, "5 5")
    while not part.points or part.points[0].record is None:
        part.poll()
    part.close()
    rest = search(store, "5 5")
    assert not rest.complete
    assert [point.spec.model.layers for point in rest.points] == [5]
    assert rest.run() == 5


def test_another_search_is_not_this_one(store: Store) -> None:
    mine = search(store, "3 3")
    mine.run()
    assert Search(mine.spec, store, limit=40).points
    assert Search(mine.spec.with_(batch=2), store, limit=40).points == []


def test_a_failure_that_is_not_memory_ends_the_search_and_says_so(store: Store) -> None:
    broken = search(store, "broken 5")
    assert broken.run() == 0
    assert broken.ended
    assert "5 layers: error: KeyError" in broken.failed
    assert not broken.complete


def test_a_cancelled_search_ends_and_leaves_nothing(store: Store) -> None:
    cancelled = search(store, "6 6")
    cancelled.poll()
    cancelled.cancel()
    while not cancelled.ended:
        cancelled.poll()
    cancelled.close()
    assert cancelled.layers == 0


def test_events_name_the_probe_they_belong_to(store: Store) -> None:
    events = []
    seen = search(store, "2 2")
    seen.run(events.append)
    kinds = [event["event"] for event in events]
    assert kinds.count("point") == kinds.count("point_ended") == 2
    assert [e["index"] for e in events if e["event"] == "point_ended"] == [0, 1]


def test_a_window_shrinks_with_the_model() -> None:
    spec = make_spec({"method": "stronghold", "window": 4, "layers": 12})
    assert [at_layers(spec, n).options.window for n in (12, 4, 3, 1)] == [4, 4, 3, 2]
    assert at_layers(spec.with_(window="auto"), 2).options.window == "auto"


def test_the_planner_is_asked_for_the_most_that_fits(store: Store) -> None:
    spec = make_spec({"method": "ceiling", "text": "1 17", "device": "cpu"})
    assert planned_largest(spec, store, limit=40) == 17
    assert planned_largest(spec, store, limit=10) == 10
    assert planned_largest(spec.with_(text="1 0"), store, limit=10) == 0
