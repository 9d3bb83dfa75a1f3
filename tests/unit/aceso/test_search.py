"""The faithful search ends at the published plans, whatever the clock says."""

from __future__ import annotations

from itertools import count

import pytest

from tests.unit.aceso.cases import golden_plan, small_space
from workbench.methods.aceso.search import Effort, Search
from workbench.methods.aceso.searches import Outcome, search

PUBLISHED = {
    ("gpt", 1): 145789.95708,
    ("gpt", 2): 93421.90382,
    ("gpt", 3): 67394.46307,
    ("gpt", 4): 58760.92189,
    ("t5", 4): 33659.49707,
    ("resnet", 1): 46232.11930,
    ("resnet", 2): 17672.05124,
    ("resnet", 3): 19074.93462,
    ("resnet", 4): 18088.13984,
}
"""Milliseconds that the artifact's search ended with, of four GPUs of 12,000 MB."""


@pytest.mark.parametrize(("model", "stages"), PUBLISHED)
def test_the_published_plan_is_found(model: str, stages: int) -> None:
    space = small_space(model)
    run = Search(space, Effort(plans=400, seconds=1e6), finetunes=model == "resnet")
    found = run.run(space.first(stages))
    assert found.best.cost.time == pytest.approx(PUBLISHED[model, stages], abs=1e-4)
    assert found.best.cost.memory <= 12000
    assert space.legal(found.best.plan.micro, found.best.plan.stages)
    assert [step.time for step in found.curve] == sorted(
        (s.time for s in found.curve), reverse=True
    )
    assert sum(len(stage.tp) for stage in found.best.plan.stages) == len(space.costs.operators)


def test_the_plan_of_gpt_is_the_published_one_byte_for_byte() -> None:
    space = small_space("gpt")
    outcome = Outcome(space=space)
    search(outcome, range(1, 5), Effort(plans=400, seconds=1e6))
    assert outcome.whole
    assert outcome.fits
    assert outcome.best.plan == golden_plan("small_gpt_1_3B_4gpu_4stages")
    assert [len(each.plan.stages) for each in outcome.ranked()] == [4, 3, 2, 1]


def test_a_limit_of_plans_ends_a_search_at_one_place() -> None:
    space = small_space("gpt")
    effort = Effort(plans=20, seconds=1e6)
    one, other = (Search(space, effort).run(space.first(3)) for _ in range(2))
    assert (one.best, one.curve) == (other.best, other.curve)
    assert one.explored == 20


def test_a_limit_of_seconds_ends_a_search() -> None:
    space = small_space("gpt")
    ticks = count()
    found = Search(space, Effort(seconds=30), clock=lambda: float(next(ticks))).run(space.first(3))
    assert 0 < found.explored < 30


def test_an_interrupted_search_keeps_its_best_plan() -> None:
    def interrupt(stages: int, found: object) -> None:
        if stages == 3 and outcome.found[3].explored:
            raise KeyboardInterrupt

    outcome = Outcome(space=small_space("gpt"))
    with pytest.raises(KeyboardInterrupt):
        search(outcome, (2, 3, 4), Effort(plans=50, seconds=1e6), watch=interrupt)
    assert not outcome.whole
    assert outcome.fits
    assert set(outcome.found) == {2, 3}


def test_where_nothing_fits_the_nearest_plan_is_told() -> None:
    outcome = Outcome(space=small_space("gpt", memory=3000))
    search(outcome, (1, 4), Effort(plans=60, seconds=1e6))
    assert not outcome.fits
    assert outcome.ranked() == []
    assert outcome.best.cost.memory == min(f.best.cost.memory for f in outcome.found.values())


def test_stages_that_the_gpus_cannot_be_dealt_to_have_no_plan() -> None:
    space = small_space("gpt")
    assert space.deal(3) == [2, 1, 1]
    assert space.deal(3, from_last=True) == [1, 1, 2]
    assert space.first(5) is None
