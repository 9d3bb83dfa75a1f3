"""Samples with unequal numbers of labels, or none: wherever a minibatch is divided, what counts is
a label. The grid of tests/exactness divides them on ranks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from baselines.plain_training import PlainTraining
from tests.methods import masked, pipelines, plain, test_modules, torchs
from tests.methods.harness import LOSS_TOLERANCE, Silent, assert_near
from tests.methods.rank_server import process
from workbench.core.model_spec import ModelSpec
from workbench.model import make_model
from workbench.training.rank_processes import RankTraining
from workbench.training.run import load_batches

BATCH = 7
MODEL = ModelSpec(
    family="tests.methods.masked:net", layers=4, hidden=18, heads=6, vocab=3, tied=False
)


def spec_for(**changes):
    return plain.spec_for(
        **{"model": MODEL, "batch": BATCH, "text": "stdlib", "steps": 6, **changes}
    )


def by_torch(spec, dtype: torch.dtype):
    """Losses, and the user's own module after training."""
    torch.manual_seed(spec.seed)
    net = masked.net(spec.model)[0].to(dtype)
    losses, _ = torchs.train(spec, net)
    return losses, dict(net.named_parameters())


def test_samples_are_as_unlike_as_they_should_be():
    """In some micro-batches of the first steps no label counts."""
    spec = spec_for()
    model = make_model(spec.model)
    batches = load_batches(spec, model)
    counts = [model.counted(batches.batch(step)[-1]) for step in range(spec.steps)]
    assert len({sum(each) for each in counts}) > 1
    assert any(0 in each for each in counts)


@pytest.mark.parametrize("micros", [1, BATCH])
def test_plain_training_is_torchs(micros, tmp_path):
    spec = spec_for(method="plain", microbatches=micros)
    run = PlainTraining(spec, Silent(), tmp_path)
    run.run()
    losses, expected = by_torch(spec, torch.float32)
    assert run.history.losses == pytest.approx(losses, rel=10 * LOSS_TOLERANCE)
    assert_near(run.parameters(), expected)


def test_a_step_without_a_label_is_refused(tmp_path):
    model = replace(MODEL, heads=1)
    sentence = "of the labels of step 0 none counts, so that it has no mean loss"
    with pytest.raises(ValueError, match=sentence):
        PlainTraining(spec_for(method="plain", model=model), Silent(), tmp_path / "plain").run()
    spec = spec_for(model=model)
    schedule = pipelines.schedule_for("1f1b", spec, 1, 2)
    how = {"device": "cpu", "process": process("")}
    with (
        closing(RankTraining(spec, schedule, tmp_path / "ranks", **how)) as crew,
        pytest.raises(ValueError, match=sentence),
    ):
        crew.run(Silent())


def test_statistics_of_replicas_are_those_of_plain_training(tmp_path):
    """BatchNorm's, of micro-batches of 2, 2, 2 and 1 samples; where one would repeat a sample, the
    run is refused."""
    spec = spec_for(model=test_modules.RESNET, steps=3, ranks=2)
    schedule = pipelines.schedule_for("1f1b", spec, 1, 2, replicas=2)
    how = {"device": "cpu", "process": process("")}
    with closing(RankTraining(spec, schedule, tmp_path, **how)) as crew:
        crew.run(Silent())
        test_modules.assert_equals_original(spec, crew, 2)
    few = spec.with_(batch=3)
    with pytest.raises(ValueError, match="fewer samples than 2 micro-batches: one would repeat"):
        RankTraining(few, pipelines.schedule_for("1f1b", few, 1, 2, replicas=2), tmp_path, **how)


def test_a_schedule_of_other_micro_batches_than_smaller_replicas_have_is_refused(tmp_path):
    spec = spec_for(ranks=2)
    schedule = pipelines.schedule_for("1f1b", spec, 1, 2, replicas=2)
    first = {(0, 2): (0, 3), (2, 4): (3, 4), None: None}
    moved = tuple(replace(a, samples=first[a.samples]) for a in schedule.actions)
    with pytest.raises(ValueError, match=r"samples \(0, 3\); where 2 replicas .* are \(0, 2\)"):
        RankTraining(spec, replace(schedule, actions=moved), tmp_path, device="cpu")
