"""Ranks that swap train as plain training does, and move what their schedule says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from baselines.swapping import division
from baselines.swapping.division import divided
from baselines.swapping.planner import fits, fitted, plan
from tests.methods import plain
from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.plain import made_up_profile
from tests.methods.rank_server import process
from tests.varuna.cases import around
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.places import Places
from workbench.profile.unit_costs import ProfiledSizes
from workbench.runtime.checkpoint import checkpoint
from workbench.schedule import validate
from workbench.schedule.plan import DoesNotFit
from workbench.training.rank_processes import RankTraining

MODEL = ModelSpec(layers=4, hidden=32, heads=4, seq=16, vocab=256, dropout=0.1, tied=True)
UNITS = MODEL.units
PP = {"mode": "pp", "minibatch": 5, "size": 2, "stages": packs_of([3, 3]), "own": (1, 0)}
EACH = (range(UNITS),)


def spec_for(**changes):
    return plain.spec_for(
        **{
            "method": "pp-swap",
            "model": MODEL,
            "batch": 5,
            "steps": 6,
            "lr_decay_steps": 20,
            **changes,
        }
    )


def sizes_for(spec):
    profile = made_up_profile(spec.with_(batch=1))
    return ProfiledSizes({1: profile}, tied={MODEL.layers + 1: (0, MODEL.vocab * MODEL.hidden)})


@pytest.mark.parametrize(
    ("changes", "clip"),
    [
        ({"mode": "dp", "size": 1, "stages": EACH * 2, "own": (0, 2)}, 0.5),
        pytest.param(
            {"mode": "dp", "stages": EACH, "own": (0,), "shared": 3}, None,
            marks=pytest.mark.thorough,
        ),
        pytest.param({}, 0.5, marks=pytest.mark.thorough),
        ({"size": 1, "stages": packs_of([1, 4, 1]), "own": (0, 0, 0), "shared": 1}, None),
    ],
    ids=["dp, uneven", "one rank", "pp, uneven", "three stages, one place"],
)  # fmt: skip
def test_ranks_train_as_plain_training_does(changes, clip, tmp_path):
    """With random delays around every action."""
    assert_trains(divided(**PP | changes, clipped=clip is not None), clip, tmp_path)


@pytest.mark.parametrize(
    ("order", "activations"), [("gpipe", "keep"), ("zb-h1", "stash"), ("1f1b", "checkpoint")]
)
def test_units_visit_under_every_order(order, activations, tmp_path):
    line = divided(**PP)
    passes = lists(order, line.depth, line.micros)
    assert_trains(replace(line, passes=passes, activations=activations), 0.5, tmp_path)


@pytest.mark.parametrize("positions", [(0, 1, 0), (1, 0, 0)])
def test_units_visit_under_any_order_on_any_positions(positions, tmp_path):
    """The order and the stages of `tests/varuna/test_training.py`."""
    line, stages = divided(**PP), packs_of([1, 3, 2])
    passes = [[*around(rank, 2, line.micros, positions)] for rank in range(2)]
    units = [
        [unit for stage, at in zip(stages, positions, strict=True) if at == rank for unit in stage]
        for rank in range(2)
    ]
    places = [Places(units=own) for own in units]
    changes = {"passes": passes, "stages": stages, "positions": positions, "places": places}
    assert_trains(replace(line, **changes), 0.5, tmp_path)


def assert_trains(line, clip, tmp_path):
    spec = spec_for(clip=clip, ranks=line.depth)
    schedule = division.build(line, sizes_for(spec))
    validate(schedule)
    with closing(
        RankTraining(spec, schedule, tmp_path, device="cpu", process=process("delays"))
    ) as crew:
        crew.run(Silent())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
        assert_equals_plain(spec, crew, parameters)
        moved = schedule.moved_bytes()
        for way in ("load", "store"):
            counted = sum(result["moved_bytes"][way] for result in crew.results())
            assert counted == moved[way] * spec.steps


def test_what_has_room_is_not_swapped():
    spec = spec_for(ranks=2)
    sizes = sizes_for(spec)
    line = divided(**PP | {"own": ()})
    _, least = fitted(line, sizes, 0)
    roomy, peak = fitted(line, sizes, 2 * least["device"])
    assert peak["device"] <= 2 * least["device"]
    assert roomy.settings["own"] == "3 3"
    assert roomy.moved_bytes()["load"] < division.build(line, sizes).moved_bytes()["load"]


@pytest.mark.parametrize("mode", ["dp", "pp"])
def test_the_plan_keeps_its_budget_or_says_what_lacks(mode):
    spec = spec_for(method=f"{mode}-swap", batch=8, ranks=2)
    profiles = {1: made_up_profile(spec.with_(batch=1))}
    made = plan(spec, profiles, mode=mode)
    budget = made.peak_bytes["device"] - 1
    less = plan(spec.with_(device_memory=budget), profiles, mode=mode)
    assert less.peak_bytes["device"] <= budget
    assert less.step_seconds >= made.step_seconds
    with pytest.raises(DoesNotFit, match="of device memory are needed, 9.766 KiB are there"):
        plan(spec.with_(device_memory=10_000), profiles, mode=mode)


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_what_fits_is_told_without_planning_it(mode):
    """Within the least memory that it says is enough there is a plan, and within less is none."""
    spec = spec_for(method=f"{mode}-swap", ranks=2)
    profile = made_up_profile(spec)
    enough, less = 1 << 30, 1
    while enough - less > 1:
        middle = (enough + less) // 2
        fitting = fits(spec.with_(device_memory=middle), profile, mode=mode)
        enough, less = (middle, less) if fitting else (enough, middle)
    profiles = {profile.microbatch: profile}
    assert plan(spec.with_(device_memory=enough), profiles, mode=mode).fits
    with pytest.raises(DoesNotFit):
        plan(spec.with_(device_memory=less), profiles, mode=mode)
    assert not fits(spec.with_(host_memory=1000), profile, mode=mode)
