"""Wide residual networks have the published sizes and pre-activated blocks, and are cut at them."""

import pytest
import torch

from workbench.core.model_spec import ModelSpec
from workbench.model import make_model, units_of
from workbench.model.named import NAMED
from workbench.model.wide_resnet import WideBlock, WideResNetShape
from workbench.runs.overrides import make_spec


def formula(depth: int, widening: int, classes: int) -> int:
    """Parameters by the paper's table 1; convolutions have no biases."""
    total, channels = 3 * 9 * 16, 16
    for block in range((depth - 4) // 2):
        width = 16 * widening << 6 * block // (depth - 4)
        total += 9 * channels * width + 9 * width**2 + 2 * (channels + width)
        total += channels * width * (channels != width)
        channels = width
    return total + 2 * channels + channels * classes + classes


@pytest.mark.parametrize(
    ("name", "millions", "sizes"),
    [("wrn_28x10_c10", 36.5, (28, 10, 10)), ("wrn_16x4_c100_dr03_gn", 2.8, (16, 4, 100))],
)
def test_published_sizes(name, millions, sizes):
    spec = make_spec({"method": "plain"}, {"family": name}).model
    assert spec == ModelSpec(**NAMED[name]) == ModelSpec.from_dict(spec.to_dict())
    assert (spec.dropout, spec.group_norm) == (0.3 * ("_dr03" in name), "_gn" in name)
    model = make_model(spec)
    assert model.parameters_count() == formula(*sizes)
    assert round(model.parameters_count() / 1e6, 1) == millions
    assert model.num_units == units_of(spec) == sizes[0] // 2
    assert model.normalizes == ("_gn" not in name)
    assert model.boundary(model.head, 32)[0].shape == (64 * sizes[1], 8, 8)


def test_what_is_added_has_no_norm_before_it_unless_its_shape_changes():
    x, shape = torch.randn(2, 8, 4, 4), WideResNetShape(group_norm=True)
    same, other = WideBlock(8, 8, 1, shape), WideBlock(8, 16, 2, shape)
    for block in (same, other):
        torch.nn.init.zeros_(block.conv2.weight)
    assert torch.equal(same(x), x)
    torch.testing.assert_close(other(x), other.skip(torch.relu(other.norm1(x))))
