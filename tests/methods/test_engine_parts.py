"""A batch that an engine computes in parts trains as torch trains the whole, or is refused."""

from __future__ import annotations

import re
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.harness import half
from tests.methods.loops import (
    LR,
    Net,
    batches,
    by_torch,
    distance,
    loss_of,
    near,
    net,
    normed,
    of_outputs,
)
from workbench.core.bytesize import parse_bytes

WAYS = {
    "plain": {"microbatches": 4},
    "stronghold": {"microbatches": 2},
    "harmony-pp": {"forward_size": 4, "backward_size": 1},
    "varuna": {"microbatches": 2},
}
NO_DECAY = {"lr": LR, "weight_decay": 0.0}
CLASSES = torch.linspace(0.5, 9, 20)


def weighted(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"], weight=CLASSES, ignore_index=7)


@pytest.mark.parametrize("method", WAYS)
def test_a_loss_counts_in_every_batch_what_it_divides_by(engine, method) -> None:
    """The first batch has one class alone, as sorted data have."""
    given = [*batches(5)]
    given[0]["labels"] = torch.ones_like(given[0]["labels"])
    wanted, _ = by_torch(net(), given, weighted, clip=None, **NO_DECAY)
    with engine(method, config=NO_DECAY, clip=None, **WAYS[method]) as made:
        found = [made.step(batch, weighted) for batch in given]
    assert found == pytest.approx(wanted, rel=1e-5)
    made = engine(method, weight_of=lambda batch: (batch["labels"] != 7).sum(1), **WAYS[method])
    with made:
        made.step(given[0], weighted)  # whose rows count alike in both
        with pytest.raises(ValueError, match="weight_of counts the rows of this batch .* itself"):
            made.step(given[1], weighted)


def masked(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """A mean that is no number, with gradients that are none, where no label counts."""
    each = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    counts = batch["labels"] != 7
    return (each * counts).sum() / counts.sum()


@pytest.mark.parametrize(("method", "loss_fn"), half(product(WAYS, [weighted, masked])))
def test_a_micro_batch_without_a_label_weighs_nothing(engine, method, loss_fn) -> None:
    given = [*batches(4)]
    for batch, rows in zip(given, (slice(2), slice(2, 4), slice(3), slice(0)), strict=True):
        batch["labels"][rows] = 7
    wanted, _ = by_torch(net(), given, loss_fn, clip=None, **NO_DECAY)
    with engine(method, config=NO_DECAY, clip=None, **WAYS[method]) as made:
        found = [made.step(batch, loss_fn) for batch in given]
        none = given[0] | {"labels": torch.full_like(given[0]["labels"], 7)}
        with pytest.raises(ValueError, match="no label counts in the batch, so it has no mean"):
            made.step(none, loss_fn)
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("method", ["plain", "stronghold"])
def test_statistics_of_a_micro_batch_are_told_of(engine, method, capsys) -> None:
    module, (pair, *_) = normed()
    for parts in (1, 2):
        with engine(method, module, microbatches=parts) as made:
            made.step(pair, distance)
        assert ("takes its statistics from each micro-batch" in capsys.readouterr().err) == (
            parts == 2
        )


class Bounded(Net):
    """Scales all rows where one of them is too large, which none is at first."""

    def forward(self, tokens: Tensor) -> Tensor:
        y = super().forward(tokens)
        return torch.where(y.abs().max() > 1e4, 0.1 * y, y)


class Shuffled(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        y = super().forward(tokens)
        return y + 0.1 * y[torch.randperm(len(y))]


class Counted(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        self.seen = getattr(self, "seen", {"batches": [0]})
        self.seen["batches"][0] += 1
        return super().forward(tokens)


def doubled() -> nn.Module:
    module = net()
    module.blocks[3].inner.weight.data = module.blocks[0].inner.weight.data
    return module


def compiled() -> nn.Module:
    module = net()
    module.blocks[2] = torch.compile(module.blocks[2])
    return module


@pytest.mark.parametrize("method", WAYS)
@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("joins rows by 'max'.*leave the batch in one part", Bounded),
        ("draws random numbers for all rows of a micro-batch together", Shuffled),
        (r"seen\['batches'\]\[0\]\" in every forward pass \(1 became 2\)|reads: .*seen", Counted),
        ("Net: 'blocks.0.inner.weight' and 'blocks.3.inner.weight' share memory", doubled),
        ("Net: 'blocks.2' is wrapped by torch.compile", compiled),
    ],
)  # fmt: skip
def test_what_would_train_otherwise_is_refused_before_the_first_step(
    engine, method, words, make
) -> None:
    with engine(method, make(), **WAYS[method]) as made, pytest.raises(ValueError, match=words):
        made.step(next(batches()), loss_of)


class Drawing(Net):
    """Draws by probabilities, means and bounds that tensors give, for each row."""

    def forward(self, tokens: Tensor) -> Tensor:
        y = super().forward(tokens)
        y = y * torch.bernoulli(torch.full_like(y, 0.7)) * torch.randint(1, 3, (len(y), 1, 1))
        y = y + torch.poisson(y.detach().abs()) * torch.empty_like(y).bernoulli_(
            y.detach().sigmoid()
        )
        picked = torch.multinomial(y.detach()[:, 0].softmax(-1), 2)
        return y + 0.1 * torch.normal(picked.float()[:, None, :1], 0.5)


def test_rows_draw_alike_however_a_batch_is_divided(engine) -> None:
    """In forward passes, in their repetitions, and in backward passes of another size."""
    torch.manual_seed(0)
    module, found = Drawing(), []
    for method, how in ({"l2l": {}} | WAYS).items():
        with engine(method, module, seed=3, **how) as made:
            found.append([made.step(batch, loss_of) for batch in batches(3)])
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("harmony-pp", 2),
        pytest.param("plain", 4, marks=pytest.mark.thorough),
        pytest.param("stronghold", 2, marks=pytest.mark.thorough),
    ],
)
def test_labels_of_a_padded_decoder_count_as_its_own_loss_counts_them(
    engine, method, parts
) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        vocab_size=32, bos_token_id=0, eos_token_id=1, use_cache=False,
    )).train()  # fmt: skip
    given, ends = [], torch.tensor([[9], [2], [4], [7]])
    for _ in range(3):
        ids = torch.randint(2, 32, (4, 9))
        mask = torch.arange(9) < ends
        labels = ids.where(mask, -100)
        given.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})

    wanted, _ = by_torch(model, given, of_outputs, clip=None, **NO_DECAY)
    with engine(method, model, NO_DECAY, clip=None, microbatches=parts) as made:
        found = [made.step(batch, of_outputs) for batch in given]
    assert found == pytest.approx(wanted, rel=1e-5)
    counts = {"weight_of": lambda batch: (batch["labels"] != -100).sum(1), "microbatches": 2}
    with (
        engine(method, model, **counts) as made,
        pytest.raises(
            ValueError, match="of this batch 9 2 4 7, and the loss itself 8 1 3 6; leave"
        ),
    ):
        made.step(given[0], of_outputs)


