"""Models without a formula are counted, and so are planned without being measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench import cli
from workbench.model import ModelSpec, make_model
from workbench.model.families import EXAMPLE, blank_rows
from workbench.model.hf_config import spec_from_config
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.profile.measure import kind_costs
from workbench.published.hardware import machine, profile

BERT = ModelSpec(family="bert", layers=3, hidden=32, heads=4, seq=32, vocab=300)
VGG = ModelSpec(family="vgg", layers=5, hidden=8, heads=4, seq=32, vocab=10)
RESNET = ModelSpec(family="resnet", layers=4, hidden=16, heads=4, seq=32, vocab=10)
SIZES = ("-l", "5", "--hidden", "32", "--heads", "4", "--vocab", "300")
FLAGS = ("--seq", "32", "-b", "4", "--ranks", "2", "--machine", "v100-32gb")


@pytest.mark.parametrize("spec", [BERT, VGG, RESNET], ids=lambda spec: spec.family)
def test_counts_are_what_is_measured(spec):
    """Bytes that autograd keeps, of all layers together; and sizes exactly, layer by layer."""
    model, found = make_model(spec), profile("v100-32gb", spec, EXAMPLE)
    *inputs, targets = blank_rows(spec, EXAMPLE)
    how = {"seq": spec.seq, "dtype": "fp32", "device": "cpu"}
    measured, _ = kind_costs(Setting.of(model, tuple(inputs), targets, **how))
    assert len(found.units) == spec.units
    for unit, cost in enumerate(found.units):
        real = measured[cost.kind]
        assert cost.parameters == real.parameters == model.unit_parameters(unit)
        assert cost.input_bytes == real.input_bytes
        if unit != model.head:
            assert cost.output_bytes == real.output_bytes
        assert cost.flops == real.flops
        assert cost.forward_s > 0
    kept = sum(cost.kept_bytes for cost in found.units)
    assert kept == pytest.approx(sum(measured[c.kind].kept_bytes for c in found.units), rel=0.25)
    assert found.hardware == machine()
    assert spec.family in found.note


def test_experts_in_fp32_are_counted_as_they_are_weighed(tmp_path):
    """Torch refuses their grouped products without values, in all types but bfloat16."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    transformers.MixtralConfig(**sizes, **heads, num_local_experts=4).save_pretrained(tmp_path)
    spec = spec_from_config(tmp_path, seq=32)
    *inputs, targets = blank_rows(spec, 2)
    how = {"seq": spec.seq, "dtype": "fp32", "device": "cpu"}
    setting = Setting.of(make_model(spec), tuple(inputs), targets, **how)
    counted, weighed = (footprints(setting, fake=fake)[0] for fake in (True, False))
    assert counted.keys() == weighed.keys()
    for kind, fields in weighed.items():
        assert counted[kind]["kept_bytes"] == pytest.approx(fields["kept_bytes"], rel=0.05), kind


def configuration(folder: Path) -> str:
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gpt2", "n_layer": 5, "n_head": 4, "n_embd": 32, "n_positions": 32,
                "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0,
                "architectures": ["GPT2LMHeadModel"],
            }
        )
    )  # fmt: skip
    return str(folder / "config.json")


def planned(capsys, method: str, words: list[str], folder: Path) -> dict:
    results = ["--results", str(folder), "--json"]
    assert cli.main(["plan", "-m", method, *FLAGS, *words, *results]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("method", ["harmony-pp", "dp-swap", "stronghold"])
@pytest.mark.parametrize("family", ["bert", "vgg", "resnet"])
def test_modules_are_planned_before_anything_is_measured(method, family, tmp_path, capsys):
    ranks = ["--ranks", "1"] if method == "stronghold" else []
    found = planned(capsys, method, [*SIZES, "--set", f"family={family}", *ranks], tmp_path)
    assert found["fits"]
    assert found["profile"] == "published"
    assert found["step_seconds"] > 0
    assert f"what the layers of {family} need was counted" in found["basis"]


@pytest.mark.parametrize("method", ["harmony-pp", "pp-swap", "stronghold"])
def test_a_hugging_face_decoder_costs_about_what_a_gpt_does(method, tmp_path, capsys):
    pytest.importorskip("transformers")
    ranks = ["--ranks", "1"]
    theirs = ["--hf-config", configuration(tmp_path), *ranks]
    found = planned(capsys, method, theirs, tmp_path)
    gpt = planned(capsys, method, [*SIZES, *ranks], tmp_path)
    assert found["step_seconds"] == pytest.approx(gpt["step_seconds"], rel=0.1)
    assert found["peak_bytes"]["device"] == pytest.approx(gpt["peak_bytes"]["device"], rel=0.1)


def test_a_method_without_modules_says_so(tmp_path, capsys):
    words = ["plan", "-m", "zero-offload", "--set", "family=vgg", "--results", str(tmp_path)]
    assert cli.main(words) == 2
    assert "zero-offload trains decoders only, and the model is a vgg" in capsys.readouterr().err
