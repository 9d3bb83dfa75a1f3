"""A Hugging Face decoder cut into units computes what Hugging Face computes, with its own names."""

import builtins
import json

import pytest
import torch

from workbench.model import ModelSpec, make_model
from workbench.model.base import Context
from workbench.model.hf import HFModel
from workbench.model.hf_config import spec_from_config
from workbench.model.whole import make_whole

transformers = pytest.importorskip("transformers")

COMMON = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def config(name, **changes):
    if name == "gpt2":
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes = {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 32}
        return transformers.GPT2Config(**COMMON, **{**sizes, **drops, **changes})
    if name == "llama tied":
        return transformers.LlamaConfig(**COMMON, **LLAMA, tie_word_embeddings=True)
    if name == "gemma2":  # layers of two types, scaled embeddings, capped logits
        return transformers.Gemma2Config(
            **COMMON, **LLAMA, pad_token_id=0, head_dim=8, sliding_window=4
        )
    return transformers.LlamaConfig(**COMMON, **LLAMA, tie_word_embeddings=False)


def theirs(source, tokens, targets):
    """Their loss shifts labels by one, so it sees one token more."""
    source.zero_grad()
    text = torch.cat([tokens, targets[:, -1:]], dim=1)
    loss = source(text, labels=text).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in source.named_parameters()}


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama tied", "gemma2"])
def test_units_and_whole_equal_hugging_face(small, name):
    source = transformers.AutoModelForCausalLM.from_config(config(name))
    state = {key: value.clone() for key, value in source.state_dict().items()}
    model = HFModel(source)
    source.to(small.device)
    expected = theirs(source, small.tokens, small.targets)
    whole = make_whole(model, seed=0, device=small.device)
    small.assert_same(expected, small.run_whole(whole, small.tokens, small.targets))
    units = small.run_units(model, small.tokens, small.targets, small.samples)
    small.assert_same(expected, units)
    torch.testing.assert_close(whole(small.tokens), source(small.tokens).logits, rtol=0, atol=1e-6)
    assert whole.state_dict().keys() == state.keys()
    for key, value in source.state_dict().items():
        assert torch.equal(value.cpu(), state[key])
        assert torch.equal(value, whole.state_dict()[key])
    assert model.parameters_count() == source.num_parameters()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_configuration_file_is_enough(small, tmp_path, name):
    config(name).save_pretrained(tmp_path)
    spec = spec_from_config(tmp_path, seq=16)
    assert (spec.layers, spec.hidden, spec.heads, spec.seq, spec.vocab) == (3, 32, 4, 16, 61)
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    model = make_model(spec)
    before = torch.get_rng_state()
    whole = make_whole(model, seed=3, device=small.device)
    assert torch.equal(before, torch.get_rng_state())
    source = transformers.AutoModelForCausalLM.from_config(config(name)).to(small.device)
    source.load_state_dict(whole.state_dict())
    small.assert_same(
        theirs(source, small.tokens, small.targets),
        small.run_whole(whole, small.tokens, small.targets),
    )
    for unit in range(model.num_units):
        alone = dict(model.build(unit, seed=3).named_parameters())
        for local in model.shapes(unit):
            together = whole.state_dict()[model.state_name(unit, local)]
            assert torch.equal(alone[local], together.cpu())
    matrices = [p for n, p in whole.blocks[0].named_parameters() if p.dim() > 1]
    assert all(0.001 < p.std() < 0.05 for p in matrices)  # drawn, and apart
    assert not torch.equal(matrices[0], next(iter(whole.blocks[1].parameters())))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_bf16_equals_hugging_face_in_bf16(small, name):
    model = HFModel.from_config(config(name))
    whole = make_whole(model, seed=3, device=small.device, dtype=torch.bfloat16)
    source = transformers.AutoModelForCausalLM.from_config(config(name), dtype=torch.bfloat16)
    source.load_state_dict(whole.state_dict())
    assert torch.equal(whole(small.tokens), source.to(small.device)(small.tokens).logits)


def test_dropout_survives_recomputation_and_follows_its_key(small):
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.3)
    model = HFModel.from_config(config("gpt2", **drops))
    before = torch.get_rng_state()
    kept, recomputed = (
        small.run_units(model, small.tokens, small.targets, small.samples, recompute=recompute)
        for recompute in (False, True)
    )
    assert torch.equal(before, torch.get_rng_state())
    small.assert_same(kept, recomputed)
    whole = make_whole(model, seed=5, device=small.device)
    context = {"step": 2, "samples": small.samples}
    small.assert_same(kept, small.run_whole(whole, small.tokens, small.targets, **context))
    block, x = model.build(1, seed=5, device=small.device), torch.randn(1, 16, 32).to(small.device)
    key = {"seed": 5, "step": 2, "unit": 1, "samples": (8,)}
    others = [{}, {"seed": 6}, {"step": 3}, {"unit": 2}, {"samples": (9,)}]
    first, *rest = (model.forward(1, block, x, Context(**{**key, **other})) for other in others)
    assert not any(torch.equal(first, other) for other in rest)


def test_kinds_keep_unlike_layers_apart():
    gemma, llama = (HFModel.from_config(config(name)) for name in ("gemma2", "llama"))
    assert {llama.kind(unit) for unit in (1, 2, 3)} == {"block"}
    assert gemma.kind(1) == gemma.kind(3) != gemma.kind(2)
    by_number = HFModel.from_config(config("gpt2", scale_attn_by_inverse_layer_idx=True))
    assert by_number.kind(1) != by_number.kind(2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no configuration at '.*config.json'; name its folder"),
        ("{", "is not JSON"),
        ("[]", "is no Hugging Face configuration"),
        (
            '{"model_type": "no-such-model"}',
            "is of the model_type 'no-such-model', which transformers lacks",
        ),
        ('{"model_type": "gemma3"}', "is of a gemma3, which is no decoder of text alone: it has"),
    ],
)
def test_refuses_a_bad_configuration(tmp_path, content, sentence):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        spec_from_config(path)


def test_refuses_a_changed_configuration_and_too_long_samples(tmp_path):
    path = tmp_path / "config.json"
    config("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has 64 positions; samples of 65 tokens do not fit"):
        spec_from_config(path, seq=65)
    spec = spec_from_config(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.5}))
    with pytest.raises(ValueError, match="changed: its SHA-256 begins with"):
        make_model(spec)


def test_refuses_sizes_that_are_not_the_configuration_s(tmp_path):
    config("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="and the spec says 16 of 2048; --hf-config .in Python"):
        make_model(ModelSpec(family=str(tmp_path)))


def test_refuses_a_model_without_a_list_of_layers():
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "ffn_dim": 16,
             "word_embed_proj_dim": 16}  # fmt: skip
    with pytest.raises(ValueError, match="OPTForCausalLM cannot be cut into units"):
        HFModel.from_config(transformers.OPTConfig(**COMMON, **sizes))


def test_says_when_transformers_is_missing(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "transformers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="which is not installed"):
        HFModel.from_config(None)
