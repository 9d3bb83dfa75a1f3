"""A user's own module as a family: found, cut, given its own weights and fed its own samples."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from tests.methods.plain import spec_for
from workbench.model import ModelSpec, custom, custom_data, make_model, units_of
from workbench.model.families import blank_rows
from workbench.model.modules import Decomposed
from workbench.model.whole import make_whole
from workbench.runs.resolve import key_of, resolve
from workbench.training.run import load_batches

SOURCE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import own_parts


def net(spec):
    blocks = [own_parts.Block(spec.hidden) for _ in range(spec.layers)]
    return nn.Sequential(nn.Linear(4, spec.hidden), *blocks, nn.Linear(spec.hidden, 3))


def labelled(spec):
    return net(spec), TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))


def measured(spec):
    return list(net(spec)), TensorDataset(torch.randn(32, 4), torch.randn(32, 3))


class Words(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.words = nn.Embedding(spec.vocab, spec.hidden)
        self.blocks = nn.ModuleList(own_parts.Block(spec.hidden) for _ in range(spec.layers))
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, ids):
        x = self.words(ids) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Named(Words):
    def forward(self, ids):
        return {"logits": super().forward(ids), "length": ids.sum(1)}


class Pair(Words):
    def forward(self, ids):
        return super().forward(ids), ids


class Remembers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.inner(x) - self.mean


class Scales(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.by = nn.Linear(width, width), torch.ones(width)

    def forward(self, x):
        return self.inner(x) * self.by


class Asks(nn.Linear):
    def forward(self, x):
        return super().forward(x) if float(x.detach().sum()) > 0 else x


def between(spec, block):
    return nn.Sequential(nn.Linear(4, 8), block, block, nn.Linear(8, 3)), labelled(spec)[1]


def remembers(spec):
    return between(spec, Remembers(8))


def normed(spec):
    return between(spec, nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))


def scales(spec):
    return between(spec, Scales(8))


def asks(spec):
    return between(spec, Asks(8, 8))


def double(spec):
    return net(spec).double(), labelled(spec)[1]


def double_samples(spec):
    return net(spec), TensorDataset(torch.randn(32, 4).double(), torch.zeros(32).long())


def small_labels(spec):
    return net(spec), TensorDataset(torch.randn(32, 4), torch.zeros(32, dtype=torch.int32))


def broadcast(spec):
    return net(spec), TensorDataset(torch.randn(32, 4), torch.randn(32))


def too_long(spec):
    return net(spec), TensorDataset(torch.randn(32, 4), torch.zeros(32, 7).long())


def fourth(spec):
    return net(spec), TensorDataset(torch.randn(32, 4), torch.arange(32) // 8)


def masked(spec, starts=lambda sample: 2):
    labels = torch.randint(3, (32, 5))
    for sample in range(32):
        labels[sample, starts(sample):] = -100
    return net(spec), TensorDataset(torch.randn(32, 5, 4), labels)


def unevenly(spec):
    return masked(spec, lambda sample: 1 + sample % 3)


def nothing(spec):
    return 3


def none_left(spec):
    return net(spec), TensorDataset(torch.zeros(0, 4), torch.zeros(0))


def alone(spec):
    return net(spec), [torch.zeros(4)]


def fails(spec):
    return net(spec.no_such)


constant = 3
"""
PARTS = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(self.norm(x))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a package of models and what they are made of."""
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models" / "nets.py").write_text(SOURCE)
    (tmp_path / "own_parts.py").write_text(PARTS)
    (tmp_path / "own_broken.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def spec_of(function: str, **changes) -> ModelSpec:
    sizes = {"layers": 3, "hidden": 8, "heads": 1, "seq": 16, "vocab": 256}
    return ModelSpec(family=f"own_models.nets:{function}", **{**sizes, **changes})


def made_plainly(spec: ModelSpec, seed: int) -> tuple[nn.Module, object]:
    function = custom.function_of(spec.family)
    torch.manual_seed(seed)
    made = function(spec)
    module, samples = made if isinstance(made, tuple) else (made, None)
    return nn.Sequential(*module) if isinstance(module, list) else module, samples


@pytest.mark.parametrize("function", ["labelled", "measured", "Words"])
def test_it_begins_with_the_weights_that_the_function_gives(function):
    spec = spec_of(function)
    model = make_model(spec)
    assert units_of(spec) == model.num_units == 5
    expected = dict(made_plainly(spec, 7)[0].named_parameters(remove_duplicate=False))
    found = dict(make_whole(model, seed=7).named_parameters(remove_duplicate=False))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    other = dict(make_whole(model, seed=8).named_parameters(remove_duplicate=False))
    assert not torch.equal(other[name], value)


def test_no_weights_stay_in_memory():
    model = make_model(spec_of("labelled"))
    assert isinstance(model, Decomposed)
    for unit in range(model.num_units):
        assert all(p.is_meta for p in model.skeleton(unit).parameters())


def test_making_it_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    make_whole(make_model(spec_of("labelled")), seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_samples_are_its_own_and_an_epoch_has_each_once():
    spec = spec_for(model=spec_of("labelled"), batch=8)
    batches = load_batches(spec, make_model(spec.model))
    x, labels = batches.rows(range(32))
    own, own_labels = made_plainly(spec.model, spec.seed)[1].tensors
    order = [int((own == row).all(1).nonzero()) for row in x]
    assert sorted(order) == list(range(32))
    assert order != list(range(32))
    assert torch.equal(labels, own_labels[order])
    again = load_batches(spec, make_model(spec.model))
    assert torch.equal(again.rows(range(32))[0], x)
    assert again.digest == batches.digest
    assert load_batches(spec.with_(seed=1), make_model(spec.model)).digest != batches.digest


def test_a_module_alone_reads_the_text():
    spec = spec_for(model=spec_of("Words"), batch=2)
    ids, targets = load_batches(spec, make_model(spec.model)).rows(range(2))
    assert ids.shape == targets.shape == (2, 16)
    assert torch.equal(ids[:, 1:], targets[:, :-1])


@pytest.mark.parametrize(
    "function", ["labelled", "measured", "Words", "Named", "masked", "unevenly"]
)
def test_the_loss_is_that_of_the_module(function):
    spec = spec_for(model=spec_of(function), batch=4)
    batches = load_batches(spec, make_model(spec.model))
    x, targets = batches.batch(0)
    out = made_plainly(spec.model, 5)[0](x)
    out = out["logits"] if isinstance(out, dict) else out
    if targets.is_floating_point():
        expected = nn.functional.mse_loss(out, targets)
    else:
        expected = nn.functional.cross_entropy(out.flatten(0, -2), targets.flatten())
    found = make_whole(make_model(spec.model), seed=5)(x, targets)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(6, 3), (6, 5, 3), (6, 3, 5)])
def test_the_mean_is_that_of_torch_to_the_last_digit(shape):
    """And its gradient; of a micro-batch without a label both are 0."""
    out = torch.randn(shape, requires_grad=True)
    targets = torch.randint(3, [shape[0], *([5] if len(shape) > 2 else [])])
    targets[::2] = custom_data.IGNORED
    last = shape[1] == 5
    expected = nn.functional.cross_entropy(
        out.flatten(0, -2) if last else out, targets.flatten() if last else targets
    )
    found = custom_data.loss(out, targets)
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(loss * 0.3, out)[0] for loss in (found, expected)))
    assert sum(custom_data.counted(targets)) == int((targets >= 0).sum())
    nothing = custom_data.loss(out, torch.full_like(targets, custom_data.IGNORED))
    assert nothing == 0
    assert not torch.autograd.grad(nothing, out)[0].any()


@pytest.mark.parametrize("function", ["labelled", "Words"])
def test_blank_rows_are_like_those_of_the_data(function):
    spec = spec_for(model=spec_of(function), batch=4)
    rows = load_batches(spec, make_model(spec.model)).rows(range(4))
    blank = blank_rows(spec.model, 4)
    assert [(t.shape, t.dtype) for t in blank] == [(t.shape, t.dtype) for t in rows]


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        ("no_such:net", "no module 'no_such' in .*, nor where Python looks"),
        ("own_models.no_such:net", "no module 'own_models.no_such'"),
        ("no_such.nets:net", "no module 'no_such.nets'"),
        ("own_models:net", "no module 'own_models'"),
        ("own_models.nets:no_such", "'own_models.nets' has no function no_such"),
        ("own_models.nets:constant", "'own_models.nets' has no function constant"),
        ("own_broken:net", "cannot be imported: ModuleNotFoundError: .*no_such_package"),
        ("own_models.nets:nothing", "gave a int; it must give an nn.Module"),
        ("own_models.nets:fails", "fails failed: AttributeError"),
        ("own_models.nets:none_left", "gave no samples"),
        ("own_models.nets:alone", "sample 0 is a Tensor; it must be a tuple"),
    ],
)
def test_what_is_wrong_is_one_sentence(family, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make_model(ModelSpec(family=family, layers=3, hidden=8, heads=1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("Pair", "puts out a tuple; it must put out one tensor, or something with 'logits'"),
        ("remembers", "buffer '1.mean' of layer 1 is written in forward passes"),
        ("normed", "buffer .*_u' of layer 1 is written in forward passes"),
        ("scales", "Scales.by is a tensor that does not move with its module; make it a buffer"),
        ("asks", "layer 1, '1': it asks for values"),
        ("double", "parameter '0.weight' is float64; all must be float32"),
        ("double_samples", "sample 0 holds float64 numbers; give them as float32"),
        ("small_labels", "targets of .* are int32; labels are int64"),
        ("broadcast", "puts out 2 x 3 for targets of 2; the mean squared error needs"),
        ("too_long", "puts out 2 x 3 for targets of 2 x 7; logits are of the same shape"),
    ],
)
def test_what_cannot_be_trained_as_it_is_is_told_when_it_is_made(function, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make_model(spec_of(function))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("fourth", "has the label 3, and the model tells 3 apart: labels are 0 to 2"),
    ],
)
def test_labels_are_looked_at_before_they_are_trained_on(function, sentence):
    spec = spec_for(model=spec_of(function), batch=8)
    with pytest.raises(ValueError, match=sentence):
        load_batches(spec, make_model(spec.model))


def test_labels_that_were_not_looked_at_are_when_they_are_read(monkeypatch):
    monkeypatch.setattr(custom_data, "HASHED", 1)
    spec = spec_for(model=spec_of("fourth"), batch=8)
    batches = load_batches(spec, make_model(spec.model))
    with pytest.raises(ValueError, match="has the label 3"):
        batches.rows(range(32))


def test_a_text_has_no_more_tokens_than_the_model_tells_apart():
    spec = spec_for(model=spec_of("labelled"), batch=2)
    model = make_model(spec_of("Words"))
    model.classes = 100
    with pytest.raises(ValueError, match="of 256 tokens, and the model tells 100 apart"):
        load_batches(spec.with_(model=spec_of("Words")), model)


def test_a_path_is_no_function():
    for family in ("gpt", "some/folder", "some/a:b/config.json", "a:b:c", "a.b", ":f", "1a:f"):
        assert not ModelSpec(family=family).custom


def test_a_changed_file_is_another_run(folder):
    spec = spec_for(method="harmony-pp", model=spec_of("labelled"), ranks=2)
    first = resolve(spec)
    assert first.model.config_digest
    assert key_of(first) == key_of(spec)
    path = folder / "own_models" / "nets.py"
    path.write_text(SOURCE + "\n")
    os.utime(path, (0, 0))
    assert key_of(spec) != key_of(first)
    with pytest.raises(ValueError, match="the file of .* changed"):
        make_model(first.model)


def test_a_file_of_the_users_stands_for_no_module_of_pythons(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").touch()
    monkeypatch.chdir(tmp_path)
    with custom.importing():
        assert find_spec("colorsys").origin != str(tmp_path / "colorsys.py")
