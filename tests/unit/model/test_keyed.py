"""Dropout, BatchNorm and whatever else draws, which do not care how often and in what parts a layer
runs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from workbench.model.base import Context
from workbench.model.drawn import Draw, Pass, Seen, current, drawing, draws_of, running, unkeyed
from workbench.model.keyed import KeyedDropout, OnceNorm, make_keyed


def context(*samples: int, step: int = 0) -> Context:
    return Context(seed=1, step=step, unit=2, samples=samples)


def pair() -> tuple[nn.BatchNorm2d, OnceNorm]:
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.normal_()
    copied = nn.BatchNorm2d(3)
    copied.load_state_dict(norm.state_dict())
    make_keyed(nn.Sequential(copied))
    return norm, copied


@pytest.mark.parametrize("way", ["once", "forward, then again", "under a checkpoint"])
def test_running_statistics_see_each_call_of_a_micro_batch_once(way: str) -> None:
    theirs, ours = pair()
    for step, x in enumerate(torch.randn(4, 5, 3, 6, 6)):
        first, second = (x.clone().requires_grad_() for _ in range(2))
        expected = theirs(2 * theirs(first))

        def twice(x: torch.Tensor) -> torch.Tensor:
            return ours(2 * ours(x))

        with running(Pass(context(*range(5), step=step))):
            again = current().again()
            if way == "forward, then again":
                with torch.no_grad():
                    twice(second)
            if "check" in way:
                contexts = lambda again=again: (nullcontext(), running(again))  # noqa: E731
                found = checkpoint(twice, second, use_reentrant=False, context_fn=contexts)
            else:
                found = twice(second)
        found.square().sum().backward()
        expected.square().sum().backward()
        assert torch.equal(found, expected)
        assert torch.equal(first.grad, second.grad)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    theirs.eval(), ours.eval()
    assert torch.equal(ours(x), theirs(x))


class Draws(nn.Module):
    """Draws in every way there is, along any dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 6]."""
        y = torch.cat([self.drop(x), self.drop(x)], 1) + torch.randn(len(x), 12)
        y = F.dropout(y.T.contiguous(), 0.3, self.training).T + torch.rand(1)
        heads = [part.view(len(x), 2, 3, 2) for part in (y, 2 * y, 3 * y)]
        mask = torch.zeros(len(x), 1, 3, 3)
        attended = F.scaled_dot_product_attention(*heads, mask, dropout_p=0.4)
        y = y + attended.reshape(y.shape) + F.scaled_dot_product_attention(*heads).view(y.shape)
        return y + torch.rand_like(y) * torch.zeros_like(y).bernoulli_(0.5)


def seen(module: nn.Module) -> tuple[Draw, ...]:
    both = [Seen(context(*range(count))) for count in (2, 3)]
    for each in both:
        with drawing(each), torch.random.fork_rng():
            module(torch.ones(len(each.ctx.samples), 6))
    return draws_of(*both)


def run(module: nn.Module, x: torch.Tensor, *samples: int, step: int = 0) -> torch.Tensor:
    with drawing(Pass(context(*samples, step=step), seen(module))):
        return module(x)


def test_numbers_belong_to_samples_not_to_parts_or_repetitions() -> None:
    module = make_keyed(Draws())
    x, before = torch.ones(4, 6), torch.get_rng_state()
    whole, again = (run(module, x, 7, 8, 9, 10) for _ in range(2))
    assert torch.equal(whole, again)
    assert torch.equal(whole[2:], run(module, x[2:], 9, 10))
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole[:, :6], whole[:, 6:]), "two calls of one module draw alike"
    assert not torch.equal(whole, run(module, x, 7, 8, 9, 10, step=1))
    assert torch.equal(before, torch.get_rng_state())


def test_what_grows_with_the_batch_otherwise_is_drawn_for_a_micro_batch_and_known() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x.flatten(), 0.5) + torch.rand(3).sum()

    draws = seen(Flat())
    assert draws == (Draw(None, True, True), Draw(None, False, True))
    one, other = (run(Flat(), torch.ones(2, 6), *samples) for samples in ((0, 1), (0, 2)))
    assert torch.equal(one, other)
    assert not torch.equal(one, run(Flat(), torch.ones(2, 6), 1, 2))


def test_a_layer_that_draws_otherwise_than_before_is_not_trained() -> None:
    with (
        pytest.raises(ValueError, match="draws other random numbers"),
        drawing(Pass(context(0), (Draw(0, False, True),))),
    ):
        torch.rand(3, 5)


def test_dropout_is_torchs_where_nobody_trains_and_off_where_nothing_drops() -> None:
    drop = KeyedDropout(0.5)
    with pytest.raises(ValueError, match="does not know what samples"):
        drop(torch.ones(1, 1))
    with unkeyed():
        assert 0 < float(drop(torch.ones(1, 100)).count_nonzero()) < 100
    assert torch.equal(drop.eval()(torch.ones(1, 3)), torch.ones(1, 3))
    assert torch.equal(KeyedDropout(0.0)(torch.ones(1, 3)), torch.ones(1, 3))
