"""Batches that nothing divides, of samples with unequal numbers of labels, train as torch's own
loop over the whole batch does: wherever a minibatch is divided, what counts is a label."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from baselines.plain_training import PlainTraining
from baselines.swapping.division import build as build_swapping
from baselines.swapping.division import divided
from tests.methods import double, masked, pipelines, plain, test_modules, torchs
from tests.methods.harness import LOSS_TOLERANCE, Silent, assert_near, half
from tests.methods.rank_server import process
from tests.methods.test_double import TOLERANCE, trained
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.model import make_model
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.memory.traffic import planned_parts
from workbench.schedule.schedule import Schedule
from workbench.training.rank_processes import RankTraining
from workbench.training.run import load_batches

BATCH = 7
MODEL = ModelSpec(
    family="tests.methods.masked:net", layers=4, hidden=18, heads=6, vocab=3, tied=False
)
UNITS = MODEL.layers + 2


def spec_for(**changes):
    return plain.spec_for(
        **{"model": MODEL, "batch": BATCH, "text": "stdlib", "steps": 6, **changes}
    )


def sizes() -> double.Doubled:
    return double.Doubled({1: plain.made_up_profile(spec_for(microbatches=BATCH))}, tied={})


def harmony(mode: str) -> Schedule:
    packs = Packs(
        mode=mode, ranks=2, minibatch=BATCH, forward_size=3, backward_size=2,
        forward=packs_of([1] * (UNITS - 2)), backward=packs_of([*[1] * (UNITS - 2), 2]),
    )  # fmt: skip
    return build(packs, sizes(), rings=[Rings(weights=1 << 16, gradients=1 << 16)] * 2)


def swapping(mode: str) -> Schedule:
    stages = packs_of([2, 4]) if mode == "pp" else (range(UNITS),) * 2
    return build_swapping(divided(mode, BATCH, 2, stages, own=(1, 0)), sizes())


def pipeline(order: str, micros: int) -> Schedule:
    """Of two replicas."""
    spec = spec_for()
    return pipelines.schedule_for(order, spec, 2, micros, replicas=2, sizes_of=double.Doubled)


WAYS = {
    "harmony-dp": lambda: harmony("dp"),
    "harmony-pp": lambda: harmony("pp"),
    "pp-swap": lambda: swapping("pp"),
    "dp-swap": lambda: swapping("dp"),
    "zb-h1, one of 3 samples in 4": lambda: pipeline("zb-h1", 4),
    "1f1b": lambda: pipeline("1f1b", 2),
}


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


@pytest.mark.parametrize("way", half(WAYS))
def test_a_mean_is_over_all_labels_of_a_step(way, tmp_path):
    schedule = WAYS[way]()
    spec = spec_for(ranks=schedule.mesh.processes)
    losses, expected = by_torch(spec, torch.float64)
    with trained(schedule, spec, tmp_path) as crew:
        assert crew.history.losses == pytest.approx(losses, rel=TOLERANCE)
        found = checkpoint.parameters(crew.model, crew.states, crew.flats)
        assert_near(found, expected, TOLERANCE)
        parts = [result["moved_parts"] for result in crew.results()]
    planned = planned_parts(schedule, BATCH)
    for part, nbytes in planned.items():
        assert sum(each.get(part, 0) for each in parts) == nbytes * spec.steps, part


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
