"""A wide residual network trains alike under methods of one device and of several: with BatchNorm,
whose statistics are of micro-batches, and with GroupNorm, which knows none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baselines.plain_training import PlainTraining
from tests.methods import harness, plain
from tests.methods.harness import PARAMETER_TOLERANCE, Silent, assert_near
from tests.methods.pipelines import schedule_for, trained
from workbench.core.model_spec import ModelSpec
from workbench.methods import stronghold
from workbench.training.rank_host import statistics

MODEL = ModelSpec(
    family="wide-resnet", layers=3, hidden=4, heads=1, seq=16, vocab=10, dropout=0.1, tied=False
)


def spec_for(grouped: bool, **changes):
    """Steps of 8 pictures; a micro-batch of 4 has statistics of its own."""
    model = replace(MODEL, group_norm=grouped)
    given = {"model": model, "text": "stdlib", "batch": 8, "steps": 3, "microbatches": 2}
    return plain.spec_for(**{**given, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The module as it was written, in one process, with and without GroupNorm."""
    made = {}
    for grouped in (False, True):
        spec = spec_for(grouped, method="plain", activations="keep")
        made[grouped] = PlainTraining(spec, Silent(), tmp_path_factory.mktemp("whole"))
        made[grouped].run()
    return made


@pytest.mark.parametrize("grouped", [False, True])
def test_stronghold_trains_it(grouped, whole, tmp_path):
    spec = spec_for(grouped, window=2, resident=1, activations="recompute")
    training, parameters = harness.run(stronghold, spec, tmp_path)
    assert training.history.losses == pytest.approx(whole[grouped].history.losses, rel=1e-5)
    assert_near(parameters, whole[grouped].parameters(), PARAMETER_TOLERANCE)


@pytest.mark.parametrize(
    ("grouped", "activations"), [(False, "checkpoint"), (False, "keep"), (True, "recompute")]
)
def test_pipelines_train_it(grouped, activations, whole, tmp_path):
    spec = spec_for(grouped, method="1f1b", ranks=2, microbatches=1, activations="auto")
    schedule = schedule_for("1f1b", spec, 2, 2, activations=activations)
    training, parameters = trained(schedule, spec, tmp_path)
    assert training.history.losses == pytest.approx(whole[grouped].history.losses, rel=1e-5)
    assert_near(parameters, whole[grouped].parameters(), PARAMETER_TOLERANCE)
    if not grouped:
        found = statistics(training.folder, training.schedule.mesh.processes)
        assert "blocks.1.norm1.running_var" in found
