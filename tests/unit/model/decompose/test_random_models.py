"""Models drawn at random from skips, views, writes, constants and calls: cut or not, the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.unit.model.decompose.checks import grads, run, scalar
from workbench.model.decompose import decompose

D = 4
STEP = st.tuples(
    st.sampled_from(
        ("layer", "layer", "again", "drop", "add", "add in place", "write view", "view", "chunk")
        + ("constant", "write constant", "detach", "mean", "relu", "count", "batch")
    ),
    st.integers(0, 7),
    st.integers(0, 7),
)


class Drawn(nn.Module):
    """Runs a list of steps on a growing list of tensors; all that are left are put out."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(D, D) for kind, *_ in steps if kind == "layer")
        self.register_buffer("count", torch.zeros(D))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> list[Tensor]:
        values, layers = [x], iter(self.layers)
        for kind, i, j in self.steps:
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            values += self.step(kind, a, b, layers)
        return values[-3:]

    def step(self, kind: str, a: Tensor, b: Tensor, layers: Iterator[nn.Module]) -> list[Tensor]:
        if kind == "layer":
            return [next(layers)(a)]
        if kind == "again":
            return [self.layers[0](a)] if len(self.layers) else []
        if kind == "add in place":
            a += b
        elif kind == "write view":
            a[:, 1:3].mul_(0.5)
        elif kind == "view":
            return [a.transpose(0, 1).transpose(0, 1)]
        elif kind == "chunk":
            left, right = a.chunk(2, dim=1)
            return [torch.cat([right, left], 1), left.repeat(1, 2)]
        elif kind == "constant":
            return [torch.ones(len(a), D) * torch.arange(D) + self.count * 0]
        elif kind == "write constant":
            c = torch.zeros_like(a)
            c[:, 0] = b[:, 0]
            return [c]
        elif kind == "count":
            self.count += 1
        return {
            "drop": lambda: [self.drop(a)],
            "add": lambda: [a + b],
            "detach": lambda: [a.detach()],
            "mean": lambda: [a.mean(0, keepdim=True) + b],
            "relu": lambda: [torch.relu(a)],
            "batch": lambda: [a * len(b) / (len(a) + 1)],
        }.get(kind, list)()


def outcome(call, module, seed):
    """(outputs, gradients); None for gradients where writing in place forbids them."""
    torch.manual_seed(seed)
    module.zero_grad()
    outputs = call()
    try:
        scalar(outputs).backward()
    except (RuntimeError, AttributeError):  # nothing needs a gradient, or it was overwritten
        return outputs, None
    return outputs, {k: g.clone() for k, g in grads(module).items() if g is not None}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(STEP, min_size=2, max_size=14), st.booleans(), st.sampled_from((1, 3, 7)))
def test_chain_of_a_random_model_is_the_model(steps, training, batch):
    torch.manual_seed(0)
    model = Drawn(steps).train(training)
    layers = decompose(model, (torch.randn(4, D),))
    x = torch.randn(batch, D)
    other = copy.deepcopy(model)
    expected, expected_grads = outcome(lambda: other(x.clone()), other, 1)
    found, found_grads = outcome(lambda: run(layers, (x.clone(),)), model, 1)
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one, two)
        assert one.requires_grad == two.requires_grad
    assert torch.equal(model.count, other.count)
    values = (x,)
    for layer in layers:
        for tensor, value in zip(values, layer.inputs, strict=True):
            assert tuple(tensor.shape) == value.full_shape(batch)
            assert tensor.requires_grad == value.differentiable
        values = layer.module(*values)
    if expected_grads is not None:
        assert found_grads.keys() == expected_grads.keys()
        for key, grad in found_grads.items():
            assert torch.equal(grad, expected_grads[key]), key
