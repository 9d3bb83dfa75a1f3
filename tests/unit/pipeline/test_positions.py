"""Stages on any positions: what planners foresee of drawn maps and orders is what is simulated."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.unit.pipeline.test_shapes import ground_of
from tests.unit.schedule.made_up import Table
from tests.unit.varuna.test_autoconfig import BETWEEN, PROFILE, WITHIN
from workbench.methods.pipeline import ideal
from workbench.methods.pipeline.choosing import ServerNetwork, question
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import B, F, Pass, R, held
from workbench.methods.pipeline.prediction import Prediction
from workbench.methods.pipeline.quick import Links, Rule, end_s, timeline
from workbench.methods.pipeline.shapes import MARGIN
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.methods.varuna.autoconfig import HostsNetwork
from workbench.schedule.action import MEETING, RECEIVES, SENDS
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import DEVICE
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate


def drawn_positions(rng: random.Random, stages: int) -> list[int]:
    """Positions of so many stages, such as 0 1 1 0 or 0 0 1; each position has a stage."""
    found = [rng.randrange(rng.choice([1, 2, 3])) for _ in range(stages)]
    every = rng.sample(sorted({*found}), len({*found}))
    return [every.index(position) for position in found]


def drawn_passes(rng: random.Random, positions: list[int], micros: int) -> list[list[Pass]]:
    """The order in which positions run that now and then prefer a backward pass."""
    stages, prefers = range(len(positions)), rng.choice([0.0, 0.5, 0.9, 1.0])
    number = {stage: at for own in held(positions) for at, stage in enumerate(own)}
    found: list[list[Pass]] = [[] for _ in range(1 + max(positions))]
    done = {kind: [0] * len(positions) for kind in (F, B)}
    while min(done[B]) < micros:
        before = {F: [micros, *done[F]], B: [*done[B][1:], micros]}
        able = [(F, s) for s in stages if done[F][s] < before[F][s]]
        back = [(B, s) for s in stages if done[B][s] < min(done[F][s], before[B][s])]
        kind, stage = rng.choice(back if back and rng.random() < prefers else able + back)
        found[positions[stage]].append(Pass(kind, done[kind][stage], number[stage]))
        done[kind][stage] += 1
    return found


def refused(call, error: type[Exception]) -> bool:
    try:
        call()
    except error:
        return True
    return False


def test_steps_of_drawn_maps_and_orders_are_those_of_their_schedules():
    """With messages that meet, and with links; lists with recomputations take turns."""
    rng, seen = random.Random(21), Counter()
    for _ in range(300):
        positions = drawn_positions(rng, rng.choice([2, 3, 4, 5]))
        passes, recomputes = drawn_passes(rng, positions, rng.choice([1, 3, 6])), rng.random() < 0.4
        if recomputes:
            passes = ideal.with_recomputation(passes, positions)
        seconds = [{kind: rng.random() for kind in (F, R, B)} for _ in positions]
        links = Links(seconds=[1.0] * 4, wire_s=[0.1] * 4, places=True)
        asked = {"rule": Rule(turns=recomputes, early=True), "positions": positions}
        schedule = stage_schedule("drawn", passes, positions=positions)
        waits = refused(lambda of=schedule: validate(of), ScheduleError)
        assert waits == refused(
            lambda of=(passes, seconds), more=asked: timeline(*of, 0.3, **more), ValueError
        )
        seen[waits, recomputes, len(positions) > len(passes)] += 1
        if waits:
            continue
        alone = {a.name: seconds[a.unit].get(a.kind, 0.0) for a in schedule.actions}
        meeting = {a.name: alone[a.name] + 0.3 * (a.kind in MEETING) for a in schedule.actions}
        late = {
            a.name: alone[a.name] + 0.1 * (a.kind in SENDS) + 1.0 * (a.kind in RECEIVES)
            for a in schedule.actions
        }
        for taken, messages, more in (
            (meeting, 0.3, {}),
            (late, links, {"in_flight": links.in_flight}),
        ):
            ran = simulate(schedule, Table(taken), steps=1, **more)
            step = max(event.end_s for event in ran.events)
            assert end_s(timeline(passes, seconds, messages, **asked)) == pytest.approx(step)
    assert len([case for case in seen if not case[0]]) == 4
    assert 0 < sum(count for (waits, *_), count in seen.items() if waits) < 30


def test_predictions_of_drawn_maps_are_those_of_plans():
    """Steps within the margin of a search, and bytes that are hardly ever too few; no run holds
    more than is proved, and a run of one position just that."""
    ground, rng, seen = ground_of(order="auto", batch=12), random.Random(22), 0
    asked = question(ground)
    for _ in range(60):
        stages, micros = rng.choice([2, 3, 4, 5, 6]), rng.choice([1, 3, 6])
        positions = drawn_positions(rng, stages)
        cuts = [0, *sorted(rng.sample(range(1, asked.units), stages - 1)), asked.units]
        line = Pipeline(
            method="drawn", passes=drawn_passes(rng, positions, micros), positions=positions,
            stages=tuple(map(range, cuts, cuts[1:])), micro_size=12 // micros, samples=12,
            activations=rng.choice(["keep", "checkpoint"]),
        )  # fmt: skip
        try:
            schedule, peak = ground.proved(line)
        except ScheduleError:  # its messages wait for each other
            continue
        seen += 1
        prediction = Prediction([line], ServerNetwork(ground), asked.sizes, asked.units)
        step = ground.plan(schedule, peak).step_seconds
        seconds = prediction.seconds(line.stages)
        assert (1 - MARGIN) * step <= seconds <= (1 + MARGIN / 2) * step
        assert prediction.balance.device_bytes(line.stages) >= 0.98 * peak[DEVICE]
        ran = simulate(schedule, ground.costs(schedule), steps=2).peak_bytes
        held_bytes = max(peaks[DEVICE] for peaks in ran.values())
        assert 0.98 * peak[DEVICE] <= held_bytes <= peak[DEVICE]
        assert line.depth > 1 or held_bytes == peak[DEVICE]
    assert seen > 50


def test_links_of_a_map_are_those_between_its_hosts():
    network = HostsNetwork(PROFILE, 2)
    assert network.wires([0, 1, 1, 0]) == [WITHIN] * 3
    assert network.wires([0, 2, 1, 1, 2], copy=1) == [BETWEEN, WITHIN, WITHIN, WITHIN]
