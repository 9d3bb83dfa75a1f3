"""Decoders of Hugging Face, dense and of experts: units equal the author's module to the bit."""

import pytest
import torch

from workbench.cli.layers import looked_at
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.model.base import Context, set_parameter
from workbench.model.hf import HFModel
from workbench.model.hf_config import spec_from_config
from workbench.model.whole import make_whole
from workbench.runs.inputs import check_inputs
from workbench.runs.store import Store
from workbench.training.compared import notes_of

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GPT = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16}
GPT |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
LLAMA = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 16,
         "head_dim": 8}  # fmt: skip
NO_DIM = {key: value for key, value in LLAMA.items() if key != "head_dim"}  # a property there
SLIDING = LLAMA | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
ROUTED = {"num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.3}
LOCAL = LLAMA | ROUTED | {"num_local_experts": 4}
OWN = LLAMA | ROUTED | {"num_experts": 4, "moe_intermediate_size": 16}
DENSE_FIRST = LLAMA | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
                       "moe_intermediate_size": 16, "first_k_dense_replace": 1}  # fmt: skip

DENSE = {
    **dict.fromkeys(("apertus", "arcee", "bitnet", "gemma", "glm", "glm4", "granite"), LLAMA),
    **dict.fromkeys(("llama", "mistral", "olmo", "olmo2", "qwen2", "qwen3", "cohere"), LLAMA),
    **dict.fromkeys(("nemotron", "phi", "phi3", "stablelm", "gpt_neox"), NO_DIM),
    **dict.fromkeys(("gemma2", "gemma3_text", "cohere2", "olmo3"), SLIDING),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), GPT),
    "gptj": GPT | {"rotary_dim": 4},
    "diffllama": LLAMA,
    "smollm3": LLAMA | {"no_rope_layers": [1, 0]},
    "gpt_neo": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "max_position_embeddings": 16,
                "window_size": 4, "attention_types": [[["global", "local"], 1]],
                "attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0},
}  # fmt: skip
EXPERTS = {
    **dict.fromkeys(("mixtral", "granitemoe", "phimoe"), LOCAL),
    "qwen2_moe": OWN | {"decoder_sparse_step": 2, "shared_expert_intermediate_size": 16},
    "qwen3_moe": OWN | {"mlp_only_layers": [0]},
    "olmoe": OWN,
    "gpt_oss": LOCAL | SLIDING,
    "ernie4_5_moe": NO_DIM | ROUTED | {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1,
                                       "moe_intermediate_size": 16, "moe_num_shared_experts": 1},
    "hunyuan_v1_moe": OWN | {"moe_topk": 2},
    "glm4_moe": DENSE_FIRST,
    "dots1": DENSE_FIRST,
    "minimax": LOCAL | {"layer_types": ["linear_attention", "full_attention"], "block_size": 4},
    "jamba": OWN | {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2,
                    "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 4,
                    "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "jetmoe": LOCAL | {"kv_channels": 8, "num_key_value_heads": 2, "aux_loss_coef": 0.3},
    "doge": OWN | {"is_moe": True, "num_experts": 16},
    "afmoe": OWN | SLIDING | {"num_dense_layers": 1},
    "aria_text": NO_DIM | {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
}  # fmt: skip
BY_NUMBER = {"gemma2", "gemma3_text", "cohere2", "olmo3", "diffllama", "smollm3", "gpt_neo"}
BY_NUMBER |= {"qwen2_moe", "qwen3_moe", "gpt_oss", "ernie4_5_moe", "glm4_moe", "dots1", "minimax"}
BY_NUMBER |= {"afmoe"}
"""Whose two layers are unlike."""

TEXT = torch.randint(1, 64, (2, 9), generator=torch.Generator().manual_seed(1))
TOKENS, TARGETS = TEXT[:, :-1].contiguous(), TEXT[:, 1:].contiguous()
SAMPLES = (6, 7)
CONTEXT = Context(seed=3, step=2, unit=0, samples=SAMPLES)


def config(name, **changes):
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    numbers = SMALL | (DENSE | EXPERTS)[name] | changes
    return transformers.AutoConfig.for_model(name, **numbers)


def learned(module, run, *args, **kwargs):
    """Loss and gradients; what nothing flows to has none in torch, and zeros here."""
    module.zero_grad()
    made = run(*args, **kwargs)
    loss = getattr(made, "loss", made)
    loss.backward()
    found = {name: p.grad for name, p in module.named_parameters()}
    return loss.detach(), {name: g for name, g in found.items() if g is not None and g.any()}


def assert_equal(ours, theirs):
    assert torch.isfinite(ours[0])
    assert torch.equal(ours[0], theirs[0])
    assert ours[1].keys() == theirs[1].keys()
    assert not [name for name, g in ours[1].items() if not torch.equal(g, theirs[1][name])]


def lend_modules(model, whole):
    """Run each unit, as runtimes do, in a module of the first unit of its kind."""
    first = {model.kind(unit): unit for unit in reversed(range(model.num_units))}
    for unit, own in enumerate(whole.units):
        whole.units[unit] = model.skeleton(first[model.kind(unit)])
        for name, p in own.named_parameters(remove_duplicate=False):
            set_parameter(whole.units[unit], name, p)


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_units_and_the_module_as_written_equal_hugging_face(name):
    source = transformers.AutoModelForCausalLM.from_config(config(name)).train()
    call = {"labels": TARGETS, "shift_labels": TARGETS, "use_cache": False}
    try:
        learned(source, source, TOKENS, **call)
    except (AttributeError, TypeError) as error:
        pytest.skip(f"this transformers cannot train it itself: {error}")
    model = HFModel.from_config(config(name))
    whole = make_whole(model, seed=3)
    for path, buffer in whole.named_buffers():
        assert torch.equal(buffer, source.get_buffer(path)), path
    source.load_state_dict(whole.state_dict(), strict=False)
    theirs = learned(source, source, TOKENS, **call)
    written = model.as_written(whole.units)
    lend_modules(model, whole)
    assert_equal(learned(whole, whole, TOKENS, TARGETS, step=2, samples=SAMPLES), theirs)
    assert_equal(learned(whole, written, TOKENS, TARGETS, CONTEXT), theirs)
    kinds = [model.kind(unit) for unit in range(1, model.head)]
    assert len(set(kinds)) == (3 if name == "jamba" else 2 if name in BY_NUMBER else 1)
    routed = getattr(source(TOKENS), "aux_loss", None) is not None
    assert (model.couples == "the router's loss is of a micro-batch") == routed


def test_random_numbers_are_those_of_units_when_the_module_runs_as_written():
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.3)
    for changes in ({"name": "gpt2", **drops}, {"name": "phimoe", "router_jitter_noise": 0.9}):
        model = HFModel.from_config(config(**changes))
        whole = make_whole(model, seed=3)
        again = make_whole(model, seed=3, checkpoint=True)
        units = learned(whole, whole, TOKENS, TARGETS, step=2, samples=SAMPLES)
        assert_equal(learned(again, again, TOKENS, TARGETS, step=2, samples=SAMPLES), units)
        before = torch.get_rng_state()
        for checkpoint in (False, True):
            written = model.as_written(whole.units, checkpoint=checkpoint)
            assert_equal(learned(whole, written, TOKENS, TARGETS, CONTEXT), units)
        assert torch.equal(before, torch.get_rng_state())
        other = Context(seed=3, step=4, unit=0, samples=SAMPLES)
        assert not torch.equal(written(TOKENS, TARGETS, other), units[0])
        quiet = Context(seed=3, step=2, unit=0, samples=SAMPLES, training=False)
        assert torch.equal(written(TOKENS, None, quiet), whole.eval()(TOKENS))
        assert "random numbers" in model.couples or changes["name"] == "phimoe"


def test_what_the_author_does_not_train_stays_and_experts_count_as_they_are_visited():
    model = HFModel.from_config(config("afmoe"))
    frozen = "mlp.expert_bias"
    assert frozen in model.shapes(2)
    assert not model.decays(2, frozen)
    few, all_four = (
        HFModel.from_config(config("mixtral", num_experts_per_tok=k)).flops(1, 1, 8) for k in (2, 4)
    )
    experts = sum(
        s.numel() for s in HFModel.from_config(config("mixtral")).shapes(1).values() if len(s) > 2
    )
    assert all_four - few == 2 * 8 * experts / 2


@pytest.mark.parametrize("name", ["apertus", "gemma2", "gpt2", "llama", "mixtral", "phi3", "qwen3"])
def test_of_a_large_vocabulary_few_words_are_compared(name):
    """Loss and gradients of the layers with them are those of the module with them; numbers that a
    constructor gave are there too."""
    more = {"tie_word_embeddings": name == "qwen3", "vocab_size": 5000}
    spec, model = ModelSpec(family="a.json", seq=8), HFModel.from_config(config(name, **more))
    (told,) = notes_of(spec, model, (TOKENS % 2, TARGETS % 2), 0)
    assert told.endswith("layers, which show every kind, with 1,024 of its words")
    assert (model.vocab, model.shortened().vocab) == (5000, 1024)
    assert model.shortened().tied() == model.tied()


def test_what_cannot_be_cut_or_run_is_refused_when_the_model_is_made():
    def refused(sentence, name, spoil):
        module = transformers.AutoModelForCausalLM.from_config(config(name))
        spoil(module)
        with pytest.raises(ValueError, match=sentence):
            HFModel(module)

    refused(
        "MixtralForCausalLM cannot be cut into units: layer 1 does not run alone: ",
        "mixtral",
        lambda m: setattr(m.model.layers[1].self_attn, "o_proj", torch.nn.Linear(7, 32)),
    )
    refused(
        "adds a loss of its routers .* it trains with output_router_logits false",
        "mixtral",
        lambda m: delattr(m, "router_aux_loss_coef"),
    )
    refused(
        "its layers are given more than hidden states that weights shape",
        "llama",
        lambda m: setattr(m.model.rotary_emb, "forward", lambda x, position_ids: (x, x)),
    )


def test_a_decoder_that_norms_elsewhere_is_refused_before_anything_is_written(tmp_path):
    """NanoChat norms what its first layer gets, by the same module that norms at its end."""
    if "nanochat" not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers has no nanochat")
    transformers.AutoConfig.for_model("nanochat", **SMALL | LLAMA).save_pretrained(tmp_path)
    spec = spec_from_config(tmp_path)
    sentence = "it changes hidden states beside its layers and its final norm"
    with pytest.raises(ValueError, match=sentence):
        looked_at(spec)
    with pytest.raises(ValueError, match=sentence):
        check_inputs([RunSpec(method="plain", model=spec)], Store(tmp_path))
