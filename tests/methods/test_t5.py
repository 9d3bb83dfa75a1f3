"""Encoder-decoders of unequal halves train alike under methods of one device and of several: a
bias is relayed that is of no sample, answers differ in length, first and last layer share, and of
Megatron's the first layer has what it shares twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from baselines.plain_training import PlainTraining
from tests.methods import harness, plain
from tests.methods.harness import PARAMETER_TOLERANCE, Silent, assert_near
from tests.methods.pipelines import schedule_for, trained
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import stronghold

MODEL = ModelSpec(
    family="t5", layers=3, decoder_layers=2, hidden=16, heads=2, head_size=12, seq=24,
    target_seq=8, vocab=258, gated=True, dropout=0.1,
)  # fmt: skip
MEGATRONS = replace(MODEL, family="megatron-t5", gated=False)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    rows = (f"name: doubles {n}, adds {n % 7}\ttwo{'s' * (n % 5)}{n}\n" for n in range(40))
    path.write_text("".join(rows))
    return str(path)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory) -> Callable[[ModelSpec], PlainTraining]:
    """The module of a model as it was written, in one process."""

    @cache
    def train(model: ModelSpec) -> PlainTraining:
        spec = spec_for(text, model=model, method="plain", activations="keep")
        made = PlainTraining(spec, Silent(), tmp_path_factory.mktemp("whole"))
        made.run()
        return made

    return train


def spec_for(text: str, **changes) -> RunSpec:
    given = {"model": MODEL, "text": text, "batch": 4, "steps": 3, **changes}
    return plain.spec_for(**given)


def assert_alike(losses, parameters, whole: PlainTraining) -> None:
    assert losses == pytest.approx(whole.history.losses, rel=1e-5)
    assert_near(parameters, whole.parameters(), PARAMETER_TOLERANCE)


@pytest.mark.parametrize(("model", "activations"), [(MODEL, "keep"), (MEGATRONS, "recompute")])
def test_stronghold_trains_it(model, activations, text, whole, tmp_path):
    spec = spec_for(text, model=model, window=2, resident=1, activations=activations)
    training, parameters = harness.run(stronghold, spec, tmp_path)
    assert_alike(training.history.losses, parameters, whole(model))


@pytest.mark.parametrize(
    ("model", "order", "activations"),
    [
        pytest.param(MODEL, "1f1b", "keep", marks=pytest.mark.thorough),
        pytest.param(MODEL, "1f1b", "checkpoint", marks=pytest.mark.thorough),
        (MODEL, "zb-h1", "keep"),
        (MODEL, "interleaved", "recompute"),
        (MEGATRONS, "1f1b", "checkpoint"),
        pytest.param(MEGATRONS, "zb-h1", "keep", marks=pytest.mark.thorough),
    ],
)
def test_pipelines_train_it(model, order, activations, text, whole, tmp_path):
    spec = spec_for(text, model=model, method=order, ranks=2, activations="auto")
    schedule = schedule_for(order, spec, 2, 2, activations=activations)
    training, parameters = trained(schedule, spec, tmp_path)
    assert_alike(training.history.losses, parameters, whole(model))
