"""Rows train as torch's own loop over transformers' module does that is given each row by itself:
packed or padded, with prompts that are only read, in micro-batches, replicas and pipelines."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from baselines.plain_training import PlainTraining
from tests.methods import pipelines, plain
from tests.methods.harness import LOSS_TOLERANCE, Silent, assert_near, run
from tests.methods.taped import on_tapes
from tests.methods.test_hugging_face import CONFIGS, EPS, assert_recorded_alike, recorded
from tests.methods.test_ranks import sizes_for
from tests.methods.test_replay import assert_equal_to_the_bit
from workbench.core.division import packs_of
from workbench.core.model_spec import DOCUMENTS
from workbench.methods import stronghold
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.program import Program
from workbench.model import make_model
from workbench.model.hf_config import read_config, spec_from_config
from workbench.model.text import IGNORED
from workbench.model.whole import make_whole
from workbench.profile.alone import Setting
from workbench.profile.measure import unit_costs
from workbench.runtime.passes import recorded_blocks
from workbench.training import evaluation
from workbench.training.run import load_batches

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
SEQ, BATCH = 16, 6


@pytest.fixture(scope="module")
def spec_for(tmp_path_factory):
    """A training on rows of 2 to 16 ids, of which 1 to all but one are trained on."""
    folder, rng = tmp_path_factory.mktemp("rows"), random.Random(5)
    for name, count in (("rows", 70), ("held", 9)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for _ in range(count):
                ids = rng.choices(range(256), k=rng.choice((2, 3, 5, 7, 11, SEQ)))
                prompt = rng.randrange(1, len(ids))
                labels = [IGNORED] * prompt + ids[prompt:]
                file.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")

    @cache
    def described(name: str):
        config = CONFIGS[name]()
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        config.save_pretrained(folder / name)
        return spec_from_config(folder / name, seq=SEQ)

    def made(name: str = "llama", rows: str = DOCUMENTS, **changes):
        changes = {"batch": BATCH, "steps": 4, "eps": EPS, "device": "cpu", **changes}
        text = str(folder / "rows.jsonl")
        return plain.spec_for(model=replace(described(name), rows=rows), text=text, **changes)

    return made


@cache
def by_torch(spec):
    """Losses and weights of torch's loop, each row alone: [rows of a document], no mask."""
    net = transformers.AutoModelForCausalLM.from_config(
        read_config(spec.model.family)[0], dtype=torch.float32
    ).train()
    model = make_model(spec.model)
    net.load_state_dict(make_whole(model, seed=spec.seed).state_dict(), strict=False)
    named = dict(net.named_parameters())
    groups = [
        {"params": [p for p in named.values() if (p.dim() > 1) == decays], "weight_decay": rate}
        for decays, rate in ((True, spec.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps)
    batches, losses = load_batches(spec, model), []
    for step in range(spec.steps):
        optimizer.zero_grad()
        sums, count = torch.zeros(()), 0
        for ids, *places, targets in zip(*batches.batch(step), strict=True):
            starts = (places[0] == 0).nonzero().flatten().tolist() if places else [0]
            for start, end in zip(starts, [*starts[1:], SEQ], strict=True):
                counted = (targets[start:end] != IGNORED).nonzero()
                part = slice(start, start + int(counted.max()) + 1)  # without padding
                logits = net(ids[None, part], use_cache=False).logits[0]
                sums = sums + F.cross_entropy(logits, targets[part], reduction="sum")
                count += len(counted)
        (sums / count).backward()
        losses.append(float(sums.detach()) / count)
        torch.nn.utils.clip_grad_norm_(net.parameters(), spec.clip)
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate(step)
        optimizer.step()
    return losses, {name: p.detach() for name, p in named.items()}


def assert_as_torch(spec, losses, weights) -> None:
    wanted, ends = by_torch(spec.with_(method="plain", ranks=1, microbatches=1, steps=spec.steps))
    assert losses == pytest.approx(wanted, rel=LOSS_TOLERANCE)
    assert_near(weights, ends)


@pytest.mark.parametrize(
    ("name", "rows", "micros"),
    [
        ("gemma2", "documents", 2),  # windows of 4 tokens in every other layer
        ("llama", "padded", 3),
        pytest.param("gpt2", "documents", 3, marks=pytest.mark.thorough),
        pytest.param("gemma2", "padded", 1, marks=pytest.mark.thorough),
    ],
)
def test_one_device(spec_for, tmp_path, name, rows, micros) -> None:
    """Later batches have other documents than the first one."""
    spec = spec_for(name, rows, microbatches=micros, window=2)
    batches = load_batches(spec, make_model(spec.model))
    (first, *_), (later, *_) = batches.batch(0)[1:], batches.batch(3)[1:]
    assert not torch.equal(first, later)
    training, weights = run(stronghold, spec, tmp_path)
    assert_as_torch(spec, training.history.losses, weights)
    alone = PlainTraining(
        spec_for(name, rows, method="plain", microbatches=micros), Silent(), tmp_path
    )
    alone.run()
    assert_as_torch(spec, alone.history.losses, alone.parameters())


@pytest.mark.parametrize("name", ["gemma3", pytest.param("llama", marks=pytest.mark.thorough)])
def test_documents_are_compiled_once_for_all_batches(spec_for, tmp_path, counter, name) -> None:
    """Blocks have one graph for all masks, and one without for samples of one document each."""
    spec = spec_for(name, microbatches=BATCH, window=2, resident=1)
    model = make_model(spec.model)
    batches, kinds = load_batches(spec, model), {model.kind(1 + n) for n in range(model.layers)}
    micros = [row[None] for step in range(4) for row in batches.batch(step)[1]]
    alone = [model.uniform((row, row)) == [True] for row in micros]
    assert len({tuple(row[0].tolist()) for row in micros}) > 5
    assert {True, False} == {*alone}
    training, weights = run(stronghold, spec, tmp_path)
    assert_as_torch(spec, training.history.losses, weights)
    assert counter.frame_count == 2 * 2 * len(kinds)  # with autograd, and without


def test_a_profile_compiles_documents_once_for_all_its_blocks(spec_for, counter) -> None:
    spec = spec_for("llama")
    hardware = replace(plain.made_up_profile(spec).hardware, matmul_flops_per_s=1e12)
    size = 2, spec.model.seq
    setting = Setting.of_tokens(make_model(spec.model), size, dtype="fp32", device="cpu")
    for _ in range(2):  # as a profile of passes is followed by that of other ways to run them
        unit_costs(replace(setting, compiled=True), hardware, seconds=0.0)
    assert counter.frame_count == 2  # with autograd, and without


STAY = {"window": 3, "resident": 3, "pulled": 0, "activations": "keep"}


@pytest.mark.parametrize("how", [STAY, {"window": 2, "resident": 1}], ids=["keep", "recompute"])
def test_documents_are_recorded(spec_for, tmp_path, monkeypatch, how) -> None:
    """Each micro-batch as it is: with masks, or without where it is uniform."""
    monkeypatch.setattr(recorded_blocks, "Replays", on_tapes(monkeypatch))
    spec = spec_for("llama", microbatches=BATCH, replay="on", **how)
    training, weights = recorded(stronghold, spec, tmp_path)
    assert_as_torch(spec, training.history.losses, weights)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "how"), [("llama", STAY), ("gemma3", {"window": 2, "resident": 1})]
)
def test_recorded_documents_change_no_bit(spec_for, tmp_path, name, how, dtype) -> None:
    spec = spec_for(name, microbatches=BATCH, replay="on", device="cuda", dtype=dtype, **how)
    training, weights = assert_recorded_alike(stronghold, spec, tmp_path)
    if dtype == "fp32":
        assert_as_torch(spec, training.history.losses, weights)


