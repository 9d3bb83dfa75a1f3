"""torch's own pipelines train any module as it is written: several tensors between stages, masks
and integers among them, weights of three units, labels that do not count, BatchNorm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baselines.plain_training import PlainTraining
from tests.methods import plain
from tests.methods.harness import (
    PARAMETER_TOLERANCE,
    Silent,
    assert_near,
    fork_ranks,
    made_up_profile,
)
from tests.methods.test_parallel_baselines import newest_weights
from tests.methods.torch_named import gpipe, interleaved, one_f_one_b
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.model.pairs import COLUMNS
from workbench.schedule.action import Kind

T5 = ModelSpec(
    family="t5", layers=3, decoder_layers=2, hidden=16, heads=2, head_size=12, seq=24,
    target_seq=7, vocab=258, gated=True, dropout=0.1,
)  # fmt: skip
WIDE = ModelSpec(
    family="wide-resnet", layers=3, hidden=4, heads=1, seq=16, vocab=10, dropout=0.1, tied=False
)
BERT = ModelSpec(family="bert", layers=3, hidden=16, heads=2, seq=24, vocab=259, dropout=0.1)
SIAMESE, HALF_FROZEN = (
    ModelSpec(
        family=f"tests.methods.kinds:{name}", layers=3, hidden=6, heads=1, vocab=4, tied=False
    )
    for name in ("siamese", "half_frozen")
)
MASKED = ModelSpec(
    family="tests.methods.masked:net", layers=4, hidden=18, heads=6, vocab=3, tied=False
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, str]:
    """A source of each model's data. Answers differ in length, and micro-batches in labels."""
    folder = tmp_path_factory.mktemp("texts")
    answers = (f"name: doubles {n}, adds {n % 7}\ttwo{'s' * (n % 5)}{n}\n" for n in range(40))
    (folder / "answers.tsv").write_text("".join(answers))
    pairs = (f"{n % 2}\t1\t2\tThe {n} of {n * n % 7}.\tA {n % 5}.\n" for n in range(40))
    (folder / "train.tsv").write_text("\t".join(COLUMNS) + "\n" + "".join(pairs))
    found = {"t5": str(folder / "answers.tsv"), "bert": str(folder)}
    return found | dict.fromkeys(("wide-resnet", MASKED.family, HALF_FROZEN.family), "stdlib")


@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        (gpipe, T5, {"stages": "3 4 2", "ranks": 3}),
        (gpipe, WIDE, {"activations": "recompute"}),
        (gpipe, MASKED, {}),
        (one_f_one_b, BERT, {}),
        pytest.param(interleaved, T5, {"activations": "recompute"}, marks=pytest.mark.thorough),
        pytest.param(gpipe, HALF_FROZEN, {}, marks=pytest.mark.thorough),
        pytest.param(one_f_one_b, WIDE, {"stages": "2 3"}, marks=pytest.mark.thorough),
    ],
    ids=lambda one: getattr(one, "__name__", getattr(one, "family", "")),
)
def test_modules_are_trained_as_written(method, model, changes, texts, monkeypatch, tmp_path):
    """Losses, weights and running statistics, saved by the ranks together."""
    fork_ranks(monkeypatch)
    spec = plain.spec_for(
        method=method.__name__, model=model, text=texts[model.family], batch=8, microbatches=2,
        steps=3, save_every=3, **{"ranks": 2, "activations": "keep", **changes},
    )  # fmt: skip
    whole = PlainTraining(alone(spec), Silent(), tmp_path / "plain")
    whole.run()
    outcome = method.train(spec, Silent(), tmp_path / "ranks")
    assert outcome.losses == pytest.approx(whole.history.losses, rel=1e-5)
    weights, statistics = newest_weights(tmp_path / "ranks")
    assert_near(weights, whole.parameters(), PARAMETER_TOLERANCE)
    assert statistics.keys() == whole.statistics().keys()
    if statistics:
        assert_near(statistics, whole.statistics(), PARAMETER_TOLERANCE)


def alone(spec: RunSpec) -> RunSpec:
    return replace(spec.with_(method="plain"), ranks=1, save_every=0)


def test_modules_are_planned_in_the_stages_that_are_given():
    """With a table of words that the first stage lends the last; others are measured only."""
    spec = plain.spec_for(method="torch-1f1b", model=T5, ranks=2, microbatches=2, stages="5 4")
    profile = made_up_profile(spec)
    plans = [one_f_one_b.plan(spec.with_(stages=cut), profile) for cut in ("5 4", "3 6")]
    assert [plan.settings["stages"] for plan in plans] == ["5 4", "3 6"]
    lent = [a for a in plans[0].schedule.actions if a.kind is Kind.SEND and a.microbatch is None]
    assert [(a.rank, a.nbytes) for a in lent] == [(0, 258 * 16 * 4)]
    own = replace(T5, tied=False)
    alone = one_f_one_b.plan(spec.with_(model=own), made_up_profile(spec.with_(model=own)))
    assert not any(a.kind is Kind.SEND and a.microbatch is None for a in alone.schedule.actions)
    several = plain.spec_for(
        method="torch-gpipe", ranks=3, stages="1 3 2", microbatches=2,
        model=ModelSpec(family="tests.ftpipe.branches:tuned", layers=5),
    )  # fmt: skip
    with pytest.raises(ValueError, match="stages 1 and 2 share a weight, and torch-gpipe"):
        gpipe.plan(several, made_up_profile(several))


@pytest.mark.parametrize(
    ("model", "changes", "told"),
    [
        (T5, {"stages": "4 5", "ranks": 3}, "'4 5' are 2 of 9 units; the ranks have 3 stages and"),
        (SIAMESE, {"ranks": 2}, "layers 1 and 5 call one BatchNorm, 'floors.0.norm.num_batches"),
    ],
    ids=["stages of others", "BatchNorm of two layers"],
)
def test_what_they_cannot_is_refused(model, changes, told, tmp_path: Path):
    spec = plain.spec_for(method="torch-gpipe", model=model, **changes)
    with pytest.raises(ValueError, match=told):
        gpipe.train(spec, Silent(), tmp_path)
