"""A T5 of Hugging Face's, from its folder to our units and back: the same logits."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.model.test_t5 import rows
from workbench.cli import main
from workbench.core.model_spec import T5_FAMILY
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.families import t5_shape
from workbench.model.hf_config import spec_from_config
from workbench.model.t5 import T5
from workbench.model.t5_folder import save_folder
from workbench.model.whole import make_whole
from workbench.runs.resolve import Keys

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 3, "num_heads": 4,
    "num_decoder_layers": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip


def saved(folder, tied=True, gated=False, **how):
    torch.manual_seed(3)
    kind = "gated-gelu" if gated else "relu"
    config = transformers.T5Config(**SIZES, tie_word_embeddings=tied, feed_forward_proj=kind)
    model = transformers.T5ForConditionalGeneration(config).eval()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(61, 32))
    model.save_pretrained(folder, **how)
    return model


def assert_equal(whole, spec, theirs) -> None:
    """The undivided module under our names, and the loss of the units."""
    ids, mask, before, labels = rows()
    model = T5(t5_shape(spec))
    model.load_state_dict(whole.state_dict())
    expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels)
    logits = model(ids, mask, before)
    assert (logits - expected.logits).abs().max() <= 1e-5 * expected.logits.abs().max()
    loss = whole((ids, mask, before), labels, samples=range(len(ids)))
    torch.testing.assert_close(loss, expected.loss)


@pytest.mark.parametrize(("tied", "gated"), [(True, False), (False, True)])
def test_there_and_back(tied, gated, tmp_path):
    theirs = saved(tmp_path / "there", tied, gated, max_shard_size="20KB")
    assert len([*(tmp_path / "there").glob("*.safetensors")]) > 1
    spec = spec_from_config(tmp_path / "there", seq=150, target_seq=9)
    assert (spec.family, spec.pretrained) == (T5_FAMILY, str(tmp_path / "there"))
    assert (spec.tied, spec.gated, spec.head_size, spec.target_seq) == (tied, gated, 12, 9)
    model = make_model(spec)
    whole = make_whole(model, seed=1)
    assert_equal(whole, spec, theirs)
    save_folder(tmp_path / "back", whole.state_dict(), t5_shape(spec))
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    assert_equal(whole, spec, again)
    alone = model.build(3, seed=9)
    for name, parameter in alone.named_parameters():
        assert torch.equal(parameter, whole.units[3].get_parameter(name))


def test_files_of_other_makers(tmp_path):
    theirs = saved(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["encoder.embed_tokens.weight"] = state.pop("shared.weight")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    state[unused] = torch.zeros(32, 4)
    state = {name: value.bfloat16() for name, value in state.items()}
    save_file(state, tmp_path / "model.safetensors")
    theirs.bfloat16().float()
    spec = spec_from_config(tmp_path, seq=150, target_seq=9)
    assert_equal(make_whole(make_model(spec), seed=1), spec, theirs)


def test_refuses_other_folders(tmp_path, capsys):
    saved(tmp_path)
    config, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    results = tmp_path / "results"
    words = ["run", "-m", "plain", "--hf-config", str(tmp_path), "--results", str(results)]

    def told(*more: str) -> str:
        assert main([*words, *more]) == 2
        return capsys.readouterr().err

    state, sizes = load_file(file), json.loads(config.read_text())
    assert "beside --hf-config, whose file says them" in told("--layers", "3")
    save_file({n: v for n, v in state.items() if "encoder.block.1" not in n}, file)
    assert "'encoder.block.1.layer.0.SelfAttention.k.weight' is missing in" in told()
    save_file(state, file)
    config.write_text(json.dumps(sizes | {"d_ff": 49}))
    assert "has 'encoder.block.0.layer.1.DenseReluDense.wi.weight' of shape [48, 32]" in told()
    config.write_text(json.dumps(sizes | {"relative_attention_num_buckets": 16}))
    assert "relative_attention_num_buckets is 16; here it is 32" in told()
    config.write_text(json.dumps(sizes))
    file.write_bytes(b"no tensors at all")
    assert "model.safetensors is no file of safetensors" in told()
    file.rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is pickled and could run anything" in told()
    assert not spec_from_config(tmp_path, random=True).pretrained
    own = ["run", "-m", "plain", "--set", "family=t5", "--set", f"pretrained={tmp_path}"]
    assert main([*own, "--results", str(results)]) == 2
    assert "there are no *.safetensors in it" in capsys.readouterr().err
    assert not (results / "runs").exists()


def test_a_runs_key_changes_with_the_weights(tmp_path):
    saved(tmp_path)
    spec = RunSpec(method="plain", model=spec_from_config(tmp_path, seq=16))
    before = Keys().of(spec)
    assert before == Keys().of(spec)
    saved(tmp_path, gated=True)
    assert Keys().of(spec) != before
