"""Tensors that share elements are found, and no others."""

from __future__ import annotations

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
