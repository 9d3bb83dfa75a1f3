"""The planner against all choices there are, and the disk as the last resort."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.methods.plain import MODEL, made_up_profile, spec_for
from workbench.methods import stronghold
from workbench.methods.offload.evaluate import evaluate
from workbench.methods.stronghold.planner import Choice, placement_of
from workbench.methods.stronghold.search import objective
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile, ProfileCosts
from workbench.schedule.simulate import simulate

SPEC = spec_for(window="auto", activations="auto", optimizer_tier="auto")


SPEEDS = ((1.0, 1.0), (0.1, 1.0), (1.0, 0.1), (0.2, 0.2))
"""Factors of the speed of host updates and of the link."""
CHOSEN = (
    ((1.0, 1.0), 0.5, 0.2),
    ((0.1, 1.0), None, 0.6),
    ((1.0, 0.1), None, 0.2),
    ((0.2, 0.2), 0.5, 0.6),
)
"""Each speed once, and each limit on the norm with each share of memory."""


def machine(host: float, link: float) -> Profile:
    """A profile of a slower or faster host and link than the made-up ones."""
    profile = made_up_profile(SPEC)
    hardware = replace(
        profile.hardware,
        host_adam_params_per_s=profile.hardware.host_adam_params_per_s * host,
        h2d_bytes_per_s=profile.hardware.h2d_bytes_per_s * link,
        d2h_bytes_per_s=profile.hardware.d2h_bytes_per_s * link,
    )
    return replace(profile, hardware=hardware)


def seconds(spec, profile, choice, budgets) -> float:
    """What the search makes small, infinite for what does not fit."""
    placement = placement_of(spec, profile, choice)
    found = evaluate(placement, profile, budgets, {})
    if budgets.lacking(found.peak) is not None:
        return float("inf")
    clips = None
    if placement.clipped and placement.eager:
        costs = ProfileCosts(profile, clips=True)
        clips = simulate(found.schedule, costs, steps=4).step_seconds
    return objective(spec, found.step_seconds, clips)


@pytest.mark.parametrize(
    ("speeds", "clip", "share"),
    [
        pytest.param(*one, marks=[] if one in CHOSEN else [pytest.mark.thorough])
        for one in itertools.product(SPEEDS, (0.5, None), (0.2, 0.6))
    ],
)
def test_auto_is_within_three_percent_of_the_best_choice(speeds, clip, share):
    """On machines with a slower host, a slower link, or both."""
    profile = machine(*speeds)
    least = stronghold.plan(SPEC.with_(window=2, resident=0), profile).peak_bytes["device"]
    most = stronghold.plan(SPEC, profile).peak_bytes["device"]
    spec = SPEC.with_(clip=clip, device_memory=int(least + share * (most - least)))
    budgets = Budgets.of(spec, profile)
    layers = range(MODEL.layers + 1)
    best = min(
        seconds(spec, profile, Choice(window=w, resident=r, pulled=p, kept=k, stash=s), budgets)
        for r, p, k in itertools.product(layers, layers, (0, 1, 3, 5))
        if r + p <= MODEL.layers
        for w, s in itertools.product((2, MODEL.layers), (False, True))
    )
    plan = stronghold.plan(spec, profile)
    assert plan.fits
    clipped = plan.settings.get("step_seconds_where_clipped")
    assert objective(spec, plan.step_seconds, clipped) <= 1.03 * best


def test_measured_steps_stand_beside_simulated_ones_that_are_clipped_as_they_are():
    spec = SPEC.with_(clip=0.5, window=2, resident=0)
    plan = stronghold.plan(spec, made_up_profile(spec))
    measured = [replace(event, step=event.step + 40) for event in plan.simulated if event.step]

    def host_s(norms, clip) -> float:
        events = plan.beside(measured, norms, clip)
        assert {event.step for event in events} == {event.step for event in measured}
        return sum(event.end_s - event.start_s for event in events if event.lane == "host")

    stands, clipped = host_s([0.4, 0.6, 0.4], 0.5), host_s([0.4, 0.6, 0.6], 0.5)
    assert stands == host_s([], 0.5) == host_s([9.0], None) < clipped


def test_the_disk_takes_what_the_host_has_no_room_for_and_no_more():
    model = replace(MODEL, layers=12, hidden=256)
    spec = SPEC.with_(model=model, window=2, resident=0, pulled=0, activations="recompute")
    profile = made_up_profile(spec)
    roomy = stronghold.plan(spec, profile)
    states = profile.units[1].parameters * profile.state_bytes
    small = spec.with_(host_memory=roomy.peak_bytes["host"] - 3 * states // 2)
    refused = stronghold.plan(small, profile)
    assert not refused.fits
    assert refused.lacking == "host"
    allowed = stronghold.plan(small.with_(disk_memory=1 << 30), profile)
    assert allowed.fits
    count = allowed.settings["disk_layers"]
    assert 0 < count < model.layers
    assert allowed.peak_bytes["host"] <= small.host_memory
    assert allowed.moved_bytes["read"] == allowed.moved_bytes["write"] == count * states
    fewer = stronghold.plan(small.with_(disk_memory=1 << 30, disk_layers=count - 1), profile)
    assert not fewer.fits, "one layer less on the disk would have fitted"


def test_a_disk_that_is_allowed_but_not_needed_is_not_used():
    plan = stronghold.plan(
        SPEC.with_(window=2, resident=0, disk_memory=1 << 30), made_up_profile(SPEC)
    )
    assert plan.peak_bytes["disk"] == 0


def test_disk_layers_need_the_automatic_tier():
    with pytest.raises(ValueError, match="disk_layers is 2 and optimizer_tier 'host'"):
        SPEC.with_(optimizer_tier="host", disk_layers=2)
