"""Sweep files: which runs they mean, and what is wrong with them."""

import json
from pathlib import Path

import pytest

from workbench.runs.store import Store
from workbench.runs.sweep import Sweep, SweepFile, expand

BASE = {"method": "stronghold", "model": {"hidden": 64, "heads": 4}}


def test_a_grid_is_every_combination() -> None:
    specs = expand(BASE, grid={"window": [2, 4, "auto"], "model.layers": [4, 8]})

    assert [(spec.options.window, spec.model.layers) for spec in specs] == [
        (2, 4), (2, 8), (4, 4), (4, 8), ("auto", 4), ("auto", 8),
    ]  # fmt: skip
    assert all(spec.model.hidden == 64 for spec in specs)


def test_a_grid_too_large_is_refused_before_it_is_expanded() -> None:
    """Its second run alone would be refused in another sentence."""
    grid = {"seed": list(range(1000)), "layers": [4, -1], "vocab": [64] * 300}

    with pytest.raises(ValueError, match="make 600000 points; at most 4000 can be looked after"):
        expand(BASE, grid=grid)


def test_runs_change_the_base_one_by_one() -> None:
    specs = expand(
        {**BASE, "layers": 8}, runs=[{"method": "l2l"}, {"model": {"layers": 2}, "seed": 1}]
    )

    assert [(s.method, s.model.layers, s.model.hidden) for s in specs] == [
        ("l2l", 8, 64),
        ("stronghold", 2, 64),
    ]


def test_the_same_run_twice_is_one_point(tmp_path: Path) -> None:
    """A window means nothing to L2L, so three windows are one run of it."""
    l2l = {**BASE, "method": "l2l", "device": "cpu"}
    specs = expand(l2l, grid={"window": [2, 3, 4]})
    specs += expand({**BASE, "device": "auto"}, grid={"window": [2, 2, 4]})

    assert len(Sweep(specs, Store(tmp_path)).points) == 3


def test_results_lie_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"base": BASE, "results": "out", "timeout": 5}))

    file = SweepFile.load(path)

    assert file.results == tmp_path / "out"
    assert file.written.timeout == 5
    assert len(file.specs) == 1


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"base": BASE, "grid": []}, "grid is [^;]*; it must be an object"),
        ({"base": BASE, "runs": {}}, "runs is {}; it must be a list"),
        ({"base": BASE, "runs": [3]}, "a run spec is a JSON object, this is a int"),
        ({"base": {**BASE, "model": 3}}, "model is 3; it must be a JSON object"),
        ({"base": BASE, "grid": {"window": 2}}, "the axis window is 2; it must be a list"),
        (
            {"grid": {"layers": [2], "model.layers": [4]}},
            "as the axis layers and as the axis model",
        ),
        ({"grid": {"model": [{"seq": 8}, {"layers": 2}], "layers": [4]}}, "layers is given twice"),
        (
            {"grid": {"window": [2], "options": [{"window": 3}]}},
            "as the axis window and as the axis",
        ),
        (
            {"base": BASE, "grid": {"hidden": [32]}},
            "as hidden in model of base and as the axis hid",
        ),
        ({"runs": [{}, {"model.seq": 8}], "grid": {"seq": [4]}}, "as model.seq of runs and as the"),
        ({"base": BASE | {"heads": 2}}, "heads is given twice, as heads in model and as heads"),
        ({"base": BASE, "runs": [{"model.lr": 1, "lr": 2}]}, "as model.lr and as lr, and one of"),
        ({"base": BASE, "timeout": "1"}, "timeout is '1'"),
        ({"base": BASE, "results": 3}, "results is 3"),
    ],
)
def test_malformed_files(data: dict, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(data))

    with pytest.raises(ValueError, match=sentence):
        SweepFile.load(path)
