from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.profile.profile import Profile, ProfileCosts
from workbench.profile.units import RECORDED, Variant
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, Action, Kind
from workbench.schedule.buffers import kept


def action(kind: Kind, lane: str, micro: int | None = None, **values) -> Action:
    return Action(kind=kind, unit=1, lane=lane, microbatch=micro, **values)


@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        (action(Kind.FORWARD, COMPUTE, 0), 0.010),
        (action(Kind.RECOMPUTE, COMPUTE, 0), 0.012),
        (action(Kind.FORWARD, COMPUTE, 0, takes=(kept(1, 0),)), 0.012),
        (action(Kind.BACKWARD, COMPUTE, 0), 0.021),
        (action(Kind.BACKWARD, COMPUTE, 1), 0.020),
        (action(Kind.UPDATE, COMPUTE), 0.00025),
        (action(Kind.UPDATE, HOST), 0.001),
        (action(Kind.NORM, COMPUTE), 0.0),
        (action(Kind.LOAD, H2D, nbytes=10**7), 0.001 + 1e-4),
        (action(Kind.FETCH, H2D, 0, nbytes=10**7), 0.001 + 1e-4),
        (action(Kind.GRAD_OUT, D2H, nbytes=10**7), 0.002 + 1e-4),
        (action(Kind.STASH, D2H, 0, nbytes=10**7), 0.002 + 1e-4),
        (action(Kind.READ, DISK_IN, nbytes=10**7), 0.005 + 1e-4),
        (action(Kind.SPILL, DISK_OUT, nbytes=10**7), 0.010 + 1e-4),
    ],
    ids=str,
)
def test_seconds_of_an_action_alone(profile: Profile, what: Action, seconds: float) -> None:
    overhead = profile.hardware.action_overhead_s
    assert ProfileCosts(profile).seconds(what) == pytest.approx(seconds + overhead)


def test_passes_that_are_recorded_take_what_recordings_took(profile: Profile) -> None:
    """Not those whose kept tensors have a buffer: they are launched."""
    block = replace(profile.units[1], variants=(Variant(name=RECORDED, seconds=(1.0, 2.0, 3.0)),))
    profile = replace(profile, units=(profile.units[0], block, *profile.units[2:]))
    costs, keeps = ProfileCosts(profile, recorded=True), kept(1, 0)
    for kind, seconds in ((Kind.FORWARD, 1.0), (Kind.RECOMPUTE, 2.0), (Kind.BACKWARD, 3.0)):
        first = block.gradient_s if kind is Kind.BACKWARD else 0.0
        overhead = profile.hardware.action_overhead_s
        what = action(kind, COMPUTE, 0)
        assert costs.seconds(what) == pytest.approx(seconds + first + overhead)
        launched = replace(what, **{"frees" if kind is Kind.BACKWARD else "takes": (keeps,)})
        assert costs.seconds(launched) == ProfileCosts(profile).seconds(launched)


def test_an_action_between_ranks_has_no_cost_here(profile: Profile) -> None:
    with pytest.raises(ValueError, match="SEND1.0.*one device"):
        ProfileCosts(profile).seconds(action(Kind.SEND, "net-out", 0))


def test_a_rate_that_was_not_measured_is_named(profile: Profile) -> None:
    disk_less = replace(profile, hardware=replace(profile.hardware, disk_read_bytes_per_s=0.0))
    with pytest.raises(ValueError, match="is known of made up: plan for a machine"):
        ProfileCosts(disk_less).seconds(action(Kind.READ, DISK_IN, nbytes=1))


@pytest.mark.parametrize(
    ("lane", "busy", "factor"),
    [
        (COMPUTE, [], 1.0),
        (COMPUTE, [H2D], 1.2),
        (COMPUTE, [H2D, HOST], 1.2 * 1.5 * 5 / 4),  # 2 + 1 + 2 threads on 4 cores
        (COMPUTE, [HOST, HOST], 1.5 * 1.5),  # two workers share the threads of one
        (HOST, [HOST], 2.0),
        (H2D, [DISK_IN], 1.0),  # never measured: no slowdown
    ],
)
def test_slowdowns_multiply_and_lanes_share_the_cores(
    profile: Profile, lane: str, busy: list[str], factor: float
) -> None:
    assert ProfileCosts(profile).slowdown(lane, busy) == pytest.approx(factor)


def test_a_gpu_takes_no_cores(profile: Profile) -> None:
    on_gpu = replace(profile, hardware=replace(profile.hardware, device="cuda", slowdowns={}))
    assert ProfileCosts(on_gpu).slowdown(COMPUTE, [H2D, D2H, HOST]) == 1.0


def test_what_was_measured_all_at_once_stands_for_its_pairs(profile):
    slowdowns = {"h2d|host": 1.2, "h2d|d2h": 1.1, "h2d|disk-in": 2.0, "h2d|d2h+host": 1.6}
    hardware = replace(profile.hardware, device="cuda", slowdowns=slowdowns)
    costs = ProfileCosts(replace(profile, hardware=hardware))
    assert costs.slowdown(H2D, [HOST]) == pytest.approx(1.2)
    assert costs.slowdown(H2D, [HOST, D2H]) == pytest.approx(1.6)
    assert costs.slowdown(H2D, [DISK_IN, D2H, HOST, COMPUTE]) == pytest.approx(3.2)
    assert costs.slowdown(D2H, [H2D, HOST]) == 1.0, "not measured"


def test_crowding_that_a_pair_shows_is_not_counted_twice(profile: Profile) -> None:
    """On one core two lanes are measured to take twice as long; three must take three times."""
    slowdowns = {"compute|h2d": 2.0, "compute|d2h": 2.0}
    one_core = replace(profile.hardware, cores=1, adam_threads=1, slowdowns=slowdowns)
    costs = ProfileCosts(replace(profile, hardware=one_core))
    assert costs.slowdown(COMPUTE, [H2D]) == pytest.approx(2.0)
    assert costs.slowdown(COMPUTE, [H2D, D2H]) == pytest.approx(3.0)


def test_an_emulated_link_is_slower_and_disturbs_less(profile: Profile) -> None:
    slow = profile.with_link(1e9)
    load = action(Kind.LOAD, H2D, nbytes=10**7)
    latency = profile.hardware.link_latency_s + profile.hardware.action_overhead_s
    assert ProfileCosts(slow).seconds(load) == pytest.approx(0.01 + latency)
    assert ProfileCosts(slow).slowdown(COMPUTE, [H2D]) == pytest.approx(1.02)
    assert profile.with_link(None) is profile
    assert slow.with_link(1e9) is slow
