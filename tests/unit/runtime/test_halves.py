"""Both halves of a backward pass make what the whole makes, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.runtime.passes.halves import input_half


class Product(torch.autograd.Function):
    """A node of a Python function, at which no half can begin."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.flatten(0, 1).T @ x.flatten(0, 1)


class Layer(nn.Module):
    """Weights at a fork, weights used twice, weights beside the way, and unused ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.twice, self.shift = nn.Linear(8, 8), nn.Parameter(torch.randn(8))
        self.python, self.unused = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attend(y, y, y)[0] + self.down(torch.relu(self.up(y))) + self.shift
        return Product.apply(self.twice(torch.relu(self.twice(x))) + self.shift.sum(), self.python)


@pytest.mark.parametrize("loss", [False, True])
def test_halves_equal_the_whole(loss):
    torch.manual_seed(1)
    layer, x = Layer(), torch.randn(2, 3, 8, requires_grad=True)
    parameters, y = [*layer.parameters()], layer(x)
    y = y.square().sum() if loss else y
    above = None if loss else [torch.randn_like(y)]
    whole = torch.autograd.grad(
        [y], [x, *parameters], above, retain_graph=True, materialize_grads=True
    )
    (first,), rest = input_half([y], above, [x], parameters)
    assert torch.equal(first, whole[0])
    for ours, theirs in zip(rest.gradients(), whole[1:], strict=True):
        assert torch.equal(ours, theirs)


def test_an_output_of_weights_alone_is_part_of_the_whole():
    """As a bias that a layer adds and passes on: its gradient arrives from both sides."""
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    shared, apart = (nn.Parameter(torch.randn(4)) for _ in range(2))
    bias, parameters = shared.exp(), [*layer.parameters(), shared, apart]
    outputs = [layer(x) * bias, bias, apart.exp()]
    above = [torch.randn_like(y) for y in outputs]
    whole = torch.autograd.grad(outputs, [x, *parameters], above, retain_graph=True)
    (first,), rest = input_half(outputs, above, [x], parameters)
    for ours, theirs in zip([first, *rest.gradients()], whole, strict=True):
        assert torch.equal(ours, theirs)


def test_without_an_input_all_is_the_second_half():
    layer = nn.Embedding(4, 3)
    y = layer(torch.tensor([1, 2]))
    grads, rest = input_half([y], [torch.ones_like(y)], [], [layer.weight])
    assert grads == ()
    assert torch.equal(
        rest.gradients()[0], torch.tensor([[0.0] * 3, [1.0] * 3, [1.0] * 3, [0.0] * 3])
    )
