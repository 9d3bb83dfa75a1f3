"""VGG and ResNet have the published sizes, layer for layer, and learn, as BERT does, where they are
shallow."""

from itertools import groupby

import pytest
import torch
from torch.nn import functional as F

from tests.unit.model import test_bert
from workbench.model import bert, vision
from workbench.model.bert import Bert, BertShape
from workbench.model.pictures import SyntheticPictures
from workbench.model.vision import ResNet, ResNetShape, Vgg, VggShape

SMALL_VGG = {"convs": (1, 1, 2), "width": 8, "image": 32, "hidden": 32, "classes": 4}
SMALL_RESNET = {"blocks": (1, 1, 2), "width": 8, "classes": 4}
KINDS = {
    "vgg": lambda **changes: Vgg(VggShape(**{**SMALL_VGG, **changes})),
    "resnet": lambda **changes: ResNet(ResNetShape(**{**SMALL_RESNET, **changes})),
}
EVERY = {**KINDS, "bert": lambda **changes: Bert(BertShape(**{**test_bert.SMALL, **changes}))}
LEARNS = {"vgg": (20, 1.0, 4, 0.5), "resnet": (20, 1.0, 4, 0.5), "bert": (40, 0.643, 1, 0.2)}
"""Steps, what the first loss is above, and what the mean of so many last ones is below."""

# Run lengths of Harmony's published profiles: bytes of weights, of buffers and of the input of one
# sample, a layer.
VGG_WEIGHTS = [
    (7_168, 1), (147_712, 81), (295_424, 1), (590_336, 81), (1_180_672, 1), (2_360_320, 82),
    (4_720_640, 1), (9_439_232, 165), (411_058_176, 1), (67_125_248, 1), (16_388_000, 1),
]  # fmt: skip
VGG_INPUTS = [
    (602_112, 1), (12_845_056, 81), (3_211_264, 1), (6_422_528, 81), (1_605_632, 1),
    (3_211_264, 82), (802_816, 1), (1_605_632, 82), (401_408, 83), (100_352, 1), (16_384, 2),
]  # fmt: skip
RESNET_WEIGHTS = [
    (38_144, 1), (295_936, 128), (920_576, 1), (1_181_696, 127), (3_676_160, 1), (4_722_688, 127),
    (14_692_352, 1), (18_882_560, 127), (2_052_000, 1),
]  # fmt: skip
RESNET_BUFFERS = [
    (520, 1), (1_040, 128), (3_096, 1), (2_064, 127), (6_168, 1), (4_112, 127), (12_312, 1),
    (8_208, 127), (0, 1),
]  # fmt: skip
RESNET_INPUTS = [
    (602_112, 1), (802_816, 129), (401_408, 128), (200_704, 128), (100_352, 128),
]  # fmt: skip
# The published input of ResNet's last layer is the map before its mean over pixels, as here.


def layers_of(model):
    """The layers in the order in which they run, each on the output of the one before."""
    if isinstance(model, Bert):
        return test_bert.layers_of(model)
    if isinstance(model, Vgg):
        return [*model.features, *model.classifier]
    return [model.stem, *model.blocks, model.head]


def make_layer(model, unit, seed=5):
    """A layer of the model with its initial weights."""
    layer, module = layers_of(model)[unit], bert if isinstance(model, Bert) else vision
    module.initialize(layer, unit=unit, seed=seed)
    return layer


def initialized(model, seed=5):
    for unit in range(len(layers_of(model))):
        make_layer(model, unit, seed)
    return model


def rows(kind, step=0):
    """Inputs and labels of a step."""
    if kind == "bert":
        *given, labels = test_bert.rows()
        return given, labels
    pictures = SyntheticPictures(classes=4, count=64, size=(32, 32), seed=1)
    x, labels = pictures.rows(range(16 * step, 16 * step + 16))
    return [x], labels


def runs(values):
    return [(value, len(list(group))) for value, group in groupby(values)]


