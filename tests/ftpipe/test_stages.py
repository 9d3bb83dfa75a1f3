"""Asynchronous pipelines of processes train as the delayed-gradient reference does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import combinations, product

import pytest
import torch

from tests.ftpipe.stages import OPTIMIZERS, Delayed, How, Net, batch, pipeline
from tests.varuna.workers import Workers
from workbench.model.base import Context
from workbench.model.slices import Slices
from workbench.runtime.passes.stage import Given, Stage

STEPS = 8
STASHED, KEPT = How(weight_stashing=True), How(recompute=False)
GAPS = How(weight_stashing=True, gap_aware=True)
HOWS = [
    How(),
    KEPT,
    STASHED,
    How(weight_stashing=True, recompute=False),
    *(How(prediction=kind) for kind in ("msnag", "aggmsnag", "nag")),
    How(prediction="msnag", weight_stashing=True),
    How(prediction="aggmsnag", weight_stashing=True, recompute=False),
    How(prediction="nag", weight_stashing=True),
    GAPS,
    How(prediction="msnag", weight_stashing=True, gap_aware=True),
]
MAPS = {2: [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (1, 0, 0)], 3: [(0, 1, 2), (0, 1, 2, 0, 1)]}
Case = tuple[tuple[int, ...], int, str, How]
"""Rank of each stage, micro-batches of an update, optimizer, weights of passes."""


def check(cases: list[Case]) -> None:
    """Train on processes, and compare losses and weights with the reference's."""
    with Workers() as workers:
        found = workers.run(
            "asynchronous", stages=max(cases[0][0]) + 1,
            cases=[
                {"positions": p, "micros": m, "steps": STEPS, "optimizer": o, "how": asdict(how)}
                for p, m, o, how in cases
            ],
        )  # fmt: skip
    for number, (positions, micros, optimizer, how) in enumerate(cases):
        torch.set_default_dtype(torch.float64)
        reference = Delayed(pipeline(positions, micros, how), optimizer, how)
        half = STEPS // 2
        losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
        torch.set_default_dtype(torch.float32)
        assert all("each" in rank for rank in found), found
        own = [rank["each"][number] for rank in found]
        told = cases[number]
        assert own[positions[-1]]["losses"] == pytest.approx(losses, rel=1e-10), told
        weights = {name: value for each in own for name, value in each["weights"].items()}
        for name, wanted in reference.weights().items():
            trained = torch.tensor(weights[name], dtype=torch.float64)
            torch.testing.assert_close(trained, wanted, rtol=1e-10, atol=1e-10, msg=f"{told}")


def test_stages_train_on_the_weights_that_the_schedule_declares():
    check(
        [
            ((0, 1), 1, "sgd", How()),
            ((0, 1, 0, 1), 1, "adam", KEPT),
            ((0, 1, 1, 0), 3, "sgd", STASHED),
            ((0, 1, 0, 1), 1, "sgd-decay", How(prediction="msnag")),
            ((0, 1, 0), 1, "adamw", GAPS),
            ((0, 1, 0, 1), 2, "adam-decay", How(prediction="aggmsnag", weight_stashing=True)),
            ((0, 1, 1), 1, "adamw", How(prediction="nag")),
        ]
    )


def test_three_processes_train_so():
    check([((0, 1, 2), 2, "adam", How()), ((1, 2, 0, 2), 1, "sgd", STASHED)])


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", MAPS)
def test_all_pairs_of_settings_train_so(ranks):
    check(list(pairwise(MAPS[ranks], [1, 2, 3], [*OPTIMIZERS], HOWS)))


def pairwise(*axes: list) -> Iterator[Case]:
    """Cases in which each two values of different axes meet, but for what is refused."""

    def pairs(case: Case) -> set:
        return set(combinations(enumerate(case), 2))

    every = [case for case in product(*axes) if not (case[3].gap_aware and case[1] > 1)]
    left = set().union(*map(pairs, every))
    while left:
        best = max(every, key=lambda case: len(pairs(case) & left))
        left -= pairs(best)
        yield best


@pytest.mark.parametrize("steady", [False, True])
def test_passes_in_16_bits_read_weights_of_their_moment_or_of_their_step(steady):
    inputs = {name: value.float() for name, value in batch(2).items()}
    slices, device = Slices(Net(2), lambda rows: inputs), torch.device("cpu")
    stage = Stage(slices, range(2), device=device, dtype=torch.bfloat16, steady=steady)
    ctx, losses = Context(seed=0, step=0, unit=0, samples=(0, 1)), []
    for step in (0, 1):  # copies are made with the second
        stage.begin(step, [Given(inputs, ctx)])
        losses.append(stage.run((), 0, step)[0].item())
    with torch.no_grad():
        for weight in stage.named_parameters().values():
            weight.mul_(2)
    losses.append(stage.run((), 0, 1)[0].item())
    assert losses[0] == losses[1]
    assert (losses[2] == losses[1]) == steady
