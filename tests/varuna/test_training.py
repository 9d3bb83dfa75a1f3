"""A user's module trains as torch's own loop trains it, whatever the stages and replicas."""

from __future__ import annotations

import pytest
import torch

from tests.varuna import net
from tests.varuna.cases import CLIP
from tests.varuna.workers import Workers

STEPS = 5
SHAPES = [
    # stages, replicas, batch, chunk, order
    (1, 1, 7, 3, "varuna"),
    (2, 2, 7, 2, "varuna"),
    (3, 1, 9, 2, "varuna"),
    (1, 3, 8, 2, "1f1b"),
    (4, 2, 9, 1, "varuna"),
    (5, 1, 5, 2, "gpipe"),
]


@pytest.fixture(scope="module")
def workers():
    with Workers() as found:
        yield found


@pytest.fixture(scope="module")
def torchs():
    """Torch's own loop, by batch and optimizer."""
    known = {}

    def found(batch: int, optimizer: str = "adamw", steps: int = STEPS, **kw):
        key = batch, optimizer, steps, *kw.items()
        if key not in known:
            torch.set_num_threads(1)
            known[key] = net.plain(batch, steps, CLIP, getattr(net, optimizer), **kw)
        return known[key]

    return found


def check(results, wanted, steps=STEPS) -> None:
    """All ranks tell the losses of torch's loop, and hold its weights."""
    losses, weights, evaluated = wanted
    for result in results:
        assert "losses" in result, result
        assert result["losses"] == pytest.approx(losses[-len(result["losses"]) :], rel=1e-5)
        assert result["evaluated"] == pytest.approx(evaluated, rel=1e-5)
        for name, values in result["weights"].items():
            torch.testing.assert_close(torch.tensor(values), weights[name], rtol=1e-4, atol=1e-5)
    assert {name for result in results for name in result["weights"]} == weights.keys()


@pytest.mark.parametrize(("stages", "replicas", "batch", "chunk", "order"), SHAPES)
def test_every_shape_trains_as_torch_does(workers, torchs, stages, replicas, batch, chunk, order):
    results = workers.run(
        "train", stages=stages, replicas=replicas, batch=batch, chunk=chunk, order=order,
        steps=STEPS,
    )  # fmt: skip
    check(results, torchs(batch))


def test_late_messages_and_passes_change_no_bit(workers):
    case = {"stages": 3, "replicas": 1, "batch": 9, "chunk": 1, "steps": 3, "cut": "1 3 1"}
    quick, late = workers.run("train", **case), workers.run("train", **case, late=0.004)
    assert quick == late
    assert [sum(".inner." in name for name in each["weights"]) for each in quick] == [0, 6, 2]


@pytest.mark.parametrize("cut", [None, "4 1"])
def test_batchnorm_and_its_statistics_in_a_pipeline(workers, torchs, cut):
    """Those of the first micro-batch, too, of as many samples as the example and of its numbers."""
    case = {"stages": 2, "replicas": 1, "batch": 2, "chunk": 2, "steps": STEPS, "batchnorm": True}
    check(workers.run("train", **case, cut=cut), torchs(2, batchnorm=True))


@pytest.mark.parametrize(
    ("optimizer", "shape"),
    [("sgd", (4, 1)), ("adamw", (1, 3)), pytest.param("adamw", (1, 1), marks=pytest.mark.thorough)],
)
def test_what_one_shape_saved_goes_on_under_another(workers, torchs, tmp_path, optimizer, shape):
    case = {"batch": 7, "steps": STEPS, "optimizer": optimizer, "save_at": 3}
    saved = workers.run("train", stages=2, replicas=2, chunk=2, save=str(tmp_path), **case)
    check(saved, torchs(7, optimizer))
    stages, replicas = shape
    went_on = workers.run(
        "train", stages=stages, replicas=replicas, chunk=3, load=str(tmp_path), **case
    )
    assert len(went_on[0]["losses"]) == STEPS - 3
    check(went_on, torchs(7, optimizer))


def test_half_precision_skips_an_overflow_everywhere_once(workers):
    case = {"stages": 2, "replicas": 2, "batch": 8, "chunk": 2, "steps": 4, "fp16": True}
    results = workers.run("train", **case, scale=2.0**40)
    assert len({result["scale"] for result in results}) == 1
    assert results[0]["scale"] < 2.0**40
