"""Asynchronous pipelines of processes train as the delayed-gradient reference does."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from tests.ftpipe.stages import Delayed, How, pipeline
from tests.varuna.workers import Workers

STEPS = 8
STASHED, KEPT = How(stashes=True), How(recompute=False)


@pytest.mark.parametrize(
    ("positions", "micros", "optimizer", "how"),
    [
        ((0, 1), 1, "sgd", How()),
        ((0, 1, 2), 2, "adam", How()),
        ((0, 1, 0, 1), 1, "adam", KEPT),
        ((0, 1, 1, 0), 3, "sgd", STASHED),
        ((1, 0, 0), 2, "sgd", How(stashes=True, recompute=False)),
        ((0, 1, 0, 1), 1, "sgd", How(prediction="msnag")),
        ((0, 1, 0), 1, "adamw", How(gap_aware=True, stashes=True)),
        ((0, 1, 0, 1), 2, "adam-decay", How(prediction="aggmsnag", stashes=True)),
        ((0, 1, 1), 1, "adamw", How(prediction="nag", stashes=True, recompute=False)),
    ],
)
def test_stages_train_on_the_weights_that_the_schedule_declares(positions, micros, optimizer, how):
    torch.set_default_dtype(torch.float64)
    reference = Delayed(pipeline(positions, micros, how), optimizer, how)
    half = STEPS // 2
    losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
    torch.set_default_dtype(torch.float32)
    with Workers() as workers:
        found = workers.run(
            "asynchronous", stages=max(positions) + 1, positions=positions, micros=micros,
            steps=STEPS, optimizer=optimizer, how=asdict(how),
        )  # fmt: skip
    assert found[positions[-1]].get("losses") == pytest.approx(losses, rel=1e-12), found
    weights = {name: value for each in found for name, value in each["weights"].items()}
    for name, wanted in reference.weights().items():
        torch.testing.assert_close(
            torch.tensor(weights[name], dtype=torch.float64), wanted, rtol=1e-12, atol=1e-12
        )
