"""Divisors of a loss are told by its operations, and hold in batches that nobody has seen."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.objective import Batch, Objective

WIDTH, CLASSES, LONG, ROWS = 6, 5, 4, 6
WEIGHT = torch.linspace(0.2, 3.0, CLASSES)


class Normed(nn.Sequential):
    """A block that does to its output what it is told to."""

    def __init__(self, do=lambda y: y) -> None:
        super().__init__(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.do = do

    def forward(self, x: Tensor) -> Tensor:
        return self.do(super().forward(x))


def batch(first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and marks; in the first batch all labels are of one class, and all count."""
    labels = torch.randint(CLASSES, (ROWS, LONG))
    marks = (torch.arange(LONG) < torch.tensor([4, 1, 2, 3, 1, 4])[:, None]).float()
    x = torch.randn(ROWS, LONG, WIDTH)
    return (x, labels * 0, marks * 0 + 1) if first else (x, labels, marks)


def parted_of(loss_fn, block=Normed):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), block(), Normed(), nn.Linear(WIDTH, CLASSES))
    return Objective(module, loss_fn, Batch(batch(first=True))).layered()[0].parted


def entropy(out: Tensor, given: tuple, **how) -> Tensor:
    return F.cross_entropy(out.transpose(1, 2), given[1], **how)


def each(out: Tensor, given: tuple) -> Tensor:
    return entropy(out, given, reduction="none")


