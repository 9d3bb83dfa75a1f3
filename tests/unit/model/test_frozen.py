"""Frozen parameters compute as before, learn nothing, and are there afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.model.frozen import held, thaw


def test_gradients_pass_what_is_held_and_are_zeros_there():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].requires_grad_(False)
    x = torch.randn(3, 4)
    module(x).sum().backward()
    expected = module[0].weight.grad.clone()
    module.zero_grad()
    names = thaw(module)
    assert names == {"1.weight", "1.bias"}
    own = dict(module.named_parameters())
    with held(module, names):
        out = module(x)
    out.sum().backward()
    assert torch.equal(module[0].weight.grad, expected)
    for name, parameter in module.named_parameters():
        assert parameter is own[name]
        assert bool(parameter.grad.any()) == (name not in names)


def test_what_cannot_be_held_is_refused():
    module = nn.ModuleDict({"inner": nn.LSTM(4, 4)})
    assert thaw(module) == frozenset()
    module["inner"].bias_hh_l0.requires_grad_(False)
    with pytest.raises(ValueError, match="'inner' is a LSTM, and such cannot be frozen"):
        thaw(module)
