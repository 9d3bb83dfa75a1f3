"""Asynchronous pipelines of processes train as the delayed-gradient reference does."""

from __future__ import annotations

import pytest
import torch

from tests.ftpipe.stages import Delayed
from tests.unit.schedule.asynchronous import asynchronous
from tests.varuna.workers import Workers

STEPS = 8


@pytest.mark.parametrize(
    ("stages", "micros", "optimizer"),
    [(2, 1, "sgd"), (3, 2, "adam"), (4, 1, "adam"), (3, 3, "sgd")],
)
def test_stages_train_on_the_weights_that_the_schedule_declares(stages, micros, optimizer):
    torch.set_default_dtype(torch.float64)
    schedule = asynchronous(stages, micros, recompute=True)
    reference = Delayed(schedule, stages, optimizer)
    half = STEPS // 2
    losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
    torch.set_default_dtype(torch.float32)
    with Workers() as workers:
        found = workers.run(
            "asynchronous", stages=stages, micros=micros, steps=STEPS, optimizer=optimizer
        )
    assert found[-1]["losses"] == pytest.approx(losses, rel=1e-12)
    weights = {name: value for each in found for name, value in each["weights"].items()}
    for name, wanted in reference.weights().items():
        torch.testing.assert_close(
            torch.tensor(weights[name], dtype=torch.float64), wanted, rtol=1e-12, atol=1e-12
        )
