"""BERT has the published sizes, layer for layer, and computes what BERT computes. What it learns,
drops and begins with is asked in test_vision.py."""

import pytest
import torch
from torch.nn import functional as F

from workbench.model.bert import Bert, BertShape, initialize

SMALL = {"layers": 3, "hidden": 32, "heads": 4, "vocab": 61, "positions": 16}
MILLION = 1_000_000


HUGGING_FACE_NAMES = (
    ("bert.", ""),
    ("encoder.layer.", "encoder."),
    ("attention.self.", "attention."),
    ("attention.output.", "attention_out."),
    ("intermediate.dense.", "feed_forward."),
    (".output.", ".feed_forward_out."),
    ("word_embeddings", "words"),
    ("position_embeddings", "positions"),
    ("token_type_embeddings", "segments"),
    ("LayerNorm.gamma", "norm.weight"),
    ("LayerNorm.beta", "norm.bias"),
    ("LayerNorm", "norm"),
)
"""What a part of a name is there and here, in the order in which the parts are replaced."""


def from_hugging_face(state):
    """The state dict of a Hugging Face BERT under our names, heads of pre-training left out."""
    renamed = {}
    for name, value in state.items():
        if name.startswith("cls.") or name.endswith("position_ids"):
            continue
        for theirs, ours in HUGGING_FACE_NAMES:
            name = name.replace(theirs, ours)
        renamed[name] = value
    return renamed


def layers_of(model):
    """The n + 3 layers in the order in which they run."""
    return [model.embeddings, *model.encoder, model.pooler, model.classifier]


def initialized(model, seed=5):
    for unit, layer in enumerate(layers_of(model)):
        initialize(layer, unit=unit, seed=seed)
    return model


def small(**changes):
    return initialized(Bert(BertShape(**{**SMALL, **changes})))


def rows():
    """Ids, segments, mask, labels of 8 rows; the last 3 tokens of odd rows are padding."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 61, (8, 12), generator=generator)
    segments = (torch.arange(12) > 5).long().expand(8, 12).contiguous()
    mask = torch.ones(8, 12, dtype=torch.bool)
    mask[1::2, -3:] = False
    ids[1::2, -3:] = 0
    return ids, segments, mask, torch.arange(8) % 2


@pytest.fixture
def batch():
    return rows()


@pytest.mark.parametrize(
    ("shape", "layers", "exact", "printed"),
    [(BertShape(), 24, 335_143_938, 335.14), (BertShape(layers=96), 96, 1_242_072_066, 1242.07)],
)
def test_published_sizes(shape, layers, exact, printed):
    with torch.device("meta"):
        model = Bert(shape)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total == exact
    assert round(total / MILLION, 2) == printed
    # bytes of each layer in the profile that Harmony published
    found = [sum(p.nbytes for p in layer.parameters()) for layer in layers_of(model)]
    assert found == [127_131_648, *[50_384_896] * layers, 4_198_400, 8_200]
    assert len(found) == layers + 3
    assert not list(model.buffers())


def test_layers_in_their_order_are_the_model(batch):
    ids, segments, mask, _ = batch
    model = small()
    embeddings, *encoder, pooler, classifier = layers_of(model)
    x = embeddings(ids, segments)
    for layer in encoder:
        x = layer(x, mask)
    assert torch.equal(classifier(pooler(x)), model(ids, segments, mask))
    named = [id(p) for layer in layers_of(model) for p in layer.parameters()]
    assert named == [id(p) for p in model.parameters()]


@pytest.mark.parametrize("head", [True, False])
def test_equals_hugging_face(batch, head):
    transformers = pytest.importorskip("transformers")
    ids, segments, mask, labels = batch
    drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=16, **drops,
    )  # fmt: skip
    kind = "BertForSequenceClassification" if head else "BertForPreTraining"
    theirs = getattr(transformers, kind)(config).double()
    with torch.no_grad():
        for parameter in theirs.parameters():  # large enough to bend what is nearly linear
            parameter.mul_(10)
    model = small().double()
    missing, unexpected = model.load_state_dict(
        from_hugging_face(theirs.state_dict()), strict=False
    )
    assert not unexpected
    assert missing == ([] if head else ["classifier.weight", "classifier.bias"])
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask.long()}
    if not head:
        pooled = theirs.bert(**given).pooler_output
        expected = F.linear(pooled, model.classifier.weight, model.classifier.bias)
        torch.testing.assert_close(model(ids, segments, mask), expected, rtol=1e-9, atol=1e-12)
        return
    expected = theirs(**given, labels=labels)
    logits = model(ids, segments, mask)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-9, atol=1e-12)
    expected.loss.backward()
    F.cross_entropy(logits, labels).backward()
    grads = from_hugging_face({name: p.grad for name, p in theirs.named_parameters()})
    found = {name: p.grad for name, p in model.named_parameters()}
    assert grads.keys() == found.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_padding_changes_nothing(batch, dropout):
    ids, segments, mask, _ = batch
    model = small(dropout=dropout).eval()
    logits = model(ids, segments, mask)
    other = torch.where(mask, ids, (ids + 7) % 61)
    assert torch.equal(model(other, segments, mask), logits)
    assert not torch.allclose(model(other, segments, torch.ones_like(mask)), logits, atol=1e-6)
    short = model(ids[1::2, :-3], segments[1::2, :-3], mask[1::2, :-3])
    torch.testing.assert_close(short, logits[1::2], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model(ids, segments, mask.float()), logits)


def test_attention_weights_are_dropped(batch):
    *_, mask, _ = batch
    attention = small(dropout=0.5).encoder[0].attention
    x = torch.randn(8, 12, 32)
    assert not torch.allclose(attention(x, mask), attention(x, mask), atol=1e-4)


def test_initial_weights_are_berts():
    layer, second, _ = small(hidden=256).encoder
    assert not torch.equal(layer.feed_forward.weight, second.feed_forward.weight)
    assert layer.feed_forward.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert layer.feed_forward.bias.eq(0).all()
    assert layer.attention_out.norm.weight.eq(1).all()
    assert layer.attention_out.norm.bias.eq(0).all()
