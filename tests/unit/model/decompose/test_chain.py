"""A list of layers is its model: same outputs, same gradients, same buffers, at any batch size."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch

from tests.unit.model.decompose.checks import both, by_pieces, gather, grads, scalar, tensors
from tests.unit.model.decompose.zoo import MODELS
from workbench.model.decompose import decompose
from workbench.model.decompose.plan import flatten

BATCHES = (1, 2, 3, 7)


def made(name, batch=4):
    torch.manual_seed(0)
    kind, make = MODELS[name]
    return kind(), make, make(batch)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_gradients_and_buffers_are_the_models_bit_for_bit(name):
    model, make, (args, kwargs) = made(name)
    layers = decompose(model, args, kwargs)
    assert len(layers) > 1
    for training, batch in product((True, False), BATCHES):
        if name in ("resnet", "twice") and training and batch == 1:
            continue  # BatchNorm wants two
        found, expected, other = both(model, layers, make(batch), batch, training=training)
        assert flatten(found)[1] == flatten(expected)[1]
        for one, two in zip(flatten(found)[0], flatten(expected)[0], strict=True):
            assert isinstance(one, torch.Tensor) or one == two
        for (key, one), two in zip(model.named_buffers(), other.buffers(), strict=True):
            assert torch.equal(one, two), key


@pytest.mark.parametrize("name", MODELS)
def test_values_are_what_the_layers_say(name):
    model, make, (args, kwargs) = made(name)
    layers = decompose(model, args, kwargs)
    for before, after in zip(layers, layers[1:], strict=False):
        assert before.outputs == after.inputs
    for batch in (2, 5):
        args, kwargs = make(batch)
        values = tuple(tensors((args, kwargs)))
        for layer in layers:
            for tensor, value in zip(values, layer.inputs, strict=True):
                assert tuple(tensor.shape) == value.full_shape(batch), value
                assert (tensor.dtype, tensor.requires_grad) == (value.dtype, value.differentiable)
            values = layer.module(*values)
        for tensor, value in zip(values, layers[-1].outputs, strict=True):
            assert tuple(tensor.shape) == value.full_shape(batch), value
            assert (tensor.dtype, tensor.requires_grad) == (value.dtype, value.differentiable)


@pytest.mark.parametrize("name", MODELS)
def test_layers_alone_from_stashes_give_the_models_gradients(name):
    model, make, (args, kwargs) = made(name)
    layers = decompose(model, args, kwargs)
    args, kwargs = make(3)
    for layer in layers:
        layer.module.train()
    other = copy.deepcopy(model)
    torch.manual_seed(5)
    scalar(other(*copy.deepcopy(args), **kwargs)).backward()
    torch.manual_seed(5)
    by_pieces(layers, tuple(tensors((args, kwargs))))
    for (key, one), two in zip(grads(model).items(), grads(other).values(), strict=True):
        assert (one is None) == (two is None), key
        if one is not None:
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=key)
    for (key, one), two in zip(model.named_buffers(), other.buffers(), strict=True):
        if name == "twice" and key.startswith("bn.running"):
            continue  # an average of two batches: the backward pass sees them in another order
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_has_the_models_names_and_values(name):
    model, _, (args, kwargs) = made(name)
    layers = decompose(model, args, kwargs)
    state = model.state_dict()
    found = gather(layers)
    assert found.keys() == state.keys()
    for key, tensor in found.items():
        assert tensor.data_ptr() == state[key].data_ptr(), f"{key} was copied"
