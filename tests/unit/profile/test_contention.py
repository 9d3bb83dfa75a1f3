"""Lanes at the host's memory are timed alone, in pairs and all three, by all ranks in step."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from workbench.profile.contention import measure_contention
from workbench.profile.profile import MEMORY_LANES
from workbench.profile.timing import Sample
from workbench.schedule.action import D2H, H2D, HOST

ALONE_S = {H2D: 1.0, D2H: 2.0, HOST: 4.0}
PER_OTHER = {H2D: 2.0, D2H: 1.5, HOST: 0.9}
"""Made-up times: so many times as long for each other lane at work; the host's got faster, as noise
has it."""


class Memory:
    """Who is at work, as lanes see it: all of a group have begun before any tells its time."""

    def __init__(self) -> None:
        self.met = 0
        self.lock, self.busy = threading.Lock(), set()

    def meet(self) -> None:
        self.met += 1
        self.busy.clear()

    def lane(self, name: str) -> SimpleNamespace:
        def once() -> Sample:
            with self.lock:
                self.busy.add(name)
            time.sleep(0.002)
            seconds = ALONE_S[name] * PER_OTHER[name] ** (len(self.busy) - 1)
            return Sample(seconds, seconds)

        return SimpleNamespace(once=once, amount=8.0)


def test_each_lane_each_pair_and_all_three_are_timed() -> None:
    memory = Memory()
    assert {*ALONE_S} == MEMORY_LANES
    rates, factors = measure_contention(
        {n: memory.lane(n) for n in ALONE_S}, memory.meet, seconds=0.1
    )
    assert rates == pytest.approx({H2D: 8.0, D2H: 4.0, HOST: 2.0})
    assert factors == pytest.approx(
        {
            "h2d|d2h": 2.0, "d2h|h2d": 1.5, "h2d|host": 2.0, "host|h2d": 1.0,
            "d2h|host": 1.5, "host|d2h": 1.0,
            "h2d|d2h+host": 4.0, "d2h|h2d+host": 2.25, "host|d2h+h2d": 1.0,
        }
    )  # fmt: skip
    assert memory.met == 7, "all ranks begin each timing together"
