"""The sizes of micro-batches are looked for once, and again where what is kept does not tell."""

from __future__ import annotations

import json

import pytest

from tests.methods.plain import MODEL, spec_for
from workbench.core.model_spec import ModelSpec
from workbench.core.sealed import read_sealed, write_sealed
from workbench.profile import limits, probe
from workbench.profile.profile import Limits


@pytest.fixture
def looked(monkeypatch):
    """Budgets and most samples that were looked for, on a device with room for 20 there and back
    and 30 forward."""
    asked: list[tuple[int, int]] = []

    def found(spec, device, budget, most) -> Limits:
        asked.append((budget, most))
        return Limits(smallest=1, forward=min(30, most), backward=min(20, most))

    monkeypatch.setattr(probe, "limits", found)
    return asked


def test_what_is_known_is_not_looked_for_again(looked, tmp_path):
    spec = spec_for(method="harmony-pp", ranks=2, batch=64)
    assert limits.stored_limits(spec, tmp_path) is None
    first = limits.limits_for(spec, tmp_path, 100)
    assert first == Limits(smallest=1, forward=30, backward=20)
    assert limits.limits_for(spec, tmp_path, 100) == first
    assert limits.limits_for(spec.with_(batch=500), tmp_path, 100) == first
    few = limits.limits_for(spec.with_(batch=25), tmp_path, 100)
    assert few == Limits(smallest=1, forward=25, backward=20)
    assert limits.stored_limits(spec.with_(batch=10), tmp_path).backward == 10
    assert looked == [(100, 64)]
    (path,) = tmp_path.glob("profiles/*/limits-*.json")
    assert json.loads(path.read_text())["limits"] == {"smallest": 1, "forward": 30, "backward": 20}


def test_it_is_looked_for_where_more_may_fit_or_the_device_is_another(looked, tmp_path):
    spec = spec_for(method="harmony-pp", ranks=2, batch=8)
    limits.limits_for(spec, tmp_path, 100)
    assert limits.stored_limits(spec.with_(batch=16), tmp_path) is None
    assert limits.limits_for(spec.with_(batch=16), tmp_path, 100).forward == 16
    limits.limits_for(spec.with_(batch=16), tmp_path, 200)
    other = ModelSpec(**{**MODEL.to_dict(), "hidden": 64})
    for changes in ({"device_memory": 300}, {"ranks": 3}, {"dtype": "bf16"}, {"model": other}):
        limits.limits_for(spec.with_(**changes), tmp_path, 200)
    assert looked == [(100, 8), (100, 16), (200, 16), *[(200, 8)] * 4]


def test_a_damaged_file_is_not_used(looked, tmp_path):
    spec = spec_for(method="harmony-pp", ranks=2, batch=8)
    limits.limits_for(spec, tmp_path, 100)
    (path,) = tmp_path.glob("profiles/*/limits-*.json")
    path.write_text(path.read_text()[:-20])
    said: list[str] = []
    limits.limits_for(spec, tmp_path, 100, said.append)
    assert len(looked) == 2
    assert "is not used, it cannot be read" in said[0]


@pytest.mark.parametrize(
    ("name", "value"), [("tried", "8"), ("budget", None), ("forward", 2.5), ("backward", True)]
)
def test_a_number_that_is_none_is_not_used(looked, tmp_path, name, value):
    spec = spec_for(method="harmony-pp", ranks=2, batch=8)
    limits.limits_for(spec, tmp_path, 100)
    (path,) = tmp_path.glob("profiles/*/limits-*.json")
    data = read_sealed(path, "it")
    (data if name in data else data["limits"])[name] = value
    write_sealed(path, data)
    assert limits.stored_limits(spec, tmp_path) is None
    said: list[str] = []
    assert limits.limits_for(spec.with_(batch=16), tmp_path, 100, said.append).forward == 16
    assert f"{name} is {value!r}; it must be a whole number" in said[0]


@pytest.mark.parametrize(
    ("found", "sizes"),
    [
        (Limits(smallest=1, forward=90, backward=64), [1, 8, 64]),
        (Limits(smallest=2, forward=4, backward=4), [2, 3, 4]),
        (Limits(smallest=1, forward=1, backward=1), [1]),
    ],
)
def test_profiled_are_both_ends_and_one_between(found, sizes):
    assert found.sizes() == sizes
