"""Dropout and BatchNorm that do not care how often and in what parts a layer runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from workbench.model.base import Context
from workbench.model.keyed import KeyedDropout, OnceNorm, make_keyed, running, unkeyed


def context(*samples: int, step: int = 0) -> Context:
    return Context(seed=1, step=step, unit=2, samples=samples)


def pair() -> tuple[nn.BatchNorm2d, OnceNorm]:
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
    copied = nn.BatchNorm2d(3)
    copied.load_state_dict(norm.state_dict())
    return norm, OnceNorm(copied)


@pytest.mark.parametrize("way", ["once", "forward, then again", "under a checkpoint"])
def test_running_statistics_see_each_micro_batch_once(way: str) -> None:
    theirs, ours = pair()
    for step, x in enumerate(torch.randn(4, 5, 3, 6, 6)):
        first, second = (x.clone().requires_grad_() for _ in range(2))
        expected = theirs(first)
        with running(context(*range(5), step=step)):
            if way == "forward, then again":
                with torch.no_grad():
                    ours(second)
            found = (
                checkpoint(ours, second, use_reentrant=False) if "check" in way else ours(second)
            )
            found.square().sum().backward()
        expected.square().sum().backward()
        assert torch.equal(found, expected)
        assert torch.equal(first.grad, second.grad)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    theirs.eval(), ours.eval()
    assert torch.equal(ours(x), theirs(x))


def test_masks_belong_to_samples_not_to_parts_or_repetitions() -> None:
    drop = make_keyed(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))[1]
    x = torch.ones(4, 100)
    with running(context(7, 8, 9, 10)):
        whole, again = drop(x), drop(x)
    with running(context(9, 10)):
        part = drop(x[2:])
    assert torch.equal(whole, again)
    assert torch.equal(whole[2:], part)
    assert not torch.equal(whole[0], whole[1])
    assert 0.3 < float((whole == 0).float().mean()) < 0.7


def test_dropout_that_does_not_know_its_samples_says_so_and_is_off_where_nothing_drops() -> None:
    drop = KeyedDropout(0.5, "a.b")
    with pytest.raises(ValueError, match="'a.b' does not know what samples"):
        drop(torch.ones(1, 1))
    with unkeyed():
        assert 0 < float(drop(torch.ones(1, 100)).count_nonzero()) < 100
    assert torch.equal(drop.eval()(torch.ones(1, 3)), torch.ones(1, 3))
    assert torch.equal(KeyedDropout(0.0, "c")(torch.ones(1, 3)), torch.ones(1, 3))
