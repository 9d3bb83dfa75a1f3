"""Folders of Hugging Face's decoders are as transformers writes them, whatever the decoder."""

from __future__ import annotations

import pytest
import torch

from tests.unit.model.test_hf_decoders import DENSE, EXPERTS, config
from workbench.model.hf import HFModel
from workbench.model.weights.folder import new_folder, write_folder
from workbench.model.weights.mapped import mapped
from workbench.model.weights.outgoing import Outgoing, Weights
from workbench.model.weights.stored import find

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

QUICK = ("glm4_moe", "gpt_oss", "jamba", "qwen3_moe")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough])
        for name in (*DENSE, *EXPERTS)
    ],
)
def test_a_decoder_is_loaded_without_a_complaint(name, tmp_path):
    """Units go to the disk one by one, as all would go at once."""
    model = HFModel.from_config(config(name))
    theirs = transformers.AutoModelForCausalLM.from_config(config(name)).float()
    for buffer, tensor in model.source.named_buffers():
        theirs.get_buffer(buffer).copy_(tensor)
    state = theirs.state_dict()
    groups = [
        [model.state_name(unit, local) for local in model.shapes(unit)]
        for unit in range(model.num_units)
    ]
    weights = Weights(
        shapes={name: state[name].shape for group in groups for name in group},
        parameters=model.parameters_count(),
        groups=groups,
        read=lambda names: {name: state[name].detach().clone() for name in names},
    )
    target = new_folder(tmp_path / "ours")
    write_folder(target, weights, model.source, torch.float32, most="20KB")
    auto = transformers.AutoModelForCausalLM
    loaded, told = auto.from_pretrained(target, output_loading_info=True)
    assert not any(told.values()), told
    for key, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    ours, expected = (find(folder).entries for folder in (target, tmp_path / "theirs"))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(mapped(ours[key]), mapped(entry)) for key, entry in expected.items())
    assert Outgoing(weights.shapes, groups, model.source, torch.float32).groups == groups
