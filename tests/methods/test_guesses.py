"""Ranks update before the norm is known, and what was wrong is taken back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.methods import plain
from tests.methods.harness import assert_equals_plain, assert_near
from tests.methods.test_ranks import PACKS, spec_for, trained
from workbench.runtime.updates.adam_step import Diverged
from workbench.schedule.action import Kind

MODES = ["pp", "dp"]
STEPS = 10


def median_norm() -> float:
    """A limit that some steps exceed and some do not."""
    norms: list[float] = []
    plain.train(spec_for(steps=STEPS, clip=1e6), norms=norms)
    return sorted(norms)[STEPS // 2]


def settled(crew) -> Counter:
    """What became of the guesses of all ranks, each of which has told."""
    total, results = Counter(), crew.results()
    assert len(results) == crew.schedule.num_ranks
    for result in results:
        total.update(result["settled"])
    return total


@pytest.mark.parametrize("mode", ["pp", pytest.param("dp", marks=pytest.mark.thorough)])
def test_where_nothing_is_clipped_all_guesses_stand(mode, tmp_path):
    """But those of the first step, which nothing came before."""
    spec = spec_for(clip=1e6)
    crew, parameters = trained(replace(PACKS, mode=mode), spec, tmp_path, "delays")
    assert_equals_plain(spec, crew, parameters)
    found = settled(crew)
    assert found["redone"] == 0
    assert found["stood"] == (spec.steps - 1) * found["waited"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_where_some_steps_are_clipped_guesses_are_taken_back(mode, tmp_path):
    spec = spec_for(steps=STEPS, clip=median_norm())
    crew, parameters = trained(replace(PACKS, mode=mode), spec, tmp_path)
    assert_equals_plain(spec, crew, parameters)
    assert min(settled(crew).values()) > 0, "stood, redone, waited"


def test_who_is_told_to_wait_guesses_nothing(tmp_path):
    spec = spec_for(clip=1e6, clipping="wait")
    crew, parameters = trained(PACKS, spec, tmp_path)
    assert_equals_plain(spec, crew, parameters)
    results = crew.results()
    assert [result["steps"] for result in results] == [spec.steps] * PACKS.ranks
    assert all(result["settled"].keys() == {"stood", "redone", "waited"} for result in results)
    assert settled(crew).total() == 0
    kinds = {action.kind for action in crew.schedule.actions}
    assert Kind.SETTLE not in kinds
    assert Kind.UPDATE in kinds


@pytest.mark.parametrize(
    ("mode", "unit"),
    [
        pytest.param("pp", 1, id="pp, seen last"),
        pytest.param("dp", 4, id="dp, seen first"),
        pytest.param("pp", 4, id="pp, seen first", marks=pytest.mark.thorough),
        pytest.param("dp", 1, id="dp, seen last", marks=pytest.mark.thorough),
    ],
)
def test_a_gradient_that_is_no_number_skips_the_step_everywhere(mode, unit, tmp_path):
    """Parameters are those of the step before, guesses or not, and the run says so."""
    spec = spec_for(clip=1e6)
    packs = replace(PACKS, mode=mode)
    crew, parameters = trained(packs, spec, tmp_path, f"{unit}:nan:{spec.steps - 1}")
    assert crew.history.skipped == [spec.steps - 1]
    _, expected = plain.train(spec.with_(steps=spec.steps - 1))
    assert_near(parameters, expected)
    assert settled(crew)["redone"] > 0


@pytest.mark.parametrize("mode", ["pp", pytest.param("dp", marks=pytest.mark.thorough)])
def test_without_clipping_it_ends_the_run(mode, tmp_path):
    """All ranks, after the step in which it was seen."""
    spec = spec_for(clip=None)
    with pytest.raises(Diverged, match="gradients of unit 4 are not finite at step"):
        trained(replace(PACKS, mode=mode), spec, tmp_path, f"4:nan:{spec.steps - 1}")


def test_a_run_that_continues_guesses_as_one_that_was_never_stopped(tmp_path):
    """To the last bit."""
    spec = spec_for(steps=STEPS, clip=median_norm(), save_every=STEPS // 2)
    crew, whole = trained(PACKS, spec, tmp_path / "whole")
    trained(PACKS, spec.with_(steps=STEPS // 2), tmp_path / "parts")
    again, parts = trained(PACKS, spec, tmp_path / "parts")
    assert again.history.losses == crew.history.losses
    assert all((parts[name] == whole[name]).all() for name in whole)
