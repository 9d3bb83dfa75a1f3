"""The ordinary loop over a wrapped module is torch's, and equals an engine's steps."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import workbench
from tests.methods.loops import (
    CLIP,
    LR,
    batches,
    distance,
    in_groups,
    loss_of,
    near,
    net,
    normed,
    of_outputs,
    warmed,
)

WAYS = {
    "plain": {},
    "megatron-lm": {},
    "l2l": {"activations": "host"},
    "stronghold": {"window": 2, "resident": 1},
}

HOW = ((1, CLIP), (3, None), (3, CLIP))
RARER = (("l2l", 3, None), ("stronghold", 1, CLIP))


@pytest.fixture(scope="module")
def wrapped(engine):
    """Wraps a module with a fresh optimizer, on a machine that has been measured."""
    (results,) = engine.args

    def make(method, module=None, groups=nn.Module.parameters, **how):
        module = net() if module is None else module
        how = {"device": "cpu", "results": results, "quiet": True, **how}
        optimizer = torch.optim.AdamW(groups(module), lr=LR)
        return workbench.wrap(module, optimizer, method, **how)

    return make


def looped(model, optimizer, every: int, clip: float | None) -> list[float]:
    """Losses of the loop that anybody would write; the last step is one of fewer calls."""
    scheduler, losses = warmed(optimizer), []
    for number, batch in enumerate(given := [*batches(7, padded=True)], 1):
        loss = loss_of(model(batch["tokens"]), batch)
        loss /= every
        loss.backward()
        if number % every == 0 or number == len(given):
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        with torch.no_grad():
            losses += loss.item(), loss_of(model.eval()(given[0]["tokens"]), given[0]).item()
        model.train()
    return losses


@pytest.mark.parametrize(
    ("method", "every", "clip"),
    [
        pytest.param(
            *one, marks=[] if one[1:] == (3, CLIP) or one in RARER else pytest.mark.thorough
        )
        for one in ((method, *how) for method in WAYS for how in HOW)
    ],
)
def test_the_loop_is_torchs(wrapped, method, every, clip) -> None:
    """Losses, evaluation between steps, and weights; with accumulation and groups."""
    module = net()
    wanted = looped(module, torch.optim.AdamW(in_groups(module), lr=LR), every, clip)
    how = {"clip": clip, "accumulate": every, **WAYS[method]}
    model, optimizer = wrapped(method, groups=in_groups, **how)
    assert looped(model, optimizer, every, None) == pytest.approx(wanted, rel=1e-5)
    near(model.state_dict(), module.state_dict())
    model.close()


@pytest.mark.parametrize("method", ["plain", "stronghold"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "autocast"])
def test_steps_are_an_engines_to_the_last_digit(engine, wrapped, method, dtype) -> None:
    """With dropout and BatchNorm, and a forward pass that no backward pass follows. Layers that
    pass forward again do so under the autocast of the call; torch.compile leaves them alone."""
    module, data = normed()
    how = {"dtype": "fp32" if dtype == "autocast" else dtype, **WAYS[method]}
    how |= {"activations": "recompute"} if method == "stronghold" else {}
    cast = partial(torch.autocast, "cpu", torch.bfloat16, dtype == "autocast")
    with engine(method, copy.deepcopy(module), quiet=True, **how) as made:
        losses = []
        for pair in data:
            with cast():
                losses.append(float(made.step(pair, distance)))
        norm, weights = made.grad_norm, made.state_dict()
    model, optimizer = wrapped(method, module, clip=CLIP, **how)
    called = torch.compile(model, backend="eager")
    for pair, wanted in zip(data, losses, strict=True):
        with cast():
            model(pair[0] * 2)
            loss = distance(called(pair[0]), pair)
        loss.backward()
        optimizer.step()
        assert loss.item() == wanted
    found = model.state_dict()
    assert model.grad_norm == norm
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    model.close()


def test_accumulated_calls_are_micro_batches_to_the_last_digit(engine, wrapped) -> None:
    """Ends are not tied, whose gradients would be added up in another order. Units share memory of
    gradients, on the device and without `clip` on the host; a forward pass in between is let go,
    and gradients that are let go leave nothing."""
    given, module = [*batches(4)], net()
    module.head.weight = nn.Parameter(module.head.weight.detach() * 2)
    for clip in (None, CLIP):
        with engine("l2l", module, clip=clip, microbatches=2, quiet=True) as made:
            for batch in given:
                made.step(batch, loss_of)
            weights = made.state_dict()
        model, optimizer = wrapped("l2l", module, clip=clip)
        with model.no_sync():
            loss_of(model(given[0]["tokens"]), given[0]).backward()
            with pytest.raises(IndexError):
                model(given[0]["tokens"] + 100)
        with pytest.raises(ValueError, match="the gradients of 1 before are gone: call opt"):
            optimizer.step()
        optimizer.zero_grad()
        for batch in given:
            one, two = ({n: t[rows] for n, t in batch.items()} for rows in (slice(2), slice(2, 4)))
            with model.no_sync():
                (loss_of(model(one["tokens"]), one) / 2).backward()
            model(one["tokens"])
            (loss_of(model(two["tokens"]), two) / 2).backward()
            optimizer.step()
        found = model.state_dict()
        assert all(torch.equal(found[name], value) for name, value in weights.items())
        model.close()


def test_a_model_of_hugging_face_has_its_own_loss_and_shape(engine, wrapped, tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, use_cache=False)
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(config).train()
    given = [{"input_ids": b["tokens"], "labels": b["tokens"]} for b in batches(4)]
    with engine("stronghold", copy.deepcopy(module), quiet=True) as made:
        losses = [float(made.step(batch, of_outputs)) for batch in given]
        weights = made.state_dict()
    model, optimizer = wrapped("stronghold", module, clip=CLIP)
    for batch, wanted in zip(given, losses, strict=True):
        outputs = model(**batch)
        assert type(outputs).__name__ == "CausalLMOutputWithPast"
        assert outputs.logits.shape == (4, 6, 20)
        assert outputs.loss.item() == wanted
        with pytest.raises(ValueError, match="others beside it are for reading: call the model"):
            outputs.logits.sum().backward()
        with pytest.raises(ValueError, match="the call has the num_items_in_batch 20, .*: give 1"):
            model(**batch, num_items_in_batch=20)
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(ValueError, match="labels, attention_mask None and the first one had i"):
            model(**batch, attention_mask=None)
    found = model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    ids, how = given[0]["input_ids"], {"max_new_tokens": 3, "do_sample": False}
    again = transformers.LlamaForCausalLM(config)
    again.load_state_dict(found)
    assert torch.equal(model.generate(ids, **how), again.eval().generate(ids, **how))
    model.save_pretrained(tmp_path)
    saved = transformers.LlamaForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(saved[name], value) for name, value in weights.items())
    model(**given[0]).loss.backward()
    model.close()


@pytest.mark.parametrize("bare", [True, False])
def test_a_model_without_values_or_in_bf16_is_trained_and_used(wrapped, tmp_path, bare) -> None:
    """As its fp32 twin is; evaluation draws nothing, and parts have the weights of now."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20, "n_positions": 8}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, resid_pdrop=0.5)
    made = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    made.save_pretrained(tmp_path / "first")
    batch = {"input_ids": (ids := next(batches())["tokens"]), "labels": ids}
    begins = []

    def trained(module, **how):
        model, optimizer = wrapped("stronghold", module.train(), clip=CLIP, **how)
        begins.append(model.eval()(ids).logits.float())
        model.train()
        for _ in range(2):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            written = [model.generate(ids, max_new_tokens=2, do_sample=False) for _ in range(2)]
            assert torch.equal(*written)
            model.train()
        return model, model.state_dict()

    model, wanted = trained(copy.deepcopy(made).float())
    model.close()
    with torch.device("meta"):
        hollow = transformers.GPT2LMHeadModel(made.config).to(torch.bfloat16)
    how = {"weights": tmp_path / "first"} if bare else {}
    model, found = trained(hollow if bare else made, **how)
    torch.testing.assert_close(begins[1], begins[0], rtol=0, atol=0.05)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    found = {name: value.to(torch.bfloat16) for name, value in found.items()}
    assert torch.equal(model.transformer.wte.weight, found["transformer.wte.weight"])
    model.save_pretrained(tmp_path / "last")
    saved = type(made).from_pretrained(tmp_path / "last").state_dict()
    assert all(torch.equal(saved[name], value) for name, value in found.items())
    model.close()


