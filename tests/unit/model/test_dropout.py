"""Masks belong to (seed, step, sample, unit, site), whatever the split, order or repetition."""

import pytest
import torch

from workbench.model.base import Context
from workbench.model.dropout import causal_attention, causal_attention_dropout, dropout
from workbench.model.whole import make_whole


def context(**changes):
    return Context(**{"seed": 1, "step": 2, "unit": 3, "samples": (4, 5), **changes})


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_micro_batch_split_gives_the_same_training(small, size):
    model = small.make(dropout=0.3)
    undivided = small.run_units(model, small.tokens, small.targets, small.samples)
    loss, grads = 0.0, {}
    for rows in torch.arange(4).split(size):
        samples = tuple(small.samples[row] for row in rows)
        part = small.run_units(model, small.tokens[rows], small.targets[rows], samples)
        share = len(rows) / 4
        loss += part[0] * share
        for name, grad in part[1].items():
            grads[name] = grads.get(name, 0) + grad * share
    small.assert_same(undivided, (loss, grads))


def test_masks_differ_by_each_part_of_their_key():
    x = torch.ones(2, 1000)
    first = dropout(x, 0.5, context(), "here")
    assert torch.equal(first, dropout(x, 0.5, context(), "here"))
    assert not torch.equal(first[0], first[1])
    others = [
        dropout(x, 0.5, context(seed=9), "here"),
        dropout(x, 0.5, context(step=9), "here"),
        dropout(x, 0.5, context(unit=9), "here"),
        dropout(x, 0.5, context(samples=(8, 9)), "here"),
        dropout(x, 0.5, context(), "there"),
    ]
    for other in others:  # unrelated masks agree on about half of their elements
        assert 0.4 < first.eq(other).float().mean() < 0.6
    swapped = dropout(x, 0.5, context(samples=(5, 4)), "here")
    assert torch.equal(swapped, first.flip(0))


def test_what_stays_is_scaled():
    x = torch.full((2, 50_000), 3.0)
    y = dropout(x, 0.2, context(), "here")
    assert sorted(y.unique().tolist()) == [0.0, pytest.approx(3.75)]
    assert y.mean().item() == pytest.approx(3.0, rel=0.01)


def test_attention_drops_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 8, 16).unbind()
    whole = causal_attention(q, k, v)
    drawn = [causal_attention_dropout(q, k, v, 0.1, context(step=step)) for step in range(300)]
    assert not torch.allclose(drawn[0], drawn[1])
    torch.testing.assert_close(torch.stack(drawn).mean(0), whole, atol=0.15, rtol=0)


def test_the_global_stream_is_neither_read_nor_moved(small):
    q, k, v = torch.randn(3, 2, 4, 8, 16, device=small.device).unbind()
    state = torch.cuda.get_rng_state if small.device == "cuda" else torch.get_rng_state
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = state()
        results.append(
            (causal_attention_dropout(q, k, v, 0.4, context()), dropout(q, 0.4, context(), "here"))
        )
        assert torch.equal(before, state())
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_evaluation_drops_nothing(small):
    dropping, plain = (
        make_whole(small.make(dropout=p), seed=5, device=small.device).eval() for p in (0.5, 0.0)
    )
    assert torch.equal(dropping(small.tokens, small.targets), plain(small.tokens, small.targets))


def test_every_row_must_be_named():
    with pytest.raises(ValueError, match="2 samples are named for a micro-batch of 3 rows"):
        dropout(torch.ones(3, 4), 0.5, context(), "here")
