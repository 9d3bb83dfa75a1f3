"""Plans of ranks that swap keep their budget; how they train is asked in tests/exactness."""

from __future__ import annotations

import pytest

from baselines.swapping import division
from baselines.swapping.division import divided
from baselines.swapping.planner import fits, fitted, plan
from tests.methods import plain
from tests.methods.plain import made_up_profile
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.profile.unit_costs import ProfiledSizes
from workbench.schedule.plan import DoesNotFit

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
