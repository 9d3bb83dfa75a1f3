"""What people rely on of an exported decoder: transformers loads it, and it is what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from workbench.model.weights.stored import find
from workbench.runs.export import export
from workbench.runs.store import Store
from workbench.runtime.memory.storage import DTYPES

WRITTEN = 20
"""Tokens that a model writes."""


def assert_exported(
    run: Path, weights: Mapping[str, Tensor], out: Path, *, dtype: str, **how: str | int
) -> None:
    """The run's checkpoint, of these fp32 weights, becomes a folder of a type that is loaded
    without a complaint, and whose model gives equal logits and tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made = export(run, out, Store(out.parent / "none"), most="20KB", **how)
    assert (made.dtype, find(out).dtypes) == (dtype, dtype)
    assert made.files == len([*out.glob("*.safetensors")]) > 1
    config = AutoConfig.from_pretrained(out)
    assert config.dtype == DTYPES[dtype]
    how_read = {"dtype": torch.float32, "output_loading_info": True}
    loaded, told = AutoModelForCausalLM.from_pretrained(out, **how_read)
    assert not any(told.values()), told
    expected = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    rounded = {name: weight.to(DTYPES[dtype]) for name, weight in weights.items()}
    lacking = expected.load_state_dict(rounded, strict=False)
    assert not lacking.unexpected_keys
    assert {*lacking.missing_keys} <= {*expected.all_tied_weights_keys}
    assert made.parameters == expected.num_parameters()
    ids, both = torch.arange(8).view(2, 4) * 7, [loaded.eval(), expected.eval()]
    writes = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False}
    with torch.no_grad():
        assert torch.equal(*(model(ids).logits for model in both))
        assert torch.equal(*(model.generate(ids, **writes) for model in both))
