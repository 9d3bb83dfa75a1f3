"""Who owns what, and state dicts in and out under the model's own names."""

from __future__ import annotations

import pytest
import torch

from tests.unit.model.decompose.checks import gather, run, scatter, tensors
from tests.unit.model.decompose.zoo import MODELS
from workbench.model.decompose import UNREAD, decompose


def chain_of(name):
    torch.manual_seed(0)
    kind, make = MODELS[name]
    model, (args, kwargs) = kind(), make(4)
    return model, decompose(model, args, kwargs)


def test_the_first_user_owns_and_the_others_say_so():
    _, layers = chain_of("tied")
    assert layers[5].shared == {"0.weight": (0, "0.weight")}
    assert not any(layer.shared for layer in layers[:5])
    _, layers = chain_of("twice")
    assert layers[3].shared == {name: (1, name) for name in layers[1].state}
    assert layers[4].shared == {name: (2, name) for name in layers[2].state}
    assert "0.running_mean" in layers[4].shared
    _, layers = chain_of("weights")
    owners = {name: owner for layer in layers for name, owner in layer.shared.items()}
    assert set(owners.values()) <= {(0, local) for local in layers[0].state}
    kept = [key for layer in layers for key in layer.module.slots if key.endswith(UNREAD)]
    assert {key.removesuffix(UNREAD) for key in kept} == {
        "again.weight", "unread.weight", "unread.bias",
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_goes_in_and_comes_out_under_the_models_names(name):
    model, layers = chain_of(name)
    new = {key: torch.randn(t.shape).to(t.dtype) for key, t in model.state_dict().items()}
    for key, tensor in model.state_dict(keep_vars=True).items():  # tied names have one value
        twin = next(k for k, t in model.state_dict(keep_vars=True).items() if t is tensor)
        new[key] = new[twin]
    scatter(new, layers)
    for found in (gather(layers), model.state_dict()):
        assert found.keys() == new.keys()
        for key, tensor in found.items():
            assert torch.equal(tensor, new[key]), key


@pytest.mark.parametrize("name", ["tied", "resnet", "weights", "twice", "unet"])
def test_layers_without_memory_run_after_scatter(name):
    kind, make = MODELS[name]
    torch.manual_seed(0)
    real = kind().eval()
    with torch.device("meta"):
        bare = kind().eval()
    layers = decompose(bare, *make(4))
    scatter(real.state_dict(), layers)
    args, kwargs = make(3)
    found, expected = run(layers, args, kwargs), real(*args, **kwargs)
    for one, two in zip(tensors(found), tensors(expected), strict=True):
        assert torch.equal(one, two)
    for layer in layers:
        tensor_of = dict(layer.module.named_parameters(remove_duplicate=False))
        for local, (owner, name_there) in layer.shared.items():
            if local in tensor_of:
                assert tensor_of[local] is layers[owner].module.get_parameter(name_there)
