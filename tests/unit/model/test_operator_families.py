"""Megatron's T5 and the bottleneck Wide-ResNet have the published sizes and operators, and compute
what torch's and transformers' layers of these kinds compute."""

import csv
import gzip
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import workbench.published
from tests.unit.model.test_t5 import rows as padded
from workbench.core.model_spec import ModelSpec
from workbench.model import make_model, units_of
from workbench.model.families import module_of
from workbench.model.named import LISTS, NAMED, bottlenecks_of
from workbench.model.operators import operator_list, published_sizes
from workbench.model.t5 import T5Shape
from workbench.model.t5_like_gpt import DecoderLayer, EncoderLayer, T5LikeGPT
from workbench.model.wide_resnet_imagenet import BottleneckResNet, BottleneckShape

BILLIONS = {"1B": 1, "1_3B": 1.3, "6_8B": 6.8, "scale-layer": 0.03}
SMALL = {"hidden": 32, "heads": 4, "head_size": 8, "feed_forward": 48, "vocab": 61}


def published(file):
    """Operator -> MB of its weights, of a profile with tp 1."""
    path = Path(workbench.published.__file__).with_name("aceso_small.csv.gz")
    with gzip.open(path, "rt", newline="") as lines:
        (_, *head), *own = (line for line in csv.reader(lines) if line[0] == file)
    return {line[1]: float(line[1 + head.index("weights")]) for line in own}


@pytest.mark.parametrize("family", LISTS)
def test_names_have_the_published_sizes(family):
    """Parameters are within 6 % of what the names say: 11,316,867,072 are 11B, 2,856,136,704 3B."""
    for name, size in published_sizes(LISTS[family]).items():
        spec = ModelSpec(**NAMED[f"{family}-{name}"])
        layers = bottlenecks_of(spec.layers) if family.startswith("wide") else spec.layers
        assert layers == size.layers
        if family == "gpt":
            count = spec.parameters
        else:
            with torch.device("meta"):
                count = sum(p.numel() for p in module_of(spec, 0).parameters())
        number = name.replace("_", ".")
        nominal = BILLIONS.get(name) or float(number[:-1]) / (1000 if number[-1] == "M" else 1)
        assert count / 1e9 == pytest.approx(nominal, rel=0.06), name


@pytest.mark.parametrize(
    ("name", "family", "file", "width"),
    [("megatron-t5-770M", "t5", "t5_770M_mbs1_tp1_algo0.csv", 2),
     ("wide-resnet-imagenet-1B", "resnet", "resnet_1B_mbs8_tp1_algo0.csv", 4)],
)  # fmt: skip
def test_submodules_are_the_published_operators_and_as_large(name, family, file, width):
    """Profiles count matrices and kernels, of T5 without biases and norms, and of `downsample`
    without its norm."""
    spec = ModelSpec(**NAMED[name])
    with torch.device("meta"):
        made = [*module_of(spec, 0).operators()]
    layers = bottlenecks_of(spec.layers) if family == "resnet" else spec.layers
    assert [each for each, _ in made] == [o.name for o in operator_list(family, layers).operators]
    megabytes = published(file)
    assert megabytes.keys() == dict(made).keys()
    for operator, module in made:
        all_counted = family == "resnet" and not operator.endswith("downsample")
        own = [p.numel() for p in module.parameters() if all_counted or p.dim() > 1]
        assert width * sum(own) / 2**20 == pytest.approx(megabytes[operator], abs=6e-4), operator


def test_megatrons_layers_are_torchs():
    """With norms first and the tanh form of GELU."""
    shape = T5Shape(layers=1, decoder_layers=1, **SMALL)
    how = {"dropout": 0.0, "activation": partial(F.gelu, approximate="tanh"), "norm_first": True}
    encoder = nn.TransformerEncoderLayer(32, 4, 48, **how, batch_first=True)
    decoder = nn.TransformerDecoderLayer(32, 4, 48, **how, batch_first=True)

    def tensors(layer, *paths):
        for part in map(layer.get_submodule, paths):
            if isinstance(part, nn.MultiheadAttention):
                crosses = part is not layer.self_attn
                for rows in (slice(32), slice(32, 96)) if crosses else (slice(96),):
                    yield from (part.in_proj_weight[rows], part.in_proj_bias[rows])
                part = part.out_proj
            yield from (part.weight, part.bias)

    ours, own = EncoderLayer(shape), DecoderLayer(shape)
    begin, end = ("norm1", "self_attn", "norm2"), ("linear1", "linear2")
    of_decoder = tensors(decoder, *begin, "multihead_attn", "norm3", *end)
    for layer, source in ((ours, tensors(encoder, *begin, *end)), (own, of_decoder)):
        for into, tensor in zip(layer.parameters(), source, strict=True):
            into.data = tensor.data
    x, y, left_out = torch.randn(3, 7, 32), torch.randn(3, 5, 32), torch.arange(7) > 3
    left_out = left_out & torch.tensor([[False], [True], [False]])
    kept = ~left_out[:, None, None, :]
    expected = encoder(x, src_key_padding_mask=left_out)
    torch.testing.assert_close(ours(x, kept)[~left_out], expected[~left_out])
    later = nn.Transformer.generate_square_subsequent_mask(5)
    expected = decoder(y, x, tgt_mask=later, memory_key_padding_mask=left_out)
    torch.testing.assert_close(own(y, kept, x), expected)


def test_megatrons_t5_reads_no_padding_and_shares_its_ends():
    model = T5LikeGPT(T5Shape(layers=2, decoder_layers=2, **SMALL), 150)
    ids, mask, before, _ = padded()
    logits = model(ids, mask, before)
    torch.testing.assert_close(model(ids.where(mask, 7), mask, before), logits)
    assert not torch.equal(model(ids.roll(1, 1), mask, before), logits)
    sizes = {"layers": 3, "decoder_layers": 2, "seq": 24, "target_seq": 6, **SMALL}
    made = make_model(ModelSpec(family="megatron-t5", **sizes))
    assert made.num_units == units_of(ModelSpec(family="megatron-t5", **sizes)) == 9
    lenders = {(unit, owner) for (unit, _), (owner, _) in made.tied().items()}
    assert lenders == {(0, 0), (8, 0)}
    own = make_model(ModelSpec(family="megatron-t5", tied=False, **sizes))
    assert own.parameters_count() - made.parameters_count() == 2 * 61 * 32
    std = made.build(1, seed=1).get_parameter("0.MLP-GEMM-2.weight").std().item()
    assert std == pytest.approx(0.02 / 6**0.5, rel=0.1)


def test_bottlenecks_are_those_of_hugging_face():
    """Where the 3x3 convolutions are as wide as the others: ResNet of 2015, strides in these."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[32, 64, 128, 256], depths=[1, 2, 1, 1], num_labels=10
    )
    theirs = transformers.ResNetForImageClassification(config)
    shape = BottleneckShape(blocks=(1, 2, 1, 1), width=8, factor=1, classes=10)
    model = BottleneckResNet(shape)

    def leaves(module):
        kinds = (nn.Conv2d, nn.BatchNorm2d, nn.Linear)
        return [part for part in module.modules() if isinstance(part, kinds)]

    blocks = [block for stage in theirs.resnet.encoder.stages for block in stage.layers]
    found = leaves(theirs.resnet.embedder)
    for block in blocks:
        found += leaves(block.layer) + leaves(block.shortcut)
    for into, source in zip(leaves(model), found + leaves(theirs.classifier), strict=True):
        into.load_state_dict(source.state_dict())
    x = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(model(x), theirs(x).logits, rtol=1e-4, atol=1e-5)