MEANS = {
    "mean": entropy,
    "weights": lambda out, given: entropy(out, given, weight=WEIGHT),
    "made inside": lambda out, given: entropy(out, given, weight=torch.tensor([1.0, 4, 2, 3, 5])),
    "picked": lambda out, given: (
        -out.log_softmax(-1)[torch.arange(len(out)), given[1][:, 0] % LONG].mean()
    ),
    "moved": lambda out, given: F.nll_loss(
        out.log_softmax(-1).transpose(0, 1).flatten(0, 1), given[1].T.flatten(), weight=WEIGHT
    ),
    "twice": lambda out, given: F.mse_loss(
        torch.cat([out, out.sort(-1).values])[..., 0], torch.cat([given[2], given[2]])
    ),
    "ignored": lambda out, given: entropy(out, given, ignore_index=3),
    "flat": lambda out, given: F.nll_loss(
        out.log_softmax(-1).flatten(0, 1), given[1].flatten(), weight=WEIGHT, ignore_index=2
    ),
    "smoothed": lambda out, given: entropy(out, given, weight=WEIGHT, label_smoothing=0.1),
    "shifted": lambda out, given: F.cross_entropy(
        out[:, :-1].flatten(0, 1), F.pad(given[1], (0, 1), value=1)[:, 1:-1].flatten(),
        ignore_index=1,
    ),
    "masked": lambda out, given: (each(out, given) * given[2]).sum() / given[2].sum(),
    "masked at least": lambda out, given: (
        (each(out, given) * given[2]).sum() / (given[2].sum().clamp(min=1) + 1e-8)
    ),
    "masked before": lambda out, given: (each(out, given) * (given[2] / given[2].sum())).sum(),
    "by rows": lambda out, given: ((each(out, given) * given[2]).sum(1) / given[2].sum(1)).mean(),
    "left out": lambda out, given: (
        entropy(out, given, reduction="sum", ignore_index=2)
        / (given[1].numel() - (given[1] == 2).sum())
    ),
    "terms": lambda out, given: (
        each(out, given).sum() / len(out) + 0.1 * F.huber_loss(out[..., 0], given[2]) + WEIGHT.sum()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANS)
def test_parts_weigh_in_any_batch_as_the_loss_counts_their_rows(name):
    """Also where the first batch does not show it."""
    loss_fn = MEANS[name]
    parted = parted_of(loss_fn)
    assert not parted.wrong
    assert not parted.joins
    for _ in range(3):
        given, out = batch(first=False), torch.randn(ROWS, LONG, CLASSES)
        counts, whole = parted.counts(given), 0.0
        for part in (slice(0, 1), slice(1, 3), slice(3, ROWS)):
            share = counts[part].sum() / counts.sum()
            whole += share * loss_fn(out[part], tuple(each[part] for each in given))
        torch.testing.assert_close(whole, loss_fn(out, given), rtol=1e-6, atol=0.0)


class Recurrent(nn.LSTM):
    """Transposes what it puts out in place."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


@pytest.mark.parametrize(
    "block",
    [
        Recurrent,
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True),
        lambda: nn.Sequential(nn.Conv1d(LONG, LONG, 3, padding=1), nn.BatchNorm1d(LONG)),
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.InstanceNorm1d(LONG, affine=True)),
        lambda: Normed(lambda y: y.cumsum(1).topk(WIDTH).values.roll(1, 2).flip(1)),
        lambda: Normed(lambda y: torch.zeros_like(y).scatter(2, y.argsort(2), y)),
        lambda: Normed(lambda y: torch.cat([-y[..., 3:], y[..., :3], y[..., WIDTH:]], -1)),
        lambda: Normed(lambda y: y.repeat_interleave(2, 0).view(len(y), 2, LONG, WIDTH).mean(1)),
    ],
)  # fmt: skip
def test_layers_that_keep_rows_apart_are_known(block):
    parted = parted_of(entropy, block)
    assert not parted.joins + parted.wrong


def normed_over_all(y: Tensor) -> Tensor:
    """Shifted so far that no value of the first batch shows it."""
    return y + F.relu(F.batch_norm(y, None, None, training=True) - 99)


def bounded(y: Tensor) -> Tensor:
    return torch.where(y.abs().max() > 1e3, 0.5 * y, y)


@pytest.mark.parametrize(
    ("words", "loss_fn", "do"),
    [
        ("'sum'.*divided by nothing", lambda out, given: each(out, given).sum(), None),
        ("'mse_loss'", lambda out, given: F.mse_loss(out[..., 0], given[2]).sqrt(), None),
        ("'mean'", lambda out, given: each(out, given).mean() * len(out), None),
        ("'sum'", lambda out, given: each(out, given).sum() / out[..., 0].sum(), None),
        ("'max'", lambda out, given: each(out, given).max(), None),
        ("layer 3.*'mm'", lambda out, _: (out[:, 0] @ out[:, 1].T).mean(), None),
        ("layer 1, 'module.1', .*'max'", entropy, bounded),
        ("layer 1.*'mean'", entropy, lambda y: y - F.relu(y.mean(0) - 99)),
        ("layer 1.*'cumsum'", entropy, lambda y: y - F.relu(y.cumsum(0) - 99)),
        ("'slice'", lambda out, given: entropy(out, given) + (out[1:] - out[:-1]).mean(), None),
        ("loss, may join.*'sort'", lambda out, given: entropy(out.sort(0).values, given), None),
        ("'gather'", lambda out, given: out.gather(0, given[1][..., None]).mean(), None),
        ("'scatter'", lambda out, given: out.scatter(0, given[1][..., None], out).mean(), None),
        ("'embedding'", lambda out, given: F.embedding(given[1], out[:, 0]).mean(), None),
        ("'index'", lambda out, given: entropy(out, (0, given[1][given[1][:, 0]])), None),
        ("'mul'", lambda out, given: (each(out, given) * torch.arange(len(out))[:, None]).mean(),
         None),
        ("'nll_loss_f", lambda out, given: F.cross_entropy(
            out.transpose(0, 1).flatten(0, 1), given[1].flatten()), None),
        ("layer 1.*may join.*'native_batch_norm'", entropy, normed_over_all),
        ("layer 1.*'native_layer_norm'", entropy,
         lambda y: F.layer_norm(y.transpose(0, 2), (len(y),)).transpose(0, 2)),
        ("layer 1.*'convolution'", entropy,
         lambda y: F.conv1d(y.transpose(0, 2), torch.ones(LONG, LONG, 1)).transpose(0, 2)),
        ("layer 1.*'convolution'", entropy,
         lambda y: F.conv1d(y.permute(1, 2, 0), torch.ones(WIDTH, WIDTH, 3), padding=1)
         .permute(2, 0, 1)),
        ("layer 1.*'cummax'", entropy, lambda y: y.cummax(0).values),
        ("layer 1.*other operations", entropy, lambda y: torch.stack([*y])),
        ("layer 1.*'sum'", entropy, lambda y: y / (1 + F.relu(y.square().sum() - 1e4))),
    ],
)  # fmt: skip
def test_what_joins_rows_is_named_though_no_value_shows_it(words, loss_fn, do):
    parted = parted_of(loss_fn, (lambda: Normed(do)) if do else Normed)
    assert re.search(words, parted.joins or parted.wrong)


def test_terms_that_count_rows_unlike_are_refused_in_the_batch_that_shows_it():
    parted = parted_of(lambda out, given: MEANS["masked"](out, given) + entropy(out, given))
    assert torch.equal(parted.counts(batch(first=True)), torch.full((ROWS,), float(LONG)))
    with pytest.raises(ValueError, match="counts the rows of this batch 4 1 2 3 1 4, another 4 4"):
        parted.counts(batch(first=False))
