"""Tensors that share elements are found, and no others."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from workbench.model.refused import refuse


def taking(tensor, key: str = "weight"):
    """Makes the second of three layers take, as a parameter, what this makes of the first one's."""

    def change(net: nn.Sequential) -> None:
        setattr(net[1], key, nn.Parameter(tensor(net[0].weight.data)))

    return change


def flat(width: int):
    """Lays two matrices into one, of so many columns."""

    def change(net: nn.Sequential) -> None:
        whole = torch.zeros(4, width)
        net[0].weight.data, net[1].weight.data = whole[:, :4], whole[:, -4:]

    return change


def frozen(net: nn.Sequential) -> None:
    taking(lambda w: w)(net)
    net[0].weight.requires_grad_(False)


@pytest.mark.parametrize(
    ("other", "change"),
    [
        ("1.weight", taking(lambda w: w)),
        ("1.weight", taking(lambda w: w.T)),
        ("1.bias", taking(lambda w: w[:, 1], "bias")),
        ("0.bias", lambda net: setattr(net[0].bias, "data", net[0].weight.data[2])),
        ("2.table", lambda net: net[2].register_buffer("table", net[0].weight.data[1:])),
        ("1.kept", lambda net: setattr(net[1], "kept", net[0].weight.detach())),
        ("1.weight", frozen),
        ("1.weight", flat(7)),
    ],
)
def test_two_names_of_one_memory_are_refused_with_both(other, change):
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    change(net)
    with pytest.raises(ValueError, match=f"net: '0.weight' and '{other}' share memory"):
        refuse(net, "net")


@pytest.mark.parametrize(
    "change",
    [
        flat(8),
        lambda net: setattr(net[1], "weight", net[0].weight),
        lambda net: [frozen(net), net.requires_grad_(False)],
        lambda net: nn.utils.vector_to_parameters(torch.zeros(60), net.parameters()),
    ],
)
def test_ties_and_neighbours_are_taken(change):
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), nn.LSTM(4, 4))[:3]
    change(net)
    refuse(net, "net")


class Holding(nn.Module):
    def __init__(self, held) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.held, self.beside = held(self), [*self.parameters()]  # nothing reads the second one

    def forward(self, x):
        return self.inner(x) + x @ self.weight()

    def weight(self):
        return getattr(self, "held")[0]  # noqa: B009  # as people write it


@pytest.mark.parametrize(
    ("place", "held"),
    [
        ("[0]", lambda m: [m.inner.weight]),
        ("['w']", lambda m: {"w": m.inner.weight.data}),
        ("[1][0]", lambda m: (0, [m.inner.weight.detach().T])),
        (".w", lambda m: SimpleNamespace(w=m.inner.weight)),
        ("[0]", lambda m: [m.inner.weight.detach().numpy()]),
        ("", lambda m: lambda: m.inner.weight),
        ("[0]", lambda m: partial(torch.mm, m.inner.weight)),
    ],
)
def test_a_parameter_that_is_held_in_another_place_is_named_with_it(place, held):
    words = f"net: {f'1.held{place}'!r} holds the parameter '1.inner.weight'"
    with pytest.raises(ValueError, match=re.escape(words)):
        refuse(nn.Sequential(nn.Linear(4, 4), Holding(held)), "net")


@pytest.mark.parametrize(
    "held",
    [
        lambda m: [m.inner],
        lambda m: [torch.ones(4, 4), m.inner.weight.detach().clone()],
        lambda m: lambda: m.training,
    ],
)
def test_a_held_module_and_a_copy_are_taken(held):
    refuse(nn.Sequential(Holding(held), nn.LSTM(4, 4)), "net")