def test_a_loop_goes_on_from_a_checkpoint_and_after_a_mistake(wrapped, tmp_path) -> None:
    def steps(model, optimizer, scheduler, given) -> None:
        for batch in given:
            loss_of(model(batch["tokens"]), batch).backward()
            optimizer.step()
            scheduler.step()

    given, found, kept = [*batches(6)], [], {}
    for parts in ([given], [given[:3], given[3:]]):
        for number, part in enumerate(parts):
            model, optimizer = wrapped("stronghold", clip=CLIP)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            if number:
                assert model.load(tmp_path / "2") == 3
                scheduler.load_state_dict(kept)
            steps(model, optimizer, scheduler, part)
            with pytest.raises(IndexError):
                model(given[0]["tokens"] + 100)
            model.save(tmp_path / str(len(parts)))
            with model.no_sync():  # what is held is let go
                loss_of(model(given[0]["tokens"]), given[0]).backward()
            assert model.load(tmp_path / str(len(parts))) == model.engine.steps
            kept = scheduler.state_dict()
            found.append(model.state_dict())
            model.close()
    assert all(torch.equal(found[0][name], value) for name, value in found[-1].items())


def test_what_a_loop_cannot_have_is_one_sentence(wrapped) -> None:
    batch, module = next(batches()), net()
    adamw = torch.optim.AdamW(module.parameters(), lr=LR)
    wrap = partial(workbench.wrap, module, adamw)
    scheduled = torch.optim.AdamW(module.parameters(), lr=LR)
    torch.optim.lr_scheduler.StepLR(scheduled, 2)
    for words, make in {
        "optimizer is a SGD; give torch.optim.AdamW": lambda: workbench.wrap(
            module, torch.optim.SGD(module.parameters())
        ),
        "has a scheduler; make that after": lambda: workbench.wrap(module, scheduled),
        "microbatches has no place .* accumulate": partial(wrap, microbatches=2),
        "wrapped already": lambda: workbench.wrap(*wrapped("plain")),
        "accumulate is 0; give": partial(wrap, accumulate=0),
        "harmony-pp .* give one of megatron-lm, l2l": partial(wrap, method="harmony-pp"),
        "fsdp .* give one of megatron-lm, l2l": partial(wrap, method="fsdp"),
    }.items():
        with pytest.raises(ValueError, match=words):
            make()
    model, optimizer = wrapped("stronghold")
    with pytest.raises(ValueError, match="in evaluation mode; call its train\\(\\) before"):
        loss_of(model.eval()(batch["tokens"]), batch).backward()
    model.train()

    def changed_rate() -> None:
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.step()

    def other_settings() -> None:
        optimizer.param_groups[0]["eps"] = 0.5
        model(batch["tokens"])

    def other_weights() -> None:
        model.requires_grad_(False)
        model(batch["tokens"])

    def other_moments() -> None:
        optimizer.load_state_dict(optimizer.state_dict())
        model(batch["tokens"])

    first, loss = loss_of(model(batch["tokens"]), batch), loss_of(model(batch["tokens"]), batch)
    for words, do in {
        "no gradients have come back": optimizer.step,
        "made of the outputs of a wrapped model alone": lambda: (
            next(model.parameters()).sum() + loss
        ).backward(),
        "cannot be copied or pickled": lambda: copy.deepcopy(model),
        "or one of an earlier call, is not possible": first.backward,
        "": partial(loss.backward, retain_graph=True),
        "a second one, or": loss.backward,
        "give clip=... to workbench.wrap": lambda: nn.utils.clip_grad_norm_(
            model.parameters(), 1.0
        ),
        "call step\\(\\) between": optimizer.zero_grad,
        "call optimizer.step\\(\\) before the model": lambda: model(batch["tokens"]),
        "save within a step": lambda: model.save("nowhere"),
        "is 0.5 at optimizer.step.*, and was 0.01": changed_rate,
        "other settings than at": other_settings,
        "give device and dtype to workbench.wrap": lambda: model.to("cpu"),
        "brings no moments": other_moments,
        "freeze before workbench.wrap": other_weights,
    }.items():
        if not words:
            do()
            continue
        with pytest.raises(ValueError, match=words):
            do()
    model.close()
