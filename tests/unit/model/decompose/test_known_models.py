"""Models people know: Hugging Face's as they are, and the sizes of the paper without memory."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.model.decompose.checks import both, gather
from tests.unit.model.decompose.zoo import Block, ids
from workbench.model.decompose import decompose

transformers = pytest.importorskip("transformers")

TINY = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def bert(kind, **options):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 3, "max_position_embeddings": 16}
    config = transformers.BertConfig(**TINY, **sizes, num_labels=3, **options)
    return getattr(transformers, kind)(config)


def gpt2(**options):
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY, **sizes, **options))


def llama():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, **sizes))


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=50, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **sizes
    )
    return transformers.T5ForConditionalGeneration(config)


def padded(batch):
    mask = torch.ones(batch, 9, dtype=torch.long)
    mask[:, 6:] = 0
    return {"attention_mask": mask, "token_type_ids": ids(batch, 9, 2)}


def plain(batch):
    return {"use_cache": False}


MODELS = {
    "bert": (lambda: bert("BertModel"), padded, 5),
    "bert eager": (lambda: bert("BertModel", attn_implementation="eager"), padded, 5),
    "bert classifier": (lambda: bert("BertForSequenceClassification"), padded, 6),
    "bert masked": (lambda: bert("BertForMaskedLM"), padded, 5),
    "gpt2": (gpt2, plain, 6),
    "gpt2 padded": (gpt2, lambda b: plain(b) | padded(b), 7),  # tokens and types are embedded
    "gpt2 loss": (gpt2, lambda b: plain(b) | {"labels": ids(b, 9)}, 6),
    "gpt2 states": (gpt2, lambda b: plain(b) | {"output_hidden_states": True}, 6),
    "llama": (llama, plain, 5),
    "t5": (t5, lambda b: plain(b) | {"labels": ids(b, 7)}, 9),
}


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_models_are_cut_as_they_are(name):
    make, more, count = MODELS[name]
    torch.manual_seed(0)
    model = make()
    layers = decompose(model, (ids(4, 9),), more(4))
    assert len(layers) == count
    assert gather(layers).keys() == model.state_dict().keys()
    for training, batch in product((True, False), (1, 3)):
        given = (ids(batch, 9),), more(batch)
        found, expected, _ = both(model, layers, given, batch, training=training)
        assert type(found) is type(expected)
        assert found.keys() == expected.keys()


def test_hugging_faces_mask_is_relayed_through_the_encoder_only():
    layers = decompose(bert("BertModel"), (ids(2, 9),), padded(2))
    masks = [[v for v in layer.inputs if v.shape == (1, 9, 9)] for layer in layers]
    assert [len(found) for found in masks] == [0, 1, 1, 1, 0]
    assert len({found[0].name for found in masks[1:4]}) == 1
    assert not masks[1][0].differentiable


def test_tied_matrices_of_gpt2_have_one_owner():
    layers = decompose(gpt2(), (ids(2, 9),), plain(2))
    assert layers[-1].shared == {"0.weight": (0, "0.weight")}
    assert layers[-1].state == {"0.weight": "lm_head.weight"}
    assert layers[0].state["0.weight"] == "transformer.wte.weight"


def test_a_cache_of_hugging_face_is_refused():
    with pytest.raises(ValueError, match=r"DynamicCache.*`use_cache=False` switches it off"):
        decompose(gpt2(), (ids(2, 9),))


# -- sizes of the paper, which no memory here would hold ------------------------------------------
def counted(layers):
    """Elements of all parameters, shared ones once."""
    seen = {id(p): p.numel() for layer in layers for p in layer.module.parameters()}
    return sum(seen.values())


def test_gpt2_of_40_billion_is_cut(answered):
    """Where nobody asks how soon, of an eighth of its blocks."""
    blocks = 200 if answered.asked else 25
    with torch.device("meta"):
        config = transformers.GPT2Config(n_embd=4096, n_layer=blocks, n_head=32, n_positions=1024)
        model = transformers.GPT2LMHeadModel(config)
    tokens = torch.zeros(1, 1024, dtype=torch.long)
    with answered("modules: GPT-2 of 40 billion parameters cut into layers", 20, "process"):
        layers = decompose(model, (tokens,), {"use_cache": False})
    assert len(layers) == 1 + blocks + 1 + 1
    assert counted(layers) == 40_486_023_168 - (200 - blocks) * 201_379_840
    for layer in layers[1 : blocks + 1]:
        (value,) = layer.inputs
        assert (value.shape, value.dtype) == ((1024, 4096), torch.float32)
        assert layer.state.keys() == layers[1].state.keys()


def test_bert_large_has_the_papers_layers():
    with torch.device("meta"):
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
        config = transformers.BertConfig(**sizes, intermediate_size=4096, num_labels=2)
        model = transformers.BertForSequenceClassification(config)
    tokens = torch.zeros(2, 512, dtype=torch.long)
    inputs = {"attention_mask": torch.ones_like(tokens), "token_type_ids": tokens}
    layers = decompose(model, (tokens,), inputs)
    assert len(layers) == 27
    assert round(counted(layers) / 1e6, 2) == 335.14


class Residual(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
        self.down = None
        if i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.down is None else self.down(x)
        return F.relu(y, inplace=True)


class ResNet1026(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        for stage, (i, o) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
            blocks = [Residual(i, o, 2 if stage else 1), *(Residual(o, o) for _ in range(127))]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class VGG416(nn.Module):
    def __init__(self):
        super().__init__()
        parts, width = [], 3
        for times, wide in zip((82, 82, 83, 83, 83), (64, 128, 256, 512, 512), strict=True):
            for _ in range(times):
                parts += [nn.Conv2d(width, wide, 3, padding=1), nn.ReLU(inplace=True)]
                width = wide
            parts.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*parts)
        wide = [nn.Linear(512 * 49, 4096), nn.ReLU(True), nn.Dropout()]
        wide += [nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout()]
        self.classifier = nn.Sequential(*wide, nn.Linear(4096, 1000))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


@pytest.mark.parametrize(
    ("kind", "count", "millions"),
    [
        pytest.param(ResNet1026, 515, 801.80, marks=pytest.mark.thorough),
        (VGG416, 416, 577.89),
    ],
)
def test_convolutional_models_of_the_paper(kind, count, millions):
    with torch.device("meta"):
        model = kind()
    layers = decompose(model, (torch.zeros(2, 3, 224, 224, device="meta"),))
    assert len(layers) == count
    assert round(counted(layers) / 1e6, 2) == millions
    assert all(len(layer.inputs) == 1 for layer in layers)
    calls = [call.target for layer in layers for call in layer.module.plan.calls]
    assert torch.clone not in calls, "what an in-place ReLU writes to is made in its own layer"


def test_a_wide_model_of_our_own_without_memory():
    """Blocks in a plain Sequential; names stay those of the model."""
    with torch.device("meta"):
        model = nn.Sequential(*(Block(4096) for _ in range(50)))
    layers = decompose(model, (torch.zeros(2, 8, 4096),), criterion=F.mse_loss)
    assert [layer.name for layer in layers] == [str(i) for i in range(50)]
    assert list(gather(layers)) == list(model.state_dict())
