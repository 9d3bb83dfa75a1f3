"""Trained weights in a folder: every method goes on from them as torch's own loop does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from shutil import copytree

import pytest
import torch
from torch import nn

from baselines import fsdp, l2l
from baselines import plain as torch_plain
from tests.methods import pipelines, torchs
from tests.methods.exported import assert_exported
from tests.methods.harness import Silent, assert_near, fork_ranks, run
from tests.methods.plain import spec_for
from workbench.core import methods
from workbench.core.model_spec import ModelSpec
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.methods import stronghold
from workbench.model.families import module_of
from workbench.model.hf_config import spec_from_config
from workbench.model.weights.mapped import mapped
from workbench.model.weights.stored import find
from workbench.runs.export import export
from workbench.runs.store import Store

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

SIZES = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
LLAMA = SIZES | {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 32,
}  # fmt: skip
GEMMA = LLAMA | {"head_dim": 8, "sliding_window": 4}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False),
    "qwen3": lambda: transformers.Qwen3Config(**LLAMA, head_dim=8, tie_word_embeddings=True),
    "gemma2": lambda: transformers.Gemma2Config(**GEMMA),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GEMMA),
    "gpt2": lambda: transformers.GPT2Config(
        **SIZES, n_layer=3, n_embd=32, n_head=4, n_positions=32, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0,
    ),
    "phi3": lambda: transformers.Phi3Config(**LLAMA, tie_word_embeddings=False),
    "mixtral": lambda: transformers.MixtralConfig(**LLAMA, num_local_experts=4),
}  # fmt: skip
FORMS = {
    "one file": {}, "several files": {"max_shard_size": "20KB"},
    "bf16": {"max_shard_size": "20KB", "dtype": torch.bfloat16},
}  # fmt: skip
STEPS, EPS = 4, 1e-6
BESIDE = ("generation_config.json", "tokenizer_config.json")
"""Files that go with the weights."""


class Logits(nn.Module):
    """A decoder of transformers as torch's loop calls it."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(ids, use_cache=False).logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a model, whose norms are no ones, and its spec: written once."""

    @cache
    def write(name: str, form: str) -> tuple[Path, RunSpec]:
        folder, how = tmp_path_factory.mktemp(name), FORMS[form]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(7)
            model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.05)
        model.to(how.get("dtype")).save_pretrained(
            folder, max_shard_size=how.get("max_shard_size", "1GB")
        )
        (folder / BESIDE[1]).write_text("[1]")
        spec = spec_for(
            model=spec_from_config(folder, seq=16), method="plain", steps=STEPS, lr_decay_steps=20,
            eps=EPS, batch=4, save_every=STEPS,
        )  # fmt: skip
        return folder, spec

    return write


@pytest.fixture
def trains(tmp_path, measured, monkeypatch):
    """Trains a spec with a method; its losses, and the weights that its checkpoint holds."""
    fork_ranks(monkeypatch)
    copytree(measured, tmp_path / "profiles")
    folder = tmp_path / "runs" / "run"

    def train(spec: RunSpec, name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
        if name in ("stronghold", "l2l"):
            own = spec.with_(method=name, microbatches=2)
            losses = run({"stronghold": stronghold, "l2l": l2l}[name], own, folder)[
                0
            ].history.losses
        elif name == "1f1b":
            own = spec.with_(method=name, ranks=2)
            schedule = pipelines.schedule_for("1f1b", own, 2, 4)
            losses = pipelines.trained(schedule, own, folder)[0].history.losses
        else:
            method = {"plain": torch_plain, "fsdp": fsdp}.get(name) or methods.load(name)
            ranks = 1 if name in ("plain", "fsdp") else 2
            losses = method.train(spec.with_(method=name, ranks=ranks), Silent(), folder).losses
        entries = find(folder).entries
        return losses, {name: mapped(entry) for name, entry in entries.items()}

    return train


def cases() -> list:
    """Each model, form and method once in the quick tests, and all of them in the others."""
    quick = {
        ("llama", "several files", "1f1b"), ("qwen3", "bf16", "stronghold"),
        ("mixtral", "several files", "l2l"), ("gpt2", "one file", "plain"),
        ("gemma3", "one file", "stronghold"), ("phi3", "bf16", "plain"),
        ("gemma2", "several files", "l2l"),
    }  # fmt: skip
    others = ("plain", "stronghold", "l2l", "fsdp", "1f1b", "harmony-pp", "harmony-dp")
    every = [(name, form, method) for name in CONFIGS for form in FORMS for method in others]
    return [
        pytest.param(*one, marks=[] if one in quick else [pytest.mark.thorough]) for one in every
    ]


@pytest.mark.parametrize(("name", "form", "method"), cases())
def test_training_goes_on_as_from_pretrained_does(name, form, method, saved, trains, tmp_path):
    folder, spec = saved(name, form)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected, _ = torchs.train(spec, Logits(theirs.train()))
    losses, weights = trains(spec, method)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert_near(weights, dict(theirs.named_parameters()))
    write_sealed(tmp_path / "runs" / "run" / "spec.json", spec.to_dict())
    came_in = "bf16" if form == "bf16" else "fp32"
    assert_exported(tmp_path / "runs" / "run", weights, tmp_path / "out", dtype=came_in)
    for name in BESIDE:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(*one, marks=[] if one == ("mixtral", "bf16") else [pytest.mark.thorough])
        for one in product(CONFIGS, FORMS)
    ],
)
def test_a_folder_comes_out_as_it_went_in(name, form, saved, tmp_path):
    """Bit for bit, by names and types, where a rate is too small to change anything."""
    folder, spec = saved(name, form)
    spec = spec.with_(lr=1e-30, min_lr=0.0, weight_decay=0.0, steps=2, save_every=2)
    torch_plain.train(spec, Silent(), tmp_path / "run")
    write_sealed(tmp_path / "run" / "spec.json", spec.to_dict())
    export(tmp_path / "run", tmp_path / "out", Store(tmp_path))
    came, went = find(folder).entries, find(tmp_path / "out").entries
    assert came.keys() == went.keys()
    for label, entry in came.items():
        assert went[label].dtype == entry.dtype
        assert torch.equal(mapped(went[label]), mapped(entry)), label


def test_a_new_run_begins_from_the_weights_and_statistics_of_another(tmp_path):
    """With other data order, batch and rate, and fresh moments: of a module with BatchNorm."""
    model = ModelSpec(family="resnet", layers=4, hidden=8, seq=8, vocab=4)
    first = spec_for(method="plain", model=model, text="stdlib", steps=2, save_every=2)
    torch_plain.train(first, Silent(), tmp_path / "first")
    stored = find(tmp_path / "first")
    net = module_of(model, seed=1)
    net.load_state_dict({name: mapped(entry) for name, entry in stored.entries.items()})
    changes = {"batch": 6, "lr": 3e-3, "seed": 5, "save_every": 3, "steps": 3}
    expected, _ = torchs.train(spec := first.with_(**changes), net.train())
    spec = spec.with_(model=replace(model, pretrained=str(stored.path)), method="stronghold")
    losses = run(stronghold, spec, tmp_path / "second")[0].history.losses
    assert losses == pytest.approx(expected, rel=1e-6)
    kept = {name: mapped(entry) for name, entry in find(tmp_path / "second").entries.items()}
    assert_near(kept, net.state_dict())
