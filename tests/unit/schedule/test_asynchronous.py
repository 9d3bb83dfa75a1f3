"""Asynchronous schedules are proved: which weights each pass reads, and what is in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.schedule.asynchronous import KEPT, SIZE, asynchronous, changed
from workbench.schedule import event_loop
from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import DEVICE
from workbench.schedule.serialize import from_json, to_json
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

SHAPES = [(stages, micros) for stages in (1, 2, 3, 4) for micros in (1, 2, 3, 4)]
PASSES = (Kind.FORWARD, Kind.BACKWARD)


@pytest.mark.parametrize(("stages", "micros"), SHAPES)
@pytest.mark.parametrize("stashes", [False, True])
def test_asynchronous_1f1b_is_proved(stages, micros, stashes):
    schedule = asynchronous(stages, micros, stashes=stashes)
    assert from_json(to_json(schedule)) == schedule
    peaks = validate(schedule).peak_bytes
    for stage in range(stages):
        flying = stages - stage
        versions = 1 + (-(-(flying - 1) // micros) if stashes else 0)
        # Where there is room for one more input, it may come while all others are used.
        inputs = flying + (flying % micros != 0)
        assert peaks[stage][DEVICE] == versions + KEPT * flying + SIZE * inputs * (stage > 0)


@pytest.mark.parametrize(("stages", "micros"), [(2, 1), (3, 2), (4, 1), (4, 3)])
@pytest.mark.parametrize("stashes", [False, True])
def test_another_version_or_lag_than_the_true_one_is_refused(stages, micros, stashes):
    schedule = asynchronous(stages, micros, stashes=stashes)
    for i, action in enumerate(schedule.actions):
        if action.kind not in PASSES:
            continue
        for lag in {max(0, action.lag - 1), action.lag + 1} - {action.lag}:
            with pytest.raises(ScheduleError):
                validate(changed(schedule, i, lag=lag))
        if action.stale and (action.kind is Kind.FORWARD or not stashes):
            with pytest.raises(ScheduleError, match="its weights may be stale"):
                validate(changed(schedule, i, stale=action.stale - 1))
        if not stashes:  # the only version there is
            with pytest.raises(ScheduleError, match="may find fresher weights"):
                validate(changed(schedule, i, stale=action.stale + 1))


@pytest.mark.parametrize(("stages", "micros"), [(2, 1), (3, 2), (4, 1), (4, 3)])
def test_a_copy_too_few_is_refused(stages, micros):
    schedule = asynchronous(stages, micros, stashes=True)
    for label, buffer in schedule.buffers.items():
        if buffer.copies > 1:
            fewer = replace(buffer, copies=buffer.copies - 1)
            with pytest.raises(ScheduleError, match=r"B\d|buffer"):
                validate(replace(schedule, buffers={**schedule.buffers, label: fewer}))


def test_a_pass_after_the_update_finds_fresher_weights_than_it_declares():
    schedule = asynchronous(2, 2)
    actions = [*schedule.actions]
    update = next(i for i, a in enumerate(actions) if a.rank == 0 and a.kind is Kind.UPDATE)
    last = next(i for i, a in enumerate(actions) if a.rank == 0 and a.kind is Kind.FORWARD)
    actions.insert(update, actions.pop(last))
    with pytest.raises(ScheduleError, match="F0"):
        validate(replace(schedule, actions=tuple(actions)))


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
    found = simulate(asynchronous(stages, micros), Alike(), steps=20)
    passes = [event for event in found.events if event.kind in "FB"]
    assert {(event.step, event.microbatch) for event in passes} == {
        (step, micro) for step in range(20) for micro in range(micros)
    }
    assert found.makespan_s == 3 * (20 * micros + stages - 1)
    assert found.step_seconds == pytest.approx(3 * micros)
