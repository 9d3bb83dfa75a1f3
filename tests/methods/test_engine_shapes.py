"""Batches of a user's loop that are smaller than the first one."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tests.methods.harness import half
from tests.methods.loops import (
    LR,
    WAYS,
    batches,
    by_torch,
    distance,
    loss_of,
    near,
    net,
    normed,
    of_outputs,
)
from workbench.runtime.passes import unit_passes

SHAPES = ((4, 6), (3, 6), (4, 6), (4, 3), (2, 5), (3, 3), (4, 6))
"""Rows and tokens of each step's batch."""


def shaped() -> list[dict[str, Tensor]]:
    return [
        {name: tensor[:rows, :tokens] for name, tensor in batch.items()}
        for batch, (rows, tokens) in zip(batches(7, padded=True), SHAPES, strict=True)
    ]


@pytest.mark.parametrize(
    ("method", "parts"),
    half(product(["plain", "fsdp", "megatron-lm", "l2l", "stronghold"], [1, 2])),
)
def test_smaller_batches_train_as_in_torchs_own_loop(engine, monkeypatch, method, parts) -> None:
    """Also where layers for a form are forgotten, and made again."""
    monkeypatch.setattr(unit_passes, "FORMS", 2)
    module, given = net(frozen=method != "fsdp"), shaped()
    wanted, weights = by_torch(module, given)
    with engine(method, module, **{**WAYS.get(method, {}), "microbatches": parts}) as made:
        losses = [made.step(batch, loss_of) for batch in given]
        near(made.state_dict(), weights)
    assert losses == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("method", ["plain", "stronghold"])
def test_statistics_go_on_with_fewer_rows(engine, method) -> None:
    module, data = normed()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    given = [(x[:rows], y[:rows]) for (x, y), rows in zip(data, (8, 5, 8, 3, 8), strict=True)]
    # A larger eps keeps AdamW from enlarging the rounding of gradients that are nearly zero.
    settings = {"lr": LR, "eps": 1e-4}
    wanted, weights = by_torch(module, given, distance, **settings)
    with engine(method, module, settings) as made:
        found = [made.step(pair, distance) for pair in given]
        near(made.state_dict(), weights)
    assert found == pytest.approx(wanted, rel=1e-5)


def test_lengths_of_a_decoder_of_hugging_face(engine) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "vocab_size": 40}
    config = transformers.LlamaConfig(
        **shape, num_attention_heads=2, num_key_value_heads=1, use_cache=False
    )
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(config).train()
    rows = [torch.randint(40, shape) for shape in ((4, 12), (4, 7), (3, 12), (2, 9), (4, 7))]
    given = [{"input_ids": each, "labels": each.clone()} for each in rows]
    for batch in given:
        batch["labels"][0, 4:] = -100
    wanted, weights = by_torch(module, given, of_outputs)
    with engine("stronghold", module, microbatches=2, window=2, resident=0) as made:
        found = [made.step(batch, of_outputs) for batch in given]
        near(made.state_dict(), weights)
    assert found == pytest.approx(wanted, rel=1e-5)


def test_larger_batches_are_refused_before_anything_changes(engine) -> None:
    first, second, third = batches(3)
    longer = {name: torch.cat([t, t[:, :1]], 1) for name, t in second.items()}
    more = {name: torch.cat([t, t[:1]]) for name, t in second.items()}
    with engine("stronghold", microbatches=2) as made:
        wanted = [made.step(batch, loss_of) for batch in (first, second, third)]
    with engine("stronghold", microbatches=2) as made:
        losses = [made.step(first, loss_of)]
        for batch in (longer, more):
            with pytest.raises(ValueError, match="begin with the largest batch"):
                made.step(batch, loss_of)
        with pytest.raises(ValueError, match="1 row for 2 microbatches"):
            made.step({name: t[:1] for name, t in second.items()}, loss_of)
        losses += [made.step(batch, loss_of) for batch in (second, third)]
    assert losses == wanted