@pytest.mark.gpu
@pytest.mark.parametrize(("order", "activations"), [("varuna", "keep"), ("1f1b", "checkpoint")])
def test_recorded_pipelines_of_documents(spec_for, tmp_path, monkeypatch, order, activations):
    """Equal to launched ones, to the bit."""
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")
    spec = spec_for("llama", ranks=1, device="cuda", dtype="bf16")
    line = Pipeline(
        method=order, passes=lists(order, 1, BATCH, 1), stages=packs_of([5]), micro_size=1,
        activations=activations,
    )  # fmt: skip
    assert line.recordable

    def schedule(on):
        return Program(replace(line, replay=on), sizes_for(spec)).schedule()

    assert_equal_to_the_bit(spec, tmp_path, schedule)


@pytest.mark.parametrize(
    ("rows", "micros", "replicas", "activations"),
    [
        ("documents", 3, 2, "recompute"),
        pytest.param("documents", 1, 2, "keep", marks=pytest.mark.thorough),
        pytest.param("padded", 3, 2, "recompute", marks=pytest.mark.thorough),
        pytest.param("documents", 3, 1, "stash", marks=pytest.mark.thorough),
        pytest.param("stream", 3, 1, "keep", marks=pytest.mark.thorough),
    ],
)
def test_pipeline(spec_for, tmp_path, rows, micros, replicas, activations) -> None:
    """Two stages, in micro-batches or whole; replicas have unequal numbers of labels."""
    spec = spec_for("llama", rows, ranks=2 * replicas)
    schedule = pipelines.schedule_for(
        "1f1b", spec, 2, micros, replicas=replicas, activations=activations
    )
    training, weights = pipelines.trained(schedule, spec, tmp_path)
    assert_as_torch(spec, training.history.losses, weights)


def held_out_by_torch(spec, weights) -> float:
    """Mean loss of the labels that count, each row alone in transformers' module."""
    config = read_config(spec.model.family)[0]
    net = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    net.load_state_dict(weights, strict=False)
    losses = []
    for row in map(json.loads, Path(spec.eval_text).read_text().splitlines()):
        logits = net(torch.tensor([row["input_ids"]]), use_cache=False).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
        losses.append(F.cross_entropy(logits, labels, reduction="none")[labels != IGNORED])
    return float(torch.cat(losses).mean().detach())


@pytest.mark.parametrize(
    ("name", "rows", "ranks"), [("llama", DOCUMENTS, 1), ("gemma2", "padded", 2)]
)
def test_held_out_rows(spec_for, tmp_path, monkeypatch, name, rows, ranks) -> None:
    """All of their file is evaluated and all of the other is trained on, as if nobody had looked.
    A forward pass takes a sample, since two have more tokens than one may."""
    monkeypatch.setattr(evaluation, "TOKENS", SEQ + 1)
    calm = spec_for(name, rows, ranks=ranks, microbatches=3 // ranks, window=2)
    spec = calm.with_(eval_text=str(Path(calm.text).with_name("held.jsonl")), eval_every=3)
    if ranks > 1:
        schedule = pipelines.schedule_for("1f1b", spec, ranks, 3)
        training, weights = pipelines.trained(schedule, spec, tmp_path)
    else:
        training, weights = run(stronghold, spec, tmp_path)
    assert_as_torch(calm, training.history.losses, weights)
    *_, last = found = training.history.evaluations
    assert [one["step"] for one in found] == [3, 4]
    assert last["loss"] == pytest.approx(held_out_by_torch(spec, weights), rel=LOSS_TOLERANCE)
    assert last["samples"] == len(load_batches(calm.with_(text=spec.eval_text), training.model))