def sizes(model):
    """Run lengths of the bytes of weights, buffers and inputs; the latter for one 224 px picture.

    Layers run on the meta device: shapes alone."""
    layers = layers_of(model)
    inputs, x = [], torch.empty(1, 3, 224, 224, device="meta")
    for layer in layers:
        inputs.append(x.nbytes)
        x = layer(x)
    assert x.shape == (1, 1000)
    weights = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
    buffers = [sum(b.nbytes for b in layer.buffers()) for layer in layers]
    return runs(weights), runs(buffers), runs(inputs)


def test_published_vgg():
    with torch.device("meta"):
        model = Vgg(VggShape())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert (total, round(total / 1e6, 2)) == (577_894_184, 577.89)
    assert len(layers_of(model)) == 416
    assert sizes(model) == (VGG_WEIGHTS, [(0, 416)], VGG_INPUTS)


def test_published_resnet():
    with torch.device("meta"):
        model = ResNet(ResNetShape())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert (total, round(total / 1e6, 2)) == (801_800_232, 801.80)
    assert len(layers_of(model)) == 514
    assert sizes(model) == (RESNET_WEIGHTS, RESNET_BUFFERS, RESNET_INPUTS)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_their_order_are_the_model(kind):
    model = KINDS[kind]().eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(torch.nn.Sequential(*layers_of(model))(x), model(x), rtol=0, atol=0)
    named = [id(p) for layer in layers_of(model) for p in layer.parameters()]
    assert named == [id(p) for p in model.parameters()]


@pytest.mark.parametrize("kind", EVERY)
def test_a_layer_alone_gets_the_weights_it_has_in_the_model(kind):
    model, before = EVERY[kind](), torch.get_rng_state()
    initialized(model)
    assert torch.equal(before, torch.get_rng_state())
    for unit, whole in reversed(list(enumerate(layers_of(model)))):
        torch.manual_seed(unit)  # must not matter
        layer = make_layer(EVERY[kind](), unit)
        for name, parameter in whole.named_parameters():
            assert torch.equal(parameter, layer.get_parameter(name))
    first = next(model.parameters()).detach().clone()
    assert not torch.equal(first, next(initialized(model, seed=6).parameters()))


def test_initial_convolutions_keep_the_size_of_what_flows():
    conv = initialized(Vgg(VggShape(**{**SMALL_VGG, "width": 64}))).features[1].conv
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert conv.bias.eq(0).all()


@pytest.mark.parametrize("kind", EVERY)
def test_a_few_steps_lower_the_loss_and_move_every_parameter(kind):
    steps, first, many, last = LEARNS[kind]
    model, losses = initialized(EVERY[kind]()), []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        given, labels = rows(kind, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*given), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > first
    assert kind != "bert" or losses[0] == pytest.approx(0.693, abs=0.05)
    assert sum(losses[-many:]) / many < last
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []


def test_gradients_pass_512_blocks():
    model = initialized(ResNet(ResNetShape(width=2, classes=4)))
    F.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.tensor([0, 1])).backward()
    grads = [layer.conv1.weight.grad for layer in model.blocks]
    assert all(grad.isfinite().all() and grad.count_nonzero() for grad in grads)


@pytest.mark.parametrize("kind", ["vgg", "bert"])
def test_dropout_is_off_unless_asked_for_and_in_evaluation(kind):
    given, _ = rows(kind)
    plain, dropping = initialized(EVERY[kind]()), initialized(EVERY[kind](dropout=0.5))
    drops = [m.p for m in plain.modules() if isinstance(m, torch.nn.Dropout)]
    assert kind == "vgg" or drops == [0.0] * len(drops)
    assert torch.equal(initialized(EVERY[kind](dropout=0.0))(*given), plain(*given))
    assert not torch.allclose(dropping(*given), dropping(*given), atol=1e-4)
    torch.testing.assert_close(dropping.eval()(*given), plain(*given), rtol=1e-4, atol=1e-6)


def test_refuses_pictures_that_cannot_be_halved():
    with pytest.raises(ValueError, match="36 pixels cannot be halved 3 times; use a multiple of 8"):
        KINDS["vgg"](image=36)
