"""An engine takes batches of a user's loop ahead, and trains on declared versions of weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.ftpipe.stages import Delayed, How, pipeline
from tests.varuna.workers import Workers
from workbench import Engine

STEPS = 8


@pytest.mark.parametrize(("positions", "micros"), [((0, 1, 0, 1), 2), ((1, 0, 0), 1)])
def test_losses_and_weights_are_those_of_the_declared_versions(positions, micros):
    half = STEPS // 2
    reference = Delayed(pipeline(positions, micros, How()), "adamw", How())
    losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
    with Workers() as workers:
        told = workers.run(
            "streamed", stages=2, positions=positions, micros=micros, steps=STEPS, how="well"
        )
    for one in told:
        assert one.get("losses") == pytest.approx(losses, rel=1e-5), one
        assert one["untouched"], "the user's own weights stay"
        assert "use engine.stream(loader, loss_fn)" in one["said"]
        for name, wanted in reference.weights().items():
            found = torch.tensor(one["weights"][name], dtype=torch.float64)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_updates_by_gradients_that_are_not_finite_are_left_out_and_told():
    with Workers() as workers:
        told = workers.run(
            "streamed", stages=2, positions=(0, 1), micros=1, steps=STEPS, how="wild"
        )
    assert "updates of single stages are left out, since" in told[0]["errors"], told[0]
    for one in told:
        assert not all(map(math.isfinite, one["losses"]))
        assert all(torch.tensor(value).isfinite().all() for value in one["weights"].values())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("killed", "RankFailed: rank 1: its process has ended, in "),
        ("raises", "RankFailed: rank 1: no such luck"),
    ],
)
def test_a_rank_that_fails_ends_the_stream_of_the_other(how, words):
    with Workers() as workers:
        told = workers.run("streamed", stages=2, positions=(0, 1), micros=1, steps=STEPS, how=how)
    assert told[0].get("said", "").startswith(words), told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prediction": "msnag"}, "prediction is 'msnag'; a loop of one's own reads stale"),
        ({"order": "seq"}, "stage_order is 'seq', which ends with each step"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_by_all(options, words):
    with Workers() as workers:
        told = workers.run(
            "streamed", stages=2, positions=(0, 1), micros=1, steps=2, how="well", **options
        )
    for one in told:
        assert one.get("said", "").startswith(f"ValueError: {words}"), one


def test_steps_that_do_not_overlap_are_streamed_one_by_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    data = [(torch.randn(3, 4), torch.randn(3, 2)) for _ in range(3)]

    def distance(outputs, batch):
        return (outputs - batch[1]).square().mean()

    found = []
    for streams in (True, False):
        with Engine(model, {"lr": 0.1}, method="plain", device="cpu", quiet=True) as engine:
            losses = engine.stream(data, distance)
            found.append([*losses] if streams else [engine.step(each, distance) for each in data])
    assert found[0] == found[1]
