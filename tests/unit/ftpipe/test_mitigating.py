"""Predictions change nothing; copies of weights are as many as a schedule needs, and no fewer."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.optim import SGD, Adafactor, Adam, AdamW

from workbench.methods.ftpipe import mitigating
from workbench.methods.ftpipe.mitigating import GapAware, Prediction
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.schedule.validate import validate


def trained(make) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """A parameter of two steps, with a gradient that waits for the third."""
    made = torch.Generator().manual_seed(1)
    theta = torch.nn.Parameter(torch.randn(7, 3, generator=made))
    optimizer = make([theta])
    for step in range(3):
        theta.grad = torch.randn(7, 3, generator=made)
        if step < 2:
            optimizer.step()
    return theta, optimizer


@pytest.mark.parametrize("kind", ["msnag", "aggmsnag", "nag"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: SGD(p, lr=0.1),
        lambda p: Adam(p, lr=0.1),
        lambda p: AdamW(p, lr=0.1, weight_decay=0.1),
    ],
)
def test_a_prediction_leaves_all_bits_as_they_are(make, kind, monkeypatch):
    theta, optimizer = trained(make)
    was = copy.deepcopy((theta.data, theta.grad, optimizer.state_dict()))
    predict, found = Prediction(optimizer, kind, lambda step: 0.1 / (1 + step)), torch.empty(7, 3)
    with torch.no_grad():
        predict(theta, found, done=2, steps=3)
        whole = found.clone()
        monkeypatch.setattr(mitigating, "PIECE", 6)
        predict(theta, found, done=2, steps=3)
    assert torch.equal(found, whole), "in pieces as at once"
    assert not torch.equal(found, theta) or kind != "aggmsnag"
    assert torch.equal(theta, was[0])
    assert torch.equal(theta.grad, was[1])
    for key, value in was[2]["state"].get(0, {}).items():
        torch.testing.assert_close(optimizer.state[theta][key], value, rtol=0, atol=0)
    assert optimizer.state_dict()["param_groups"] == was[2]["param_groups"]


def test_steps_that_formulas_do_not_have_are_refused():
    for make, sentence in (
        (Adafactor, "prediction msnag with Adafactor: its steps are not known, use SGD, Adam or"),
        (lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True), "SGD and nesterov True; leave it"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Prediction(trained(make)[1], "msnag", float)
    with pytest.raises(ValueError, match="gap-aware training with Adafactor"):
        GapAware(trained(Adafactor)[1], list)


@pytest.mark.parametrize("micros", [1, 2, 3])
@pytest.mark.parametrize(
    "how",
    [
        {"stashes": True},
        {"stashes": True, "recompute": False},
        {"predicts": True},
        {"predicts": True, "nesterov": True},
        {"predicts": True, "stashes": True},
    ],
)
def test_one_copy_less_is_refused(how, micros):
    line = Asynchronous(
        label="async-1f1b", positions=(0, 1, 0, 1), depths=(3, 2, 1, 0), micros=micros, samples=1,
        sizes=IdealSizes(), **how,
    )  # fmt: skip
    made = schedule(line)
    validate(made)
    for name, buffer in made.buffers.items():
        if buffer.copies > 1:
            less = {**made.buffers, name: replace(buffer, copies=buffer.copies - 1)}
            with pytest.raises(ValueError, match="may"):
                validate(replace(made, buffers=less))
