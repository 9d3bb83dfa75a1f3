"""The kernel of attention is Transformers' own switch: in training, in records, and in refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from tests.methods import plain, torchs
from tests.methods.harness import assert_near, run
from tests.methods.test_weights import CONFIGS, LLAMA, SIZES, Logits
from workbench import cli
from workbench.core.model_spec import FLASH, FLEX, GPU_KERNELS
from workbench.core.spec import RunSpec
from workbench.methods import stronghold
from workbench.model import make_model
from workbench.model.hf_config import read_config, spec_from_config
from workbench.model.whole import make_whole
from workbench.profile.machine import this_machine
from workbench.profile.store import path_of

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")


@pytest.fixture(scope="module")
def spec_of(tmp_path_factory):
    """The spec of a Llama with a kernel; its heads are of 16, the least that some kernels take."""
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaConfig(**LLAMA | {"hidden_size": 64}).save_pretrained(folder)
    described = spec_from_config(folder, seq=16)

    def made(kernel: str | None) -> RunSpec:
        model = replace(described, attention=kernel)
        device = "cuda" if kernel in GPU_KERNELS else "cpu"
        return plain.spec_for(model=model, steps=3, eps=1e-6, window=2, device=device)

    return made


@pytest.fixture
def asked(monkeypatch) -> list[tuple]:
    """(mask, whether it is the causal kernel) of each call of torch's fused attention."""
    fused, calls = F.scaled_dot_product_attention, []

    def noted(*args, attn_mask=None, is_causal=False, **kwargs):
        calls.append((attn_mask, is_causal))
        return fused(*args, attn_mask=attn_mask, is_causal=is_causal, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    return calls


@pytest.mark.parametrize("kernel", [None, "sdpa", "eager"])
def test_training_is_as_of_the_module_with_that_kernel(spec_of, asked, tmp_path, kernel):
    """A batch without a mask keeps the causal kernel."""
    spec = spec_of(kernel)
    training, weights = run(stronghold, spec, tmp_path)
    assert {(None, True)} == {*asked} if kernel != "eager" else not asked
    theirs = transformers.AutoModelForCausalLM.from_config(
        read_config(spec.model.family)[0], dtype=torch.float32, attn_implementation=kernel
    )
    whole = make_whole(make_model(spec.model), seed=spec.seed).state_dict()
    theirs.load_state_dict(whole, strict=False)
    expected, _ = torchs.train(spec, Logits(theirs.train()))
    assert training.history.losses == pytest.approx(expected, rel=1e-6)
    assert_near(weights, dict(theirs.named_parameters()))


def test_it_is_part_of_keys_where_it_is_given(spec_of, tmp_path):
    usual, eager = spec_of(None), spec_of("eager")
    assert RunSpec.from_dict(eager.to_dict()) == eager != usual
    assert eager.key() != usual.key()
    old = usual.to_dict()
    del old["model"]["attention"]
    assert RunSpec.from_dict(old).key() == usual.key()
    costs = [path_of(spec, tmp_path, this_machine("cpu"), "units") for spec in (usual, eager)]
    assert costs[0] != costs[1], "costs differ"
    assert "attention" not in usual.model.to_dict(), "nor do older costs have another name"


def test_a_kernel_of_gpus_is_tried_without_one(spec_of):
    """Its masks keep documents apart, too; it comes compiled, alone."""
    model = make_model(replace(spec_of(None).model, attention=FLEX, rows="documents"))
    assert (model.config._attn_implementation, model.compilable) == (FLEX, False)


@pytest.mark.gpu
def test_a_kernel_of_gpus_trains_as_the_others(spec_of, tmp_path):
    losses = [
        run(stronghold, spec_of(kernel).with_(device="cuda"), tmp_path / kernel)[0].history.losses
        for kernel in (FLEX, "sdpa")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


GPTJ = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16, "rotary_dim": 4}


@pytest.mark.parametrize(
    ("config", "words", "sentence"),
    [
        ("llama", "flex_attention", "trains on a GPU only, and device is cpu"),
        ("llama", "flash_attention_2", "and dtype is fp32; it takes bf16"),
        ("llama", "flash_attention_2 --dtype bf16", "trains on a GPU only"),
        ("gptj", "sdpa", "'sdpa': GPTJForCausalLM does not support"),
        ("", "sdpa", "is for decoders of Hugging Face (--hf-config), and the model is gpt"),
    ],
)
def test_refusals_write_nothing(tmp_path, capfd, config, words, sentence):
    made = CONFIGS["llama"]() if config == "llama" else transformers.GPTJConfig(**SIZES, **GPTJ)
    made.save_pretrained(tmp_path / "model")
    given = ["--hf-config", str(tmp_path / "model"), "--seq", "16"] if config else []
    asked = ["run", "-m", "plain", *given, "--attention", *words.split()]
    assert cli.main([*asked, "--results", str(tmp_path / "results")]) == 2
    said = capfd.readouterr()
    assert sentence in said.err
    assert (said.out, said.err.count("workbench: ")) == ("", 1)
    assert not (tmp_path / "results").exists()


def test_a_kernel_that_is_not_installed_is_refused_before_one_is_downloaded(spec_of):
    with pytest.raises(ValueError, match="its package flash_attn is not installed"):
        make_model(replace(spec_of(None).model, attention=FLASH))
