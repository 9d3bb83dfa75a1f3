"""Held-out batches of a user's loop pass on the device that trains as on the processor."""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.methods.loops import batches, by_torch, of_outputs
from workbench.model.postponed import Postponed
from workbench.runtime.passes.visiting import Place
from workbench.training import own_evaluation, places


@pytest.fixture
def visits(monkeypatch):
    """As on a GPU, where a few weights are at a time and no logits are whole, on the processor;
    notes the places."""
    found = []

    def ways(device, dtype, budget):
        found.append(Place(device=device, dtype=dtype, room=512))
        yield nullcontext(found[-1])

    def begin():
        monkeypatch.setattr(places, "HOST", None)
        monkeypatch.setattr(places, "ways", ways)
        monkeypatch.setattr(own_evaluation, "Postponed", partial(Postponed, 0))
        return found

    return begin


def llama(hidden: int = 32, vocab: int = 20):
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 2 * hidden}
    config = transformers.LlamaConfig(
        hidden_size=hidden, vocab_size=vocab, **sizes, tie_word_embeddings=True
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.parametrize("method", ["stronghold", "plain"])
def test_texts_of_a_model_of_hugging_face(engine, visits, method) -> None:
    """With weights of now, also those that two layers share; training goes on as by torch."""
    model = llama()
    given = [{"input_ids": b["tokens"], "labels": b["tokens"]} for b in batches(4)]
    wanted, _ = by_torch(model, given, of_outputs, clip=None)
    with engine(method, model, clip=None) as made:
        losses = [made.step(given[0], of_outputs)]
        own = copy.deepcopy(model).eval()
        own.load_state_dict(made.state_dict())
        with torch.no_grad():
            told = [of_outputs(own(**batch), batch).item() for batch in given[2:]]
        places = visits()
        found = made.evaluate(given[2:], of_outputs)
        assert found["loss"] == pytest.approx(sum(told) / 2, rel=1e-6)
        assert found["perplexity"] == pytest.approx(torch.tensor(found["loss"]).exp().item())
        assert len(places) == 2
        losses += [made.step(batch, of_outputs) for batch in given[1:]]
    assert losses == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("microbatches", "classes"), [(1, 0), (2, 0), (1, 9)])
def test_each_label_weighs_alike(engine, microbatches, classes) -> None:
    """Labels weigh alike, or as their classes, in all batches and micro-batches; a batch without
    any does not count."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 9))
    ids = torch.randint(9, (3, 4, 6))
    labels = torch.stack([ids[0], ids[1].where(ids[1] > 6, -100), torch.full((4, 6), -100)])

    weight = torch.rand(classes) if classes else None

    def entropy(outputs, batch):
        return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten(), weight)

    with torch.no_grad():
        logits = module(ids)
        told = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), weight).item()
    still = {"lr": 0.0, "weight_decay": 0.0}
    with engine("stronghold", module, still, microbatches=microbatches) as made:
        made.step((ids[0], labels[0]), entropy)
        found = made.evaluate([*zip(ids, labels, strict=True)], entropy)
    assert found["loss"] == pytest.approx(told, rel=1e-6)


def test_classes_and_running_statistics(engine, visits) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 4)
    )
    held = [(torch.randn(rows, 6), torch.randint(4, (rows,))) for rows in (8, 5)]

    def entropy(outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    with engine("plain", module) as made:
        before = made.evaluate(held, entropy)
        made.step(held[0], entropy)
        after = made.evaluate(held, entropy)
        visits()
        assert made.evaluate(held, entropy) == pytest.approx(after, rel=1e-6)
        alone = [made.evaluate(batch, entropy) for batch in held]
        assert made.evaluate(held[:1], entropy) == alone[0]
        sums = [each["loss"] * each["samples"] for each in alone]
        assert sum(sums) / 13 == pytest.approx(after["loss"], rel=1e-6)
    assert before["loss"] != pytest.approx(after["loss"], rel=1e-3)


@pytest.mark.gpu
def test_a_gpu_evaluates_within_the_memory_of_training(engine) -> None:
    """Also where logits are larger than that; `-s` shows how long it takes."""
    model, draw = llama(512, 64000), torch.Generator().manual_seed(0)
    ids = [torch.randint(64000, (4, 1024), generator=draw) for _ in range(2)]
    held, train = ({"input_ids": each, "labels": each} for each in ids)
    how = {"device": "cuda", "dtype": "bf16", "clip": None, "microbatches": 2}
    with engine("stronghold", model, **how) as made:
        made.step(train, of_outputs)
        peak, began = torch.cuda.max_memory_allocated(), time.monotonic()
        found = made.evaluate(held, of_outputs)
        seconds = time.monotonic() - began
        assert torch.cuda.max_memory_allocated() == peak
        own = model.eval()
        own.load_state_dict(made.state_dict())
    with torch.no_grad():
        told = of_outputs(own(**held), held).item()
    print(f"loss {found['loss']:.5f} in {seconds:.2f} s, in fp32 {told:.5f}")
    assert found["loss"] == pytest.approx(told, rel=5e-3)
