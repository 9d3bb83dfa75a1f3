"""Plans of pipelines: activations kept where memory allows, stages, and what is refused."""

from __future__ import annotations

import pytest

from tests.methods.pipelines import MODEL
from tests.methods.plain import made_up_profile
from workbench.core import methods
from workbench.core.spec import RunSpec
from workbench.schedule import Kind
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE


def spec_for(method="1f1b", **changes) -> RunSpec:
    values = {"model": MODEL, "batch": 8, "microbatches": 4, "ranks": 2, "text": __file__}
    return RunSpec.of(method=method, **{**values, "device": "cpu", **changes})


def plan_of(spec: RunSpec):
    profiles = {
        micro: made_up_profile(spec.with_(batch=micro, microbatches=1, replicas=1))
        for micro in spec.options.micro_sizes(spec)
    }
    return methods.load(spec.method).plan_sizes(spec, profiles)


def test_activations_are_recomputed_where_they_do_not_fit():
    free = plan_of(spec_for())
    assert free.settings["activations"] == "keep"
    tight = plan_of(spec_for(device_memory=free.peak_bytes[DEVICE] - 1))
    assert tight.settings["activations"] == "checkpoint"
    assert tight.peak_bytes[DEVICE] < free.peak_bytes[DEVICE]
    assert tight.step_seconds > free.step_seconds
    with pytest.raises(DoesNotFit, match="of device memory are needed"):
        plan_of(spec_for(device_memory=1000))


def test_replicas_share_the_batch_and_not_the_schedule():
    one, two = plan_of(spec_for()), plan_of(spec_for(ranks=4, replicas=2, microbatches=2))
    assert (two.schedule.num_ranks, two.schedule.replicas) == (2, 2)
    assert len(two.schedule.actions) < len(one.schedule.actions)
    sums = [action for action in two.schedule.actions if action.kind is Kind.REDUCE]
    assert {action.unit for action in sums} == {*range(MODEL.layers + 2)}


@pytest.mark.parametrize(
    ("batch", "replicas", "micros", "sizes", "spans"),
    [
        (8, 2, 2, {2}, [[(0, 2), (2, 4)]] * 2),
        (7, 2, 2, {1, 2}, [[(0, 2), (2, 4)], [(0, 2), (2, 3)]]),
        (11, 3, 3, {1, 2}, [[(0, 2), (2, 3), (3, 4)]] * 2 + [[(0, 1), (1, 2), (2, 3)]]),
        (5, 2, 3, {1}, [[(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 2), (1, 2)]]),
        (5, 1, 4, {1, 2}, [[(0, 2), (2, 3), (3, 4), (4, 5)]]),
    ],
)
def test_replicas_and_micro_batches_differ_by_a_sample(batch, replicas, micros, sizes, spans):
    """The schedule is that of the largest replica; another one's has nothing more anywhere. One
    that has fewer samples than micro-batches repeats one."""
    spec = spec_for(batch=batch, replicas=replicas, ranks=2 * replicas, microbatches=micros)
    assert spec.options.micro_sizes(spec) == sizes
    schedule = plan_of(spec).schedule
    assert schedule.of_replica(0, batch).actions == schedule.actions
    for replica, wanted in enumerate(spans):
        own = schedule.of_replica(replica, batch)
        passes = [a for a in own.actions if a.kind is Kind.FORWARD and a.unit == 0]
        assert [action.samples for action in passes] == wanted
        pairs = zip(own.actions, schedule.actions, strict=True)
        assert all(a.name == b.name and a.nbytes <= b.nbytes for a, b in pairs)


def test_given_stages_are_taken():
    assert plan_of(spec_for(stages="3 5")).settings["stages"] == "3 5"
    assert plan_of(spec_for("interleaved", stages="1 2 2 3")).settings["stages"] == "1 2 2 3"


def test_the_last_stage_of_varuna_has_more_units():
    """All units take as long, and 4 parts of time in the first stage, but 3 in the last."""
    assert plan_of(spec_for("1f1b")).settings["stages"] == "4 4"
    plan = plan_of(spec_for("varuna"))
    assert plan.settings["stages"] == "3 5"
    again = {action.unit for action in plan.schedule.actions if action.kind is Kind.RECOMPUTE}
    assert again == {0, 1, 2}
    alone = plan_of(spec_for("varuna", ranks=2, replicas=2, microbatches=2))
    assert alone.settings["activations"] == "keep"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"replicas": 3}, "replicas is 3; it must divide the 2 ranks"),
        ({"ranks": 4, "replicas": 2, "microbatches": 8}, "does not divide into 8 micro-batches"),
        ({"ranks": 4, "replicas": 4, "batch": 3}, "leaves some of 4 replicas without a sample"),
        ({"microbatches": 9}, "they have at most 8 samples, so use at most 8 micro-batches"),
        ({"ranks": 9}, "9 stages need a unit each, and the model has 8"),
        (
            {"stages": "3 4"},
            "stages '3 4' are 2 of 7 units; the ranks have 2 stages and the model 8",
        ),
        ({"stages": "a"}, "stages is 'a'; it must be numbers of units such as '5 4 4 3', or auto"),
        ({"activations": "host"}, "a pipeline keeps or recomputes them"),
        ({"method": "interleaved", "ranks": 3, "batch": 12}, "it must be a multiple of 3"),
        ({"method": "interleaved", "chunks": 1}, "an interleaved rank has two stages or more"),
        ({"method": "varuna", "activations": "keep"}, "but for those of the last stage"),
        ({"method": "zb-h1", "compile": "on"}, "a compiled layer has no halves"),
        ({"window": 4}, "window is 4; with 1f1b it has no meaning"),
    ],
)
def test_what_cannot_be_is_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan_of(spec_for(**changes))
