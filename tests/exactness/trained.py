"""What a training leaves to compare, and how near it must be to torch's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from torch import Tensor

NEAR = {"fp64": (1e-10, 1e-10), "fp32": (1e-6, 1e-5), "bf16": (2e-3, 2e-3)}
"""Precision -> how far losses may be, relative, and weights, absolute."""


class Trained(NamedTuple):
    """The outcome of a training."""

    losses: Sequence[float]
    """Of each step."""
    weights: Mapping[str, Tensor]
    """At the end, by name."""
    norms: Sequence[float]
    """Of each step's gradients before they are clipped; none where nothing is clipped."""


def assert_equals(found: Trained, wanted: Trained, near: tuple[float, float]) -> None:
    """Losses, norms and weights are those wanted."""
    relative, absolute = near
    assert found.losses == pytest.approx(wanted.losses, rel=relative)
    if found.norms:
        assert found.norms == pytest.approx(wanted.norms, rel=10 * relative)
    assert found.weights.keys() == wanted.weights.keys()
    for name, value in wanted.weights.items():
        worst = float((found.weights[name].double() - value.detach().double()).abs().max())
        assert worst <= absolute, (name, worst)
