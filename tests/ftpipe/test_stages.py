"""Asynchronous pipelines of processes train as the delayed-gradient reference does."""

from __future__ import annotations

import pytest
import torch

from tests.ftpipe.stages import Delayed, pipeline
from tests.varuna.workers import Workers

STEPS = 8


@pytest.mark.parametrize(
    ("positions", "micros", "optimizer"),
    [
        ((0, 1), 1, "sgd"),
        ((0, 1, 2), 2, "adam"),
        ((0, 1, 0, 1), 1, "adam"),
        ((0, 1, 1, 0), 3, "sgd"),
        ((1, 0, 0), 2, "sgd"),
    ],
)
def test_stages_train_on_the_weights_that_the_schedule_declares(positions, micros, optimizer):
    torch.set_default_dtype(torch.float64)
    reference = Delayed(pipeline(positions, micros), optimizer)
    half = STEPS // 2
    losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
    torch.set_default_dtype(torch.float32)
    with Workers() as workers:
        found = workers.run(
            "asynchronous", stages=max(positions) + 1, positions=positions, micros=micros,
            steps=STEPS, optimizer=optimizer,
        )  # fmt: skip
    assert found[positions[-1]]["losses"] == pytest.approx(losses, rel=1e-12)
    weights = {name: value for each in found for name, value in each["weights"].items()}
    for name, wanted in reference.weights().items():
        torch.testing.assert_close(
            torch.tensor(weights[name], dtype=torch.float64), wanted, rtol=1e-12, atol=1e-12
        )
