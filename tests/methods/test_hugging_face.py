"""Models of Hugging Face trained under every method equal the same model as one module."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from baselines import l2l
from tests.methods import plain
from tests.methods.harness import assert_equals_plain, run
from tests.methods.test_replay import on_gpu, trained_as
from workbench.core.model_spec import ModelSpec
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.model import make_model
from workbench.model.hf_calls import Calls
from workbench.model.hf_config import spec_from_config
from workbench.profile.units import RECORDED, Variant
from workbench.schedule import buffers

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

SIZES = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        **SIZES, n_layer=3, n_embd=32, n_head=4, n_positions=16
    ),  # tied, learned positions, and its usual dropout
    "llama": lambda: transformers.LlamaConfig(**SIZES, **LLAMA, tie_word_embeddings=False),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, **LLAMA, pad_token_id=0, head_dim=8, sliding_window=4
    ),  # layers of two kinds in one slot
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, **LLAMA, pad_token_id=0, head_dim=8, sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),  # rotary tables of two kinds, too
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, **LLAMA, head_dim=8),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **SIZES, **LLAMA, pad_token_id=0, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=16, decoder_sparse_step=2,
        output_router_logits=True, router_aux_loss_coef=0.3,
    ),  # experts in every other layer, whose routers have a loss
}  # fmt: skip


EPS = 1e-6
"""AdamW's. The gradient of a key's bias is zero but for rounding, since softmax cannot see it; with
1e-8, AdamW makes steps of the noise, and two correct trainings on a GPU part by 1.3e-5."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The spec of a configuration by name, from a file written once."""

    @cache
    def described(name: str) -> ModelSpec:
        folder = tmp_path_factory.mktemp(name)
        CONFIGS[name]().save_pretrained(folder)
        return spec_from_config(folder)

    return described


SETTINGS = (
    (2, "recompute", {"resident": 0, "microbatches": 2}),
    (2, "host", {"resident": 1, "optimizer_tier": "disk"}),
    (3, "keep", {"resident": 0, "host_workers": 2, "clip": None}),
)


@pytest.mark.parametrize(
    ("name", "window", "policy", "changes"),
    [
        pytest.param(name, *setting, marks=[] if at == place else [pytest.mark.thorough])
        for at, name in enumerate(("gemma2", "llama", "gpt2"))
        for place, setting in enumerate(SETTINGS)
    ],
)
def test_stronghold(spec_for, model, tmp_path, name, window, policy, changes):
    spec = spec_for(model=model(name), window=window, activations=policy, eps=EPS, **changes)
    assert_equals_plain(spec, *run(stronghold, spec, tmp_path))


def test_routers_have_a_loss_of_every_micro_batch(spec_for, model, tmp_path):
    spec = spec_for(
        model=model("qwen2_moe"), window=2, activations="recompute", microbatches=2, eps=EPS
    )
    training, parameters = run(stronghold, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    assert training.model.couples == "the router's loss is of a micro-batch"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("gpt2", l2l),
        ("llama", resident),
        pytest.param("gpt2", resident, marks=pytest.mark.thorough),
        pytest.param("llama", l2l, marks=pytest.mark.thorough),
    ],
)
def test_others(spec_for, model, tmp_path, name, method):
    spec = spec_for(model=model(name), microbatches=2, eps=EPS)
    assert_equals_plain(spec, *run(method, spec, tmp_path))


def test_names_are_those_of_the_state_dict(spec_for, model, tmp_path):
    spec = spec_for(model=model("gpt2"), window=2, steps=1)
    _, parameters = run(stronghold, spec, tmp_path)
    theirs = transformers.GPT2LMHeadModel(CONFIGS["gpt2"]())
    assert parameters.keys() == dict(theirs.named_parameters()).keys()


@pytest.mark.parametrize(
    ("name", "method", "kinds", "changes"),
    [
        ("gemma3", stronghold, 2, {"window": 2, "resident": 1, "microbatches": 2}),
        ("qwen3", resident, 1, {"activations": "keep"}),
    ],
)
def test_blocks_of_a_kind_are_compiled_once(
    spec_for, model, tmp_path, counter, name, method, kinds, changes
):
    """With the method's exactness."""
    spec = spec_for(model=model(name), eps=EPS, **changes)
    assert_equals_plain(spec, *run(method, spec, tmp_path))
    passes = 1 if changes.get("activations") == "keep" else 2  # with autograd, and without
    assert counter.frame_count == kinds * passes


@pytest.mark.parametrize("method", [stronghold, l2l])
def test_equal_layers_of_a_users_module_are_compiled_once(spec_for, tmp_path, counter, method):
    """The graphs of the table of biases, which all blocks take, and of the head are not counted."""
    own = ModelSpec(family="tests.methods.biased:net", layers=4, hidden=16, vocab=3, tied=False)
    spec = spec_for(model=own, text="stdlib", microbatches=2)
    training, found = run(method, spec, tmp_path)
    assert_equals_plain(spec, training, found)
    assert len(training.model.repeated) > 2
    assert counter.frame_count == 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "method", "changes"),
    [
        ("llama", stronghold, {"window": 2, "resident": 1, "microbatches": 2}),
        ("gemma3", stronghold, {"window": 2, "resident": 0}),
        ("qwen3", l2l, {"microbatches": 4}),
    ],
)
def test_recordings_change_no_bit(model, tmp_path, name, method, changes, dtype):
    spec = plain.spec_for(
        model=model(name), device="cuda", dtype=dtype, steps=6, eps=EPS, replay="on", **changes
    )
    replayed, found = assert_recorded_alike(method, spec, tmp_path)
    if dtype == "fp32":
        assert_equals_plain(spec, replayed, found)


def recorded(method, spec, folder):
    """The training with recordings, and its parameters."""
    profile = on_gpu(plain.made_up_profile(spec))
    own = (Variant(name=RECORDED, seconds=(1e-6, 1e-6, 2e-6)),)
    units = tuple(replace(cost, variants=own) for cost in profile.units)
    replayed, found = trained_as(method, spec, replace(profile, units=units), folder)
    assert buffers.REPLAYS in replayed.plan.schedule.buffers
    return replayed, found


def assert_recorded_alike(method, spec, folder):
    """With recordings and without: equal to the bit."""
    replayed, found = recorded(method, spec, folder / "replayed")
    profile = on_gpu(plain.made_up_profile(spec))
    launched, expected = trained_as(method, spec.with_(replay="off"), profile, folder / "launched")
    assert replayed.history.losses == launched.history.losses
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    return replayed, found


@pytest.mark.parametrize(
    ("name", "can", "why"),
    [
        ("llama", True, ""),
        ("gemma2", True, ""),
        ("gpt2", False, "dropout draws anew in each step"),
        ("qwen2_moe", False, "what experts do follows values"),
    ],
)
def test_which_blocks_are_functions_of_their_input(model, name, can, why):
    assert make_model(model(name)).compilable is can, why


def test_layers_called_in_several_ways_are_refused_where_one_graph_is_for_all():
    seen = [((), {"scale": n // 2}) for n in range(4)]
    calls = Calls(lambda device: lambda x, positions: seen, "odd")
    x = torch.zeros(1, 2, 4)
    assert calls.common(x, [2, 3]) == ((), {"scale": 1})
    with pytest.raises(ValueError, match="odd .* of 2 tokens; compile and replay must be off"):
        calls.common(x, [1, 2])
