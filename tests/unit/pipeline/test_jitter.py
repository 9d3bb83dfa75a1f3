"""Passes and messages that deviate, copies that meet at sums, and links with a rate."""

from __future__ import annotations

import re

import numpy as np
import pytest

from workbench import cli
from workbench.methods.pipeline import orders, steps
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import B, F, R
from workbench.methods.pipeline.quick import Links, end_s, timeline
from workbench.methods.pipeline.steps import Loan, Sum
from workbench.schedule.action import Kind


def efficiency(capsys, *more: str) -> float:
    size = ["-P", "4", "-N", "16", "--us", "50000,100000,5000,20000", "--jitter", "5000,40000"]
    assert cli.main(["schedule", "varuna", "--drain", "early", *size, *more]) == 0
    return float(re.search(r"makespan ([\d.]+), the mean", capsys.readouterr().out)[1])


def test_draws_are_those_of_their_seed_and_copies_make_a_step_longer(capsys):
    one = efficiency(capsys, "--seeds", "1", "--seed", "5")
    assert efficiency(capsys, "--seeds", "1", "--seed", "5") == one
    assert efficiency(capsys, "--seeds", "1", "--seed", "6") != one
    four = efficiency(capsys, "--replicas", "4")
    assert four < efficiency(capsys)
    jitter = Jitter(compute_s=2.0, network_s=(1.0, 3.0), seed=1)
    draws, other = jitter.draws(3, 2000), jitter.draws(3, 2000, copy=1)
    assert np.std(draws[F]) == pytest.approx(2.0, rel=0.1)
    assert draws[F].min() < 0 <= draws[Kind.SEND].min()
    assert [np.mean(row) for row in draws[Kind.SEND]] == pytest.approx([0.8, 2.4, 0], rel=0.1)
    assert not np.array_equal(draws[F], other[F])


def test_passes_never_take_less_than_nothing():
    passes = orders.lists("varuna", 2, 6)
    draws = Jitter(compute_s=10.0).draws(2, 6)
    ran = timeline(passes, [{F: 1.0, R: 1.0, B: 2.0}] * 2, Links(seconds=[0.1]), draws=draws)
    assert all(timed.end_s >= timed.start_s for timed in ran)
    assert any(timed.end_s == timed.start_s for timed in ran)


def test_a_message_waits_for_its_wire_and_its_latency_occupies_nobody():
    """Two stages whose passes take no time but the first: messages are all there is."""
    passes = orders.lists("gpipe", 2, 4)
    seconds = [{F: 0.0, B: 0.0}, {F: 0.0, B: 0.0}]

    def step(**links) -> float:
        return end_s(timeline(passes, seconds, Links(**links)))

    assert step(seconds=[5.0]) == 10.0
    wired = {"seconds": [5.0], "wire_s": [1.0], "places": True}
    assert step(**wired) == (4 * 1.0 + 5.0) + 2 * (1.0 + 5.0)  # three places for gradients
    assert step(**wired, in_flight=1) == 2 * (1.0 + 4 * 5.0)
    assert step(seconds=[5.0], in_flight=2) == 20.0
    assert timeline(passes, seconds, [5.0]) == timeline(passes, seconds, 5.0)


def test_sums_begin_when_the_last_copy_has_drained_and_lie_beside_passes():
    """The second of two stages drains first; a sum is seen as far as it ends after the passes."""
    passes = orders.lists("1f1b", 2, 2)
    quickly, slowly = (
        timeline(passes, [{F: 1.0, B: 2.0}, {F: 1.0, B: 2.0 + late}]) for late in (0.0, 1.0)
    )
    ends = [
        max(t.end_s for t in ran if t.position == rank)
        for ran in (quickly, slowly)
        for rank in (0, 1)
    ]
    assert ends == [9.0, 7.0, 11.0, 9.0]

    def step(copies, first, second, **more) -> float:
        sums = [[Sum(unit=0, **first)], [Sum(unit=1, **second)]]
        return steps.step_seconds(copies, sums, **more)

    assert step([quickly], {}, {"seconds": 2.0}) == 9.0
    assert step([quickly], {}, {"seconds": 5.0}) == 12.0
    assert step([quickly, slowly], {}, {"seconds": 5.0}) == 14.0
    assert step([quickly], {"seconds": 2.0, "before_s": 0.5}, {}) == 10.5
    assert step([quickly], {}, {}, norm_s=0.25, updates_s=[0.5, 1.25]) == 9.0 + 0.25 + 0.5
    loan = Loan(unit=1, owner=0, stages=(1, 0), seconds=3.0)
    assert step([quickly], {}, {}, loans=[loan]) == 9.0 + 3.0 + 2.0
