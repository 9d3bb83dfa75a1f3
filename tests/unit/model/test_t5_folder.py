"""A T5 of Hugging Face's, from its folder to our units and back: the same logits."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from baselines import plain
from tests.methods.harness import Silent
from tests.unit.model.test_t5 import rows
from workbench.cli import main
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.families import t5_shape
from workbench.model.hf_config import spec_from_config
from workbench.model.t5 import T5
from workbench.model.whole import make_whole
from workbench.runs.export import export
from workbench.runs.resolve import Keys
from workbench.runs.store import Store

transformers = pytest.importorskip("transformers")


def saved(folder, gated=False, **how):
    """A T5 of transformers' in a folder; a gated one, as version 1.1, has a head of its own."""
    config = transformers.T5Config(
        vocab_size=261, d_model=32, d_kv=12, d_ff=48, num_layers=3, num_decoder_layers=2,
        num_heads=4, dropout_rate=0.0, decoder_start_token_id=0, tie_word_embeddings=not gated,
        feed_forward_proj="gated-gelu" if gated else "relu",
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    if gated:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(261, 32))
    model.save_pretrained(folder, **how)
    return model


def assert_equal(spec, theirs):
    whole, (ids, mask, before, labels) = make_whole(make_model(spec), seed=1), rows()
    model = T5(t5_shape(spec))
    model.load_state_dict(whole.state_dict())
    expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels)
    assert (
        model(ids, mask, before) - expected.logits
    ).abs().max() <= 1e-5 * expected.logits.abs().max()
    loss = whole((ids, mask, before), labels, samples=range(len(ids)))
    torch.testing.assert_close(loss, expected.loss)
    return whole


@pytest.mark.parametrize("gated", [False, True])
def test_there_and_back(gated, tmp_path):
    theirs = saved(tmp_path, gated, max_shard_size="20KB")
    spec = spec_from_config(tmp_path, seq=150, target_seq=9)
    assert (spec.tied, spec.gated, spec.head_size, spec.target_seq) == (not gated, gated, 12, 9)
    assert_equal(spec, theirs)
    text = tmp_path / "text"
    text.write_text("a question\tan answer\n" * 9)
    small = {"tokenizer": "bytes", "batch": 2, "steps": 1, "lr": 1e-30, "weight_decay": 0.0}
    spec = RunSpec(method="plain", model=spec, text=str(text), save_every=1, device="cpu", **small)
    plain.train(spec, Silent(), tmp_path / "run")
    write_sealed(tmp_path / "run" / "spec.json", spec.to_dict())
    made = export(tmp_path / "run", tmp_path / "back", Store(tmp_path))
    assert made.parameters == theirs.num_parameters()
    back, told = transformers.T5ForConditionalGeneration.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(told.values()), told
    assert_equal(spec.model, back.eval())


def test_files_of_other_makers(tmp_path):
    theirs, file = saved(tmp_path).bfloat16().float(), tmp_path / "model.safetensors"
    spec = RunSpec(method="plain", model=spec_from_config(tmp_path, seq=150, target_seq=9))
    state, before = load_file(file), Keys().of(spec)
    state["encoder.embed_tokens.weight"] = state.pop("shared.weight")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    state[unused] = torch.zeros(32, 4)
    save_file({name: value.bfloat16() for name, value in state.items()}, file)
    assert_equal(spec.model, theirs)
    assert Keys().of(spec) != before


def test_refuses_other_folders(tmp_path, capsys):
    saved(tmp_path)
    config, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    words = ["run", "-m", "plain", "--results", str(tmp_path / "results")]
    state, sizes = load_file(file), json.loads(config.read_text())

    def told() -> str:
        assert main([*words, "--hf-config", str(tmp_path)]) == 2
        return capsys.readouterr().err

    save_file({n: v for n, v in state.items() if "encoder.block.1" not in n}, file)
    lacking = (
        "lacks tensors of a T5 of these sizes: 'encoder.block.1.layer.0.SelfAttention.k.weight'"
    )
    assert lacking in told()
    save_file(state, file)
    config.write_text(json.dumps(sizes | {"d_ff": 49}))
    assert "has tensors of another shape than the model: 'decoder.0.feed_forward.into" in told()
    config.write_text(json.dumps(sizes))
    file.write_bytes(b"no tensors at all")
    assert "model.safetensors is no whole file of safetensors" in told()
    file.rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is none of safetensors, and a pickle could run anything" in told()
    assert not (tmp_path / "results" / "runs").exists()
