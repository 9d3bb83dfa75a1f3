"""SGD in TensorFlow's form: its velocity keeps the rates of the steps before."""

from __future__ import annotations

import pytest
import torch

from workbench.runtime.updates.sgd_tf import SgdTf


@pytest.mark.parametrize("nesterov", [False, True])
def test_velocity_has_the_rate_in_it(nesterov):
    """Beside torch's with a rate that stays; then the formula, where the rate changes."""
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    like = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    pair = SgdTf([ours], **like), torch.optim.SGD([theirs], **like)
    for step in range(4):
        for weight, optimizer in zip((ours, theirs), pair, strict=True):
            weight.grad = torch.tensor([0.5, 0.25 * step])
            optimizer.step()
        torch.testing.assert_close(ours, theirs)
    before, velocity = ours.detach().clone(), pair[0].state[ours]["velocity"].clone()
    pair[0].param_groups[0]["lr"] = 0.01
    pair[0].step()
    moved = 0.01 * (ours.grad + 0.01 * before)
    velocity = 0.9 * velocity + moved
    change = 0.9 * velocity + moved if nesterov else velocity
    torch.testing.assert_close(ours.detach(), before - change)
