"""An engine begins from a folder, or from a module in bf16, and writes a folder: as torch's loop
over `from_pretrained` and `save_pretrained` do."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn

from tests.methods.loops import CLIP, LR, WAYS, by_torch, distance, near, normed, of_outputs
from tests.methods.test_weights import CONFIGS
from workbench import Engine
from workbench.model import objective
from workbench.model.postponed import Postponed
from workbench.model.weights.converted import Converted
from workbench.model.weights.mapped import mapped
from workbench.model.weights.stored import find

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
META = torch.device("meta")
ADAM = {"lr": LR, "eps": 1e-4}
"""Gradients that are roundings alone, as of a key's bias, change next to nothing."""
WAY = {"stronghold": {}, "harmony-pp": {}, "fsdp": {}, **WAYS}


@pytest.fixture
def folder(tmp_path):
    """Writes a folder of a model in some dtype, whose norms are no ones."""

    def write(name: str, dtype: torch.dtype) -> str:
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.05)
        model.to(dtype).save_pretrained(tmp_path / "in", max_shard_size="20KB")
        return str(tmp_path / "in")

    return write


def given(rows: tuple[int, ...] = (4, 4, 3)) -> list[dict[str, torch.Tensor]]:
    """Batches of tokens, some of whose labels do not count; the last one is smaller."""
    generator = torch.Generator().manual_seed(1)
    every = []
    for count in rows:
        ids = torch.randint(250, (count, 8), generator=generator)
        first = torch.arange(8) < torch.randint(6, (count, 1), generator=generator)
        every.append({"input_ids": ids, "labels": ids.masked_fill(first, -100)})
    return every


def steps(made: Engine, batches: list) -> list[float]:
    return [made.step(batch, of_outputs) for batch in batches]


@pytest.mark.parametrize(
    ("name", "dtype", "method"),
    [
        ("llama", torch.bfloat16, "stronghold"),
        ("qwen3", torch.bfloat16, "l2l"),
        ("gemma3", torch.float32, "plain"),
        ("gpt2", torch.float32, "varuna"),
        pytest.param("phi3", torch.bfloat16, "harmony-pp", marks=pytest.mark.thorough),
        pytest.param("gemma2", torch.float32, "fsdp", marks=pytest.mark.thorough),
    ],
)
def test_a_folder_goes_in_and_out_as_by_torchs_loop(
    engine, folder, tmp_path, monkeypatch, name, dtype, method
) -> None:
    """A model without values trains, with `use_cache` as it comes, a smaller last batch, and logits
    that are divided as those of a large head."""
    path, read, out = folder(name, dtype), transformers.AutoModelForCausalLM, tmp_path / "out"
    batches = given((4, 4, 4) if method == "varuna" else (4, 4, 3))
    theirs = read.from_pretrained(path, dtype=torch.float32)
    wanted, weights = by_torch(theirs, batches, of_outputs, **ADAM)
    with META:
        model = read.from_config(transformers.AutoConfig.from_pretrained(path))
    there, divided = alive(monkeypatch), in_parts(monkeypatch)
    how = WAY[method] | {"activations": "auto"}
    with engine(method, model, ADAM, weights=path, **how) as made:
        before = made.state_dict()
        stored = read.from_pretrained(path, dtype=torch.float32).state_dict()
        assert before.keys() == stored.keys()
        assert all(torch.equal(before[name], value) for name, value in stored.items())
        there["most"] = 0
        assert steps(made, batches) == pytest.approx(wanted, rel=1e-6)
        if method in ("stronghold", "l2l"):  # units are written one by one
            assert 0 < there["most"] < sum(p.numel() for p in model.parameters()) * 2
        assert bool(divided) == (method != "varuna")
        near(found := made.state_dict(), weights)
        assert made.evaluate(batches[-1:], of_outputs)["samples"] == len(batches[-1]["labels"])
        made.export(out)
        with pytest.raises(ValueError, match="is not empty; name a new"):
            made.export(out)
    assert all(p.is_meta for p in model.parameters())
    again, told = read.from_pretrained(out, output_loading_info=True)
    assert not any(told.values()), told
    assert again.dtype == dtype
    for name, value in again.state_dict().items():
        assert torch.equal(value, found[name].to(dtype)), name


def alive(monkeypatch) -> dict[str, int]:
    """Counts bytes of tensors that were read from files and are still there, and the most."""
    told, read = {"now": 0, "most": 0}, Converted.read

    def counted(self: Converted, name: str) -> torch.Tensor:
        found = read(self, name)
        told["now"] += found.nbytes
        told["most"] = max(told.values())
        weakref.finalize(found, lambda size: told.update(now=told["now"] - size), found.nbytes)
        return found

    monkeypatch.setattr(Converted, "read", counted)
    return told


def in_parts(monkeypatch) -> list[Postponed]:
    """All heads of which a loss was told in parts, from no bytes on."""
    told: list[Postponed] = []

    class Noted(Postponed):
        def __init__(self) -> None:
            super().__init__(0)

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            told.extend([self] * (self.divided > 0))

    monkeypatch.setattr(objective, "Postponed", Noted)
    return told


@pytest.mark.parametrize("method", ["stronghold", "varuna"])
def test_a_module_in_bf16_has_exact_masters_and_may_give_its_memory_back(
    engine, tmp_path, method
) -> None:
    """A module that is not of Hugging Face's, with BatchNorm; loaded once more from its folder."""
    module, data = normed()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    theirs = copy.deepcopy(module.bfloat16()).float()
    wanted, weights = by_torch(theirs, data, distance)
    rest = {"microbatches": 1, "activations": "auto"}
    with engine(method, module, {"lr": LR}, release=True, **rest) as made:
        assert {t.dtype for t in made.state_dict().values()} == {torch.float32, torch.int64}
        assert [made.step(pair, distance) for pair in data] == pytest.approx(wanted, rel=1e-6)
        near(found := made.state_dict(), weights)
        assert all(p.is_meta for p in module.parameters())
        module.load_state_dict(found, assign=True)
        made.step(data[0], distance)
        made.export(tmp_path / "out", dtype="fp32")
        after = made.state_dict()
    entries = find(tmp_path / "out").entries
    assert {name: mapped(entry).tolist() for name, entry in entries.items()} == {
        name: value.tolist() for name, value in after.items()
    }
    with META:
        bare, _ = normed()
    with engine(method, bare, {"lr": LR}, weights=tmp_path / "out", **rest) as made:
        assert all(torch.equal(value, after[name]) for name, value in made.state_dict().items())


def test_what_does_not_fit_is_one_sentence(folder, tmp_path) -> None:
    path = folder("llama", torch.float32)
    with META:
        other = transformers.AutoModelForCausalLM.from_config(CONFIGS["qwen3"]())
        gained = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
    for words, module, weights in (
        (
            "parameter 'model.embed_tokens.weight' of the model is on the meta .* weights=",
            other,
            None,
        ),
        (r"in lacks tensors of the model: 'model.layers.0.self_attn.k_norm", other, path),
        ("in has tensors that the model lacks: 'lm_head.weight'", gained, path),
        ("there are no weights at", gained, tmp_path / "none"),
    ):
        with pytest.raises(ValueError, match=words):
            Engine(
                module,
                {
                    "lr": LR,
                },
                clip=CLIP,
                weights=weights,
            )
