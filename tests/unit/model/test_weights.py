"""Files of weights: what is read, and what is refused from headers alone."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.methods.test_weights import CONFIGS
from workbench.cli import main
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.hf_config import spec_from_config
from workbench.model.weights.stored import find
from workbench.model.whole import make_whole
from workbench.runs.inputs import check_weights
from workbench.runs.resolve import resolve
from workbench.runs.store import Store

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Qwen3 of three files and an index."""
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["qwen3"]())
    model.save_pretrained(tmp_path / "there", max_shard_size="60KB")
    return tmp_path / "there"


def change(file: Path, **tensors: torch.Tensor | None) -> None:
    found = load_file(file) | tensors
    save_file({name: t for name, t in found.items() if t is not None}, file)


def index(folder: Path, **names: str) -> None:
    file = folder / "model.safetensors.index.json"
    told = json.loads(file.read_text())
    told["weight_map"] |= names
    file.write_text(json.dumps(told))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def unsound(file: Path) -> None:
    """Its header says another type of a tensor than its bytes have."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    file.write_bytes(
        data[:8] + data[8 : 8 + length].replace(b"F32", b"F64", 1) + data[8 + length :]
    )


def name_in(folder: Path, place: int = 0) -> str:
    return sorted(load_file(folder / SHARD))[place]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: change(f / SHARD, **{name_in(f): None}), "index.json names tensors that its"),
        (
            lambda f: change(f / SHARD, more=torch.ones(2)),
            "has tensors that the model lacks: 'more'",
        ),
        (
            lambda f: change(f / SHARD, **{name_in(f): torch.ones(3, 5)}),
            "has tensors of another shape than the model",
        ),
        (
            lambda f: change(f / SHARD, **{name_in(f): torch.ones(2, dtype=torch.int8)}),
            "holds quantized weights",
        ),
        (lambda f: cut(f / SHARD), f"{SHARD} is cut off or damaged: by its header it has"),
        (lambda f: unsound(f / SHARD), f"{SHARD} is damaged: its header says"),
        (lambda f: (f / SHARD).write_bytes(b"<html>"), f"{SHARD} is no whole file of safetensors"),
        (lambda f: (f / SHARD).unlink(), f"index.json names '{SHARD}', and there is no such file"),
        (lambda f: index(f, x="../x.safetensors"), "index.json names '../x.safetensors'; it must"),
        (lambda f: index(f, x="model.bin"), "index.json names 'model.bin'; it must name files"),
    ],
)
def test_spoilt_folders_are_one_sentence_and_nothing_is_written(folder, spoil, words, capsys):
    spoil(folder)
    results = folder.parent / "results"
    how = ["--hf-config", str(folder), "--seq", "16", "--results", str(results)]
    assert main(["run", "-m", "plain", *how]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (results / "runs").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors.index.json", "holds no weights; name its folder, or a file"),
        ("model-Q4.gguf", "is none of safetensors: where you trust it, write the model"),
        ("net.pt", "is none of safetensors, and a pickle could run anything"),
        ("step-00000002", "is a checkpoint of its engine's own form; workbench export writes its"),
    ],
)
def test_files_of_other_forms_are_told_apart(tmp_path, name, words):
    (tmp_path / name).mkdir() if name.startswith("step") else (tmp_path / name).touch()
    with pytest.raises(ValueError, match=words):
        find(tmp_path if name.startswith("step") else tmp_path / name)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hidden_size", 64, "has tensors of another shape than the model"),
        ("num_hidden_layers", 4, "lacks tensors of the model: 'model.layers.3."),
        ("num_hidden_layers", 2, "has tensors that the model lacks: 'model.layers.2."),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "is of quantized weights"),
    ],
)
def test_weights_of_another_configuration_are_told_by_three_names(folder, name, value, words):
    config = folder / "config.json"
    told = json.loads(config.read_text()) | {name: value}
    del told["layer_types"]
    config.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=words) as refusal:
        make_model(spec_from_config(folder)).trained.check()
    assert name == "quantization_config" or re.search(
        r"('[^']+',? ){3}and \d+ more", str(refusal.value)
    )


def test_masks_and_tables_that_older_folders_hold_are_left_out(tmp_path):
    sizes = {"vocab_size": 99, "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 8}
    config = transformers.GPTNeoXConfig(**sizes, **heads)
    model = transformers.AutoModelForCausalLM.from_config(config).half()
    model.save_pretrained(tmp_path)
    more = {"bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8), "rotary_emb.inv_freq": torch.ones(2)}
    names = {f"gpt_neox.layers.0.attention.{name}": tensor for name, tensor in more.items()}
    change(tmp_path / "model.safetensors", **names)
    made = make_model(spec_from_config(tmp_path, seq=8))
    made.trained.check()
    read = make_whole(made, seed=0).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(read[name], tensor.float()), name


def test_a_run_tells_which_weights_it_begins_from_and_how_unlike_them_it_reads(folder, tmp_path):
    def told(**changes) -> list[str]:
        model = spec_from_config(folder, seq=8)
        spec = RunSpec(method="plain", model=model, **changes)
        return check_weights([resolve(spec)], Store(tmp_path / "results"))

    (line,) = told()
    assert re.fullmatch(rf"weights: [\d,]+ parameters from {folder} \(3 files, fp32\)", line)
    (folder / "tokenizer.json").touch()
    as_bytes = f"text: read as bytes; --tokenizer {folder} reads it as these weights know it"
    assert told() == [line, as_bytes]
    assert told(tokenizer=str(folder)) == [line]
    assert told(weights="random") == [f"weights: random, whatever {folder} has"]
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    assert told() == [f"weights: random, since {folder} has none"]


def test_a_head_may_be_stored_alone_or_twice_but_not_with_other_values(folder):
    """Links, as a cache of downloads has them, are followed."""
    (blobs := folder.parent / "blobs").mkdir()
    for file in folder.glob("*.safetensors"):
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)
    spec = spec_from_config(folder)
    wanted = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    table = wanted["model.embed_tokens.weight"]
    file = next(f for f in blobs.iterdir() if "model.embed_tokens.weight" in load_file(f))

    def loaded() -> dict[str, torch.Tensor]:
        return make_whole(make_model(spec), seed=0).state_dict()

    assert all(torch.equal(value, wanted[name]) for name, value in loaded().items())
    change(file, **{"lm_head.weight": table.clone()})
    assert torch.equal(loaded()["lm_head.weight"], table)
    change(file, **{"lm_head.weight": 2 * table})
    with pytest.raises(ValueError, match="other values in 'lm_head.weight' than in 'model.embed_t"):
        loaded()
    (folder / "model.safetensors.index.json").unlink()
    change(file, **{"lm_head.weight": table.clone(), "model.embed_tokens.weight": None})
    assert torch.equal(loaded()["model.embed_tokens.weight"], table)
