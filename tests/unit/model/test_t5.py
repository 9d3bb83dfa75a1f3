"""T5 has the published sizes, computes what transformers' T5 computes, and is cut at its blocks."""

import itertools

import pytest
import torch

from workbench.core.model_spec import ModelSpec
from workbench.model import make_model, units_of
from workbench.model.custom_data import loss
from workbench.model.families import blank_rows, module_of
from workbench.model.named import NAMED
from workbench.model.t5 import T5, T5Shape, bucket
from workbench.model.t5_names import from_hugging_face, names_of, shape_of
from workbench.runs.overrides import make_spec

TINY = {
    "family": "t5", "layers": 3, "decoder_layers": 2, "hidden": 32, "heads": 4, "seq": 24,
    "target_seq": 6, "head_size": 12, "feed_forward": 48, "vocab": 300,
}  # fmt: skip


def rows():
    """Ids, mask, ids for the decoder, and labels of 4 rows; odd ones end with padding."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 61, (4, 150), generator=generator)  # beyond the farthest bucket
    mask = torch.ones(4, 150, dtype=torch.bool)
    mask[1::2, -40:] = False
    labels = torch.randint(1, 61, (4, 9), generator=generator)
    labels[1::2, -3:] = -100
    before = labels.roll(1, 1).where(labels.roll(1, 1) != -100, 0)
    before[:, 0] = 0
    return ids, mask, before, labels


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("t5-small", 60_506_624), ("t5-base", 222_903_552), ("t5-large", 737_668_096),
     ("t5-3b", 2_851_598_336)],
)  # fmt: skip
def test_published_sizes(name, parameters):
    spec = make_spec({"method": "plain"}, {"family": name}).model
    assert spec == ModelSpec(**NAMED[name])
    assert units_of(spec) == 2 * spec.layers + 4
    with torch.device("meta"):
        assert sum(p.numel() for p in module_of(spec, 0).parameters()) == parameters
        own = T5(T5Shape(tied=False))
    if name == "t5-3b":
        assert sum(p.numel() for p in own.parameters()) == 2_884_497_408
        model = make_model(spec)
        assert model.parameters_count() == parameters
        assert model.num_units == units_of(spec)


def test_fields_given_beside_a_name_change_its_sizes():
    spec = make_spec(
        {"method": "plain", "model": {"layers": 5, "seq": 7}},
        {"family": "t5-base", "decoder_layers": 2, "seq": 64},
    ).model
    assert spec == ModelSpec(**NAMED["t5-base"] | {"decoder_layers": 2, "seq": 64})
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(ValueError, match="decoder_layers is 2; of the model gpt it means nothing"):
        ModelSpec(decoder_layers=2)


@pytest.mark.parametrize(("gated", "tied"), [*itertools.product([False, True], repeat=2)])
def test_equals_hugging_face(gated, tied):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=61, d_model=32, d_kv=12, d_ff=48, num_layers=3, num_decoder_layers=2,
        num_heads=4, dropout_rate=0.0, feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=tied, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        if not tied:  # which transformers 5 ties until other weights are read
            theirs.lm_head.weight = torch.nn.Parameter(torch.randn(61, 32))
        for name, parameter in theirs.named_parameters():
            if ".q." in name or "relative" in name:  # so that some tokens are read much more
                parameter.mul_(4)
    shape = shape_of(config)
    model = T5(shape)
    model.load_state_dict(from_hugging_face(theirs.state_dict(), shape))
    ids, mask, before, labels = rows()
    expected = theirs(input_ids=ids, attention_mask=mask.long(), labels=labels)
    logits = model(ids, mask, before)
    assert (logits - expected.logits).abs().max() <= 1e-5 * expected.logits.abs().max()
    expected.loss.backward()
    loss(logits, labels).backward()
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    names = names_of(shape)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[names[name]], rtol=1e-3, atol=1e-5)
    back = theirs.state_dict()
    with pytest.raises(ValueError, match=r"lacks tensors of a T5 .*: 'decoder.block.1"):
        from_hugging_face({n: v for n, v in back.items() if "decoder.block.1" not in n}, shape)


def test_buckets_are_the_papers():
    ahead = torch.tensor([-1000, -128, -127, -20, -16, -8, -7, -1, 0, 1, 7, 8, 16, 127, 1000])
    both = [15, 15, 15, 10, 10, 8, 7, 1, 0, 17, 23, 24, 26, 31, 31]
    assert bucket(ahead, causal=False).tolist() == both
    before = [31, 31, 31, 17, 16, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0]
    assert bucket(ahead, causal=True).tolist() == before


def test_padding_changes_nothing():
    model = T5(T5Shape(layers=2, decoder_layers=2, hidden=16, heads=2, head_size=8,
                       feed_forward=32, vocab=61))  # fmt: skip
    ids, mask, before, labels = rows()
    logits = model(ids, mask, before)
    assert torch.equal(model(ids.where(mask, 7), mask, before), logits)
    later = before.clone()
    later[:, 6:] = 9  # no token of an answer reads those after it
    torch.testing.assert_close(model(ids, mask, later)[:, :6], logits[:, :6])
    short = labels[1::2, :6]
    torch.testing.assert_close(loss(logits[1::2], labels[1::2]), loss(logits[1::2, :6], short))


def test_blocks_are_layers_and_relay_what_cannot_be_made_again():
    model = make_model(ModelSpec(**TINY))
    kinds = [model.kind(unit) for unit in range(model.num_units)]
    names = "embedding encoder.0 encoder.1 encoder.2 encoder_end decoder.0 decoder.1 decoder_end"
    assert kinds == [*names.split(), "head"]
    crossing = [
        {(part.shape, part.batch_dim, part.differentiable) for part in model.boundary(unit, 24)}
        for unit in range(1, model.num_units)
    ]
    source, target = ((24, 32), 0, True), ((6, 32), 0, True)
    mask = ((1, 1, 24), 0, False)
    encoder_bias, decoder_bias = ((4, 24, 24), None, True), ((4, 6, 6), None, True)
    begin, within = {source, target, mask}, {source, target, mask, encoder_bias}
    decoding = {source, target, mask, decoder_bias}
    assert crossing == [begin, within, within, begin, begin, decoding, {target}, {target}]
    assert {unit: owner for (unit, _), (owner, _) in model.tied().items()} == {8: 0}


def test_labels_that_are_left_out_count_for_nothing():
    model = make_model(ModelSpec(**TINY))
    *inputs, labels = blank_rows(ModelSpec(**TINY), 3)
    assert [tuple(part.shape) for part in inputs] == [(3, 24), (3, 24), (3, 6)]
    labels[1, 2:], labels[2, :] = -100, -100
    assert model.counts_differ
    assert model.counted(labels) == [6, 2, 0]


def test_initial_weights_are_t5s():
    model = make_model(ModelSpec(**{**TINY, "hidden": 256, "feed_forward": 512}))
    first, block = model.build(0, seed=1), model.build(1, seed=1)
    stds = {
        name.split(".", 1)[1].removesuffix(".weight"): value.std().item()
        for name, value in [*first.named_parameters(), *block.named_parameters()]
        if value.dim() > 1
    }
    expected = {
        "words": 1.0, "relative": 256**-0.5, "attention.query": (256 * 12) ** -0.5,
        "attention.key": 256**-0.5, "attention.out": 48**-0.5,
        "feed_forward.into": 256**-0.5, "feed_forward.out": 512**-0.5,
    }  # fmt: skip
    for name, std in expected.items():
        assert stds[name] == pytest.approx(std, rel=0.15), name
