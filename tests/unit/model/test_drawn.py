"""Folders of random weights, made without a model in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import folder as made_by_command
from tests.methods.test_weights import CONFIGS
from workbench.model import make_model
from workbench.model.hf_config import spec_from_config
from workbench.model.weights.drawn import write_random
from workbench.model.weights.stored import find
from workbench.model.whole import make_whole

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_from_pretrained_finds_what_a_run_would_draw(name, tmp_path: Path) -> None:
    """In several files, tied or not, experts fused or not; each value rounded to bf16."""
    CONFIGS[name]().save_pretrained(tmp_path / "config")
    made = write_random(tmp_path / "config", tmp_path / "out", seed=3, most="30KB")
    stored = find(tmp_path / "out")
    assert made.files == len([*(tmp_path / "out").glob("*.safetensors")]) > 1
    assert stored.dtypes == "bf16"
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(told.values()), told
    drawn = make_whole(make_model(spec_from_config(tmp_path / "config")), seed=3).state_dict()
    theirs = dict(loaded.named_parameters(remove_duplicate=False))
    assert made.parameters == sum(p.numel() for p in loaded.parameters())
    for label, tensor in drawn.items():
        assert torch.equal(theirs[label].float(), tensor.bfloat16().float()), label


def test_equal_layers_are_drawn_once_where_they_may_be_alike(tmp_path: Path) -> None:
    CONFIGS["qwen3"]().save_pretrained(tmp_path / "config")
    words = [str(tmp_path / "config"), str(tmp_path / "out")]
    assert made_by_command.main([*words, "--alike"]) == 0
    loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
        words[1], output_loading_info=True
    )
    assert not any(told.values()), told
    first, second = (layer.mlp.up_proj.weight for layer in loaded.model.layers[:2])
    assert torch.equal(first, second)
    assert first.std() > 0


def test_the_command_refuses_in_one_sentence(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    assert made_by_command.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert made_by_command.main([str(tmp_path), str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "'nothing', which transformers lacks" in first
    assert "is not empty" in second
    assert not (tmp_path / "out").exists()
