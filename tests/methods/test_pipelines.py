"""Pipelines that go on, that wait and that fail train as plain training does, or end."""

from __future__ import annotations

import pytest

from tests.methods.harness import assert_equals_plain
from tests.methods.pipelines import schedule_for, spec_for, trained
from tests.unit.pipeline import test_shapes
from workbench.methods.pipeline.choosing import chosen
from workbench.ranks.failures import RankFailed
from workbench.schedule.action import COMPUTE, lane_kind
from workbench.schedule.simulate import Event, simulate


def test_the_chosen_shape_of_a_batch_that_does_not_divide_trains(tmp_path):
    """Two replicas, of 6 samples and of 5, in micro-batches of 2 at most."""
    ground = test_shapes.ground_of(batch=11, replicas=2, stages="2 4", micro=2)
    plan = chosen(ground)
    assert (plan.schedule.replicas, plan.schedule.num_microbatches) == (2, 3)
    assert plan.step_seconds == simulate(plan.schedule, ground.costs(plan.schedule)).step_seconds
    spec = spec_for(model=test_shapes.MODEL, batch=11, ranks=4)
    assert_equals_plain(spec, *trained(plan.schedule, spec, tmp_path))


def test_a_pipeline_goes_on_from_its_checkpoint_under_another_shape(tmp_path):
    """Two replicas of two stages without clipping, then three stages of another order."""
    spec = spec_for(ranks=4, clip=None, steps=2, save_every=2)
    trained(schedule_for("1f1b", spec, 2, 3, replicas=2), spec, tmp_path / "first")
    longer = spec_for(ranks=3, clip=None, steps=4, save_every=0, start_from="first")
    schedule = schedule_for("zb-h1", longer, 3, 4)
    training, parameters = trained(schedule, longer, tmp_path / "second")
    assert len(training.history.step_seconds) == 2
    assert_equals_plain(longer.with_(start_from=""), training, parameters)


def test_ranks_may_be_spare(tmp_path):
    """A plan of fewer processes than ranks, each of which has a slot."""
    spec = spec_for(method="varuna", ranks=3, steps=2)
    training, parameters = trained(schedule_for("varuna", spec, 2, 3), spec, tmp_path)
    assert_equals_plain(spec, training, parameters)


def test_a_gradient_that_is_late_lets_a_forward_pass_go_first(tmp_path):
    """Rank 2 sends its gradients of the last step late: rank 1 then does not wait for the second
    with its last forward pass still to do, and trains alike."""
    spec = spec_for(ranks=3, steps=2)
    schedule = schedule_for("varuna", spec, 3, 4)
    listed = [a.name for a in schedule.actions if a.rank == 1 and lane_kind(a.lane) == COMPUTE]
    training, parameters = trained(schedule, spec, tmp_path, "2:SEND_GRAD:1:wait")
    events = [Event(*row) for row in training.results()[1]["events"]]
    ran = [event for event in events if event.step == 1 and event.name in listed]
    names = [event.name for event in sorted(ran, key=lambda event: event.start_s)]
    late, last = "1:R3.1", "1:F3.3"
    assert listed.index(late) < listed.index(last)
    assert names.index(late) > names.index(last)
    assert_equals_plain(spec, training, parameters)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.thorough] if s > 2 else []) for s in range(1, 11)]
)
def test_no_rank_waits_for_ever_whatever_is_late(seed, tmp_path):
    """Nor does one that begins again behind a checkpoint."""
    spec = spec_for(ranks=3, steps=3, save_every=2)
    training, parameters = trained(
        schedule_for("varuna", spec, 3, 6), spec, tmp_path, f"delays {seed}"
    )
    assert_equals_plain(spec, training, parameters)


def test_a_rank_that_fails_in_a_backward_pass_ends_the_run(tmp_path):
    """Whichever of its lanes has the device."""
    spec = spec_for(ranks=2, steps=3)
    with pytest.raises(RankFailed, match="rank 0: a made-up failure"):
        trained(schedule_for("varuna", spec, 2, 3), spec, tmp_path, "0:BACKWARD:1:raise")
