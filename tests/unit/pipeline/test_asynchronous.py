"""Asynchronous pipelines are proved: which weights each pass reads, and what is in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.profile.profile import UnitCost
from workbench.schedule import event_loop
from workbench.schedule.action import COMPUTE, Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import DEVICE, Schedule
from workbench.schedule.serialize import from_json, to_json
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

KEPT = 10
"""Bytes that a forward pass keeps for its backward pass."""
MAPS = [
    (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 1), (1, 0, 0),
    (0, 1, 2, 0, 1, 2), (0, 0, 0),
]  # fmt: skip
SHAPES = [((0, 1), 1), ((0, 1, 2), 2), ((0, 1, 0, 1), 1), ((0, 1, 1, 0), 3)]


class Sizes(IdealSizes):
    """One fp32 weight, and what is kept."""

    def weight_bytes(self, unit: int) -> int:
        return 4

    def cost(self, unit: int, samples: int) -> UnitCost:
        return UnitCost(
            kind="stage", parameters=1, forward_s=1, recompute_s=1, backward_s=2, kept_bytes=KEPT
        )


def made(positions, micros, *, stashes=False, recompute=False, depths=None) -> Schedule:
    depths = depths or [*reversed(range(len(positions)))]
    return schedule(
        Asynchronous(
            label="async-1f1b",
            positions=positions,
            depths=depths,
            micros=micros,
            samples=1,
            sizes=Sizes(),
            stashes=stashes,
            recompute=recompute,
        )  # fmt: skip
    )


def changed(of: Schedule, i: int, **kw) -> Schedule:
    """The schedule with another action number i."""
    actions = [*of.actions]
    actions[i] = replace(actions[i], **kw)
    return replace(of, actions=tuple(actions))


@pytest.mark.parametrize("positions", MAPS)
@pytest.mark.parametrize("micros", [1, 2, 3, 4])
@pytest.mark.parametrize("stashes", [False, True])
def test_any_map_is_proved(positions, micros, stashes):
    found = made(positions, micros, stashes=stashes)
    assert from_json(to_json(found)) == found
    peaks = validate(found).peak_bytes
    wanted = dict.fromkeys(positions, 0)
    for stage, at in enumerate(positions):
        depth = len(positions) - 1 - stage
        versions = 1 + (-(-depth // micros) if stashes else 0)
        wanted[at] += 4 * versions + KEPT * (depth + 1)
    if len({*positions}) == len(positions):  # else two stages may not be full at one time
        assert {at: peaks[at][DEVICE] for at in wanted} == wanted
    assert all(peaks[at][DEVICE] <= most for at, most in wanted.items())


@pytest.mark.parametrize(("positions", "micros"), SHAPES)
@pytest.mark.parametrize("stashes", [False, True])
def test_another_version_or_lag_than_the_true_one_is_refused(positions, micros, stashes):
    found = made(positions, micros, stashes=stashes)
    for i, action in enumerate(found.actions):
        if action.kind not in (Kind.FORWARD, Kind.BACKWARD):
            continue
        for lag in {max(0, action.lag - 1), action.lag + 1} - {action.lag}:
            with pytest.raises(ScheduleError):
                validate(changed(found, i, lag=lag))
        if action.stale and (action.kind is Kind.FORWARD or not stashes):
            with pytest.raises(ScheduleError, match="its weights may be stale"):
                validate(changed(found, i, stale=action.stale - 1))
        if not stashes:  # the only version there is
            with pytest.raises(ScheduleError, match="may find fresher weights"):
                validate(changed(found, i, stale=action.stale + 1))


@pytest.mark.parametrize(("positions", "micros"), SHAPES)
def test_a_copy_too_few_is_refused(positions, micros):
    found = made(positions, micros, stashes=True)
    several = {label: buffer for label, buffer in found.buffers.items() if buffer.copies > 1}
    assert several
    for label, buffer in several.items():
        fewer = {**found.buffers, label: replace(buffer, copies=buffer.copies - 1)}
        with pytest.raises(ScheduleError):
            validate(replace(found, buffers=fewer))


def test_a_pass_after_the_update_finds_fresher_weights_than_it_declares():
    found = made((0, 1), 2)
    actions = [*found.actions]
    mine = [i for i, a in enumerate(actions) if (a.rank, a.lane) == (0, COMPUTE)]
    update = next(i for i in mine if actions[i].kind is Kind.UPDATE)
    first = next(i for i in mine if actions[i].kind is Kind.FORWARD)
    actions.insert(update, actions.pop(first))
    with pytest.raises(ScheduleError, match="F0"):
        validate(replace(found, actions=tuple(actions)))


def test_a_last_stage_that_waits_is_refused():
    with pytest.raises(ValueError, match="the last stage's depth is 1"):
        made((0, 1), 1, depths=[1, 1])


class Alike:
    """A backward pass takes twice as long as a forward pass, and nothing else takes time."""

    def seconds(self, action):
        return {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0}.get(action.kind, 0.0)

    def slowdown(self, lane, busy):
        return 1.0


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("stages", "micros"), [(1, 2), (3, 1), (4, 2)])
def test_a_pipeline_fills_and_drains_once(monkeypatch, stages, micros, compiled):
    """Stages are busy all the time in between: a step takes as long as its passes."""
    if not compiled:
        monkeypatch.setattr(event_loop, "_loop", lambda: None)
    found = simulate(made(range(stages), micros), Alike(), steps=20)
    passes = [event for event in found.events if event.kind in "FB"]
    assert {(event.step, event.microbatch) for event in passes} == {
        (step, micro) for step in range(20) for micro in range(micros)
    }
    assert found.makespan_s == 3 * (20 * micros + stages - 1)
    assert found.step_seconds == pytest.approx(3 * micros)
