"""Wide residual networks have the published sizes and pre-activated blocks, and are cut at them."""

import pytest
import torch
from torch.nn import functional as F

from workbench.core.model_spec import NAMED, ModelSpec
from workbench.model import make_model, units_of
from workbench.model.vision import initialize
from workbench.model.whole import make_whole
from workbench.model.wide_resnet import WideBlock, WideResNet, WideResNetShape
from workbench.runs.overrides import make_spec


def formula(depth: int, widening: int, classes: int) -> int:
    """Parameters by the paper's table 1: convolutions without biases, two numbers a channel of a
    norm, a 1x1 convolution where the channels change, a matrix with biases."""
    total, channels = 3 * 9 * 16, 16
    for group in range(3):
        width = 16 * widening << group
        for _ in range((depth - 4) // 6):
            total += 9 * channels * width + 9 * width**2 + 2 * (channels + width)
            total += channels * width if channels != width else 0
            channels = width
    return total + 2 * channels + channels * classes + classes


@pytest.mark.parametrize(
    ("name", "millions", "sizes"),
    [("wrn_28x10_c10", 36.5, (28, 10, 10)), ("wrn_28x10_c100_dr03_gn", 36.5, (28, 10, 100)),
     ("wrn_16x4_c10_gn", 2.7, (16, 4, 10)), ("wrn_16x4_c100_dr03", 2.8, (16, 4, 100))],
)  # fmt: skip
def test_published_sizes(name, millions, sizes):
    spec = make_spec({"method": "plain"}, {"family": name}).model
    assert spec == ModelSpec(**NAMED[name]) == ModelSpec.from_dict(spec.to_dict())
    assert (spec.dropout, spec.group_norm) == (0.3 * ("_dr03" in name), "_gn" in name)
    model = make_model(spec)
    assert model.parameters_count() == formula(*sizes)
    assert round(model.parameters_count() / 1e6, 1) == millions
    assert model.num_units == units_of(spec) == sizes[0] // 2
    assert model.normalizes == ("_gn" not in name)
    into = [model.boundary(unit, 32)[0].shape for unit in range(1, model.num_units)]
    width, group = 16 * sizes[1], spec.layers // 3
    for unit, shape in enumerate(into[1:]):
        assert shape == (width << unit // group, 32 >> unit // group, 32 >> unit // group)


def test_group_norm_means_something_to_it_alone():
    with pytest.raises(ValueError, match="group_norm is True; of the model vgg it means nothing"):
        ModelSpec(family="vgg", group_norm=True)
    with pytest.raises(ValueError, match="group_norm is 1; it must be true or false"):
        ModelSpec(family="wide-resnet", group_norm=1)
    with pytest.raises(ValueError, match="layers is 2; the model has 3 groups"):
        make_model(ModelSpec(family="wide-resnet", layers=2, hidden=8, seq=16, vocab=4))


@pytest.mark.parametrize("group_norm", [False, True])
def test_units_in_their_order_are_the_module(group_norm):
    spec = ModelSpec(
        family="wide-resnet", layers=4, hidden=8, seq=16, vocab=5, group_norm=group_norm
    )
    shape = WideResNetShape(blocks=(1, 1, 2), width=8, classes=5, group_norm=group_norm)
    own = WideResNet(shape)
    for unit, layer in enumerate([own.stem, *own.blocks, own.head]):
        initialize(layer, unit=unit, seed=3)
    made = make_whole(make_model(spec), seed=3)
    assert made.state_dict().keys() == own.state_dict().keys()
    own.load_state_dict(made.state_dict())
    x, labels = torch.randn(4, 3, 16, 16), torch.arange(4)
    loss = made(x, labels, step=0, samples=range(4))
    torch.testing.assert_close(loss, F.cross_entropy(own(x), labels))


def test_what_is_added_has_no_norm_before_it_unless_its_shape_changes():
    block = WideBlock(8, 8, 1, WideResNetShape(group_norm=True))
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)
    narrowing = WideBlock(8, 16, 2, WideResNetShape(group_norm=True))
    torch.nn.init.zeros_(narrowing.conv2.weight)
    read = torch.relu(narrowing.norm1(x))
    torch.testing.assert_close(narrowing(x), narrowing.skip(read))