@pytest.mark.parametrize("method", ["stronghold", pytest.param("l2l", marks=pytest.mark.thorough)])
def test_the_number_of_parts_is_chosen_where_a_batch_does_not_fit_whole(engine, method) -> None:
    """Rows count unlike; where parts would be another training, there are none."""
    given = [*batches(5, 8, padded=True)]

    def needs(count: int) -> int:
        made = engine(method, microbatches=count, device_memory=1024)
        with made, pytest.raises(ValueError, match="does not fit") as refused:
            made.step(given[0], loss_of)
        return parse_bytes(re.search(r"needs ([\d.]+ \w+)", str(refused.value))[1])

    one, two = needs(1), needs(2)
    assert two < one
    wanted, state = by_torch(net(), given)
    tight = {"microbatches": None, "device_memory": (one + two) // 2}
    with engine(method, **tight) as made:
        found = [made.step(batch, loss_of) for batch in given]
        assert made._steps.parts == 2
        near(made.state_dict(), state)
        with pytest.raises(ValueError, match="the batch has 1 row for 2 microbatches"):
            made.step({name: rows[:1] for name, rows in given[0].items()}, loss_of)
    assert found == pytest.approx(wanted, rel=1e-6)
    module, (pair, *_) = normed()
    with engine(method, module, microbatches=None) as made:
        made.step(pair, distance)
        assert made._steps.parts == 1, "BatchNorm"
