"""Networks for pictures train alike under methods of one device and of several: wide residual ones
with BatchNorm, whose statistics are of micro-batches, and with GroupNorm, which knows none; and a
vision transformer."""

from __future__ import annotations

from functools import partial

import pytest

from baselines.plain_training import PlainTraining
from tests.methods import harness, plain
from tests.methods.harness import PARAMETER_TOLERANCE, Silent, assert_near
from tests.methods.pipelines import schedule_for, trained
from workbench.core.model_spec import ModelSpec
from workbench.methods import stronghold

SMALL = partial(ModelSpec, hidden=4, heads=1, vocab=10, tied=False)
MODELS = [
    SMALL(family="wide-resnet", layers=3, seq=16, dropout=0.1),
    SMALL(family="wide-resnet", layers=3, seq=16, dropout=0.1, group_norm=True),
    SMALL(family="wide-resnet-imagenet", layers=5, seq=64, width_factor=3),
    ModelSpec(
        family="vit",
        layers=3,
        hidden=8,
        heads=2,
        seq=16,
        vocab=10,
        dropout=0.1,
        tied=False,
        patch=4,
    ),
]


def spec_for(model: ModelSpec, **changes):
    """Steps of 8 pictures; a micro-batch of 4 has statistics of its own."""
    augment = "crop-flip" if model.family == "vit" else "none"
    given = {"model": model, "text": "stdlib", "augment": augment}
    given |= {"batch": 8, "steps": 3, "microbatches": 2}
    return plain.spec_for(**{**given, **changes})


@pytest.fixture(
    scope="module",
    params=[
        MODELS[0], pytest.param(MODELS[1], marks=pytest.mark.thorough), *MODELS[2:],
    ],
    ids=["BatchNorm", "GroupNorm", "bottlenecks", "vit"],
)  # fmt: skip
def whole(request, tmp_path_factory):
    """The module as it was written, in one process, of each model."""
    spec = spec_for(request.param, method="plain", activations="keep")
    made = PlainTraining(spec, Silent(), tmp_path_factory.mktemp("whole"))
    made.run()
    return made


def assert_alike(training, parameters, whole):
    assert training.history.losses == pytest.approx(whole.history.losses, rel=1e-5)
    assert_near(parameters, whole.parameters(), PARAMETER_TOLERANCE)


def test_methods_train_it(whole, tmp_path):
    model = whole.spec.model
    spec = spec_for(model, window=2, resident=1, activations="recompute")
    assert_alike(*harness.run(stronghold, spec, tmp_path / "one"), whole)
    spec = spec_for(model, method="1f1b", ranks=2, microbatches=1, activations="auto")
    activations = "keep" if model.group_norm else "checkpoint"
    schedule = schedule_for("1f1b", spec, 2, 2, activations=activations)
    assert_alike(*trained(schedule, spec, tmp_path / "two"), whole)
