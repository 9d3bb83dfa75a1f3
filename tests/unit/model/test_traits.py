"""A layer's work is found without its weights, or said to be unknown, with what to do then."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.methods.plain import spec_for
from tests.unit.model import own_nets
from workbench.model import ModelSpec, make_model, traits
from workbench.model.whole import make_whole
from workbench.profile import counted
from workbench.training.run import load_batches


def spec_of(function: str) -> ModelSpec:
    return ModelSpec(
        family=f"tests.unit.model.own_nets:{function}",
        layers=2,
        hidden=8,
        heads=1,
        seq=4,
        vocab=256,
    )


@pytest.mark.parametrize(
    "function", ["wide", "steps", "experts", "Between", "Submodule", "listed", "Chooses"]
)
def test_what_follows_no_values_is_taken_and_is_the_module(function):
    """Also what the advice of refusals leads to."""
    spec = spec_for(model=spec_of(function), batch=4)
    x, targets = load_batches(spec, make_model(spec.model)).batch(0)
    torch.manual_seed(5)
    made = getattr(own_nets, function)(spec.model)
    made = made[0] if isinstance(made, tuple) else made
    module = nn.Sequential(*made) if isinstance(made, list) else made
    expected = F.cross_entropy(module(x).flatten(0, -2), targets.flatten())
    expected.backward()
    whole = make_whole(make_model(spec.model), seed=5)
    found = whole(x, targets)
    found.backward()
    assert torch.equal(found, expected)
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    for name, parameter in module.named_parameters():
        assert torch.equal(gradients[name], parameter.grad), name


def test_blocks_that_differ_in_what_they_drop_are_of_two_kinds():
    """One that drops nothing says nothing of the random numbers of another."""
    model = make_model(spec_of("Deeper"))
    assert model.kind(1) != model.kind(2)
    assert [draw.dim for draw in model.draws] == [0]
    assert not model.couples


@pytest.mark.parametrize("function", ["wide", "Between"])
def test_what_is_made_without_a_device_is_made_where_the_layer_runs(function):
    model = make_model(spec_of(function))
    for unit in range(model.head):
        assert model.bare_device(unit) == "meta"
        parts = model.boundary(unit, 4)
        inputs = [
            torch.empty(p.full_shape(3), dtype=p.dtype or torch.float32, device="meta")
            for p in parts
        ]
        made = model.build(unit, seed=0, device="meta")(*inputs)
        assert all(tensor.is_meta for tensor in made)


def test_a_layer_that_needs_values_is_counted_with_some():
    spec = spec_of("experts")
    model = make_model(spec)
    assert [model.bare_device(unit) for unit in range(4)] == ["meta", "cpu", "cpu", "meta"]
    rates = counted.Rates(forward=1e9, backward=1e9)
    costs = counted.unit_costs(spec, 4, rates)
    assert costs[1].flops == 4 * 2 * 8 * 8
    assert costs[1].kept_bytes > 0


@pytest.mark.parametrize("function", ["masks", "numpy"])
def test_what_follows_values_is_refused(function):
    with pytest.raises(ValueError, match="layer 1, '1': it asks for values") as error:
        make_model(spec_of(function))
    assert "\n" not in str(error.value)


def test_what_fails_with_values_too_is_told_as_it_is(monkeypatch):
    """Grouped products of other numbers than torch has them for."""
    monkeypatch.setattr(traits, "_filled", lambda tensor: tensor.uniform_().double())
    with pytest.raises(ValueError, match="layer 1, '1': .*Double") as error:
        traits.traits_of(make_model(spec_of("experts"))._units[1])
    assert "values" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("Switches", "autocast .*; put that code into a submodule, .* or return a list of modules"),
        ("Picks", "values must not decide .*: choose with torch.where or a mask"),
        ("narrow", "RuntimeError: .*8 and 9x256.*$"),
        ("Wrong", "RuntimeError: .*8 and 9x8.*; if the module runs by itself, put that code into"),
    ],
)
def test_a_refusal_says_what_the_writer_of_the_function_can_do(function, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make_model(spec_of(function))
    for word in ("`layers`", "`from_list`", "\n"):
        assert word not in str(error.value)
