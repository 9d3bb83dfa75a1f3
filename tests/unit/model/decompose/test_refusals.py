"""What cannot be cut is refused with one sentence, and what to do then works."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.model.decompose.checks import run
from tests.unit.model.decompose.zoo import Block, D, Values
from workbench.model.decompose import decompose, from_list


class Two(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between=lambda self, x: x) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(D, D), nn.Linear(D, D), between
        self.register_buffer("seen", torch.zeros(()))
        self.tables = [torch.full((), float(i)) for i in range(9)]

    def forward(self, x):
        return self.b(self.between(self, self.a(x)))


def reassign(model, x):
    model.seen = model.seen + 1
    return x


def rows(model, x):
    return torch.stack([row * 2 for row in x])


def autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.T @ x).float()


def keep(model, x):
    model.cache = Cache(x)
    return model.part(model.cache)


class Cache:
    def __init__(self, x) -> None:
        self.x = x


REFUSED = {
    "value": (
        lambda model, x: x if x.sum() > 0 else -x,
        r"line \d+ \(.*test_refusals.py:\d+\), the next call follows",
    ),
    "luck": (lambda model, x: x if torch.rand(()) > 0.5 else -x, "the next call follows"),
    "table": (lambda model, x: x + model.tables[len(x)], "that changes"),
    "rows": (rows, "calls"),
    "square": (lambda model, x: x * x.shape[0] ** 2, "4, 9, 25 at batch 2, 3, 5"),
    "odd": (lambda model, x: x * 2 if len(x) % 2 else x + 2, "something else"),
    "buffer": (reassign, "new tensor in the place of 'seen': write into it"),
    "autocast": (autocast, "autocast"),
    "function": (lambda model, x: Values.Half.apply(x), "autograd function"),
    "numpy": (lambda model, x: x + torch.from_numpy(x.detach().numpy()), "cannot be decomposed"),
    "data": (lambda model, x: setattr(x, "data", x.data * 2) or x, "sets 'data'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_code_between_blocks_that_cannot_be_followed_is_refused(name):
    between, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as refusal:
        decompose(Two(between), (torch.randn(4, D),))
    sentence = str(refusal.value)
    assert sentence.startswith("Two cannot be decomposed: ")
    assert "\n" not in sentence
    assert "`from_list`" in sentence


@pytest.mark.parametrize("name", ["value", "square", "function", "autocast"])
def test_the_same_code_in_a_submodule_is_no_matter(name):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.two, self.last = nn.Linear(D, D), Two(REFUSED[name][0]), Block()

        def forward(self, x):
            return self.last(self.two(self.first(x)))

    torch.manual_seed(0)
    model = Outer().eval()
    chain = decompose(model, (torch.randn(4, D),))
    assert [layer.name for layer in chain] == ["first", "two", "last"]
    for batch in (1, 3):
        x = torch.randn(batch, D)
        assert torch.equal(run(chain, (x,)), model(x))


def test_a_list_of_modules_needs_no_tracing():
    torch.manual_seed(0)
    model = Two(REFUSED["value"][0])
    chain = from_list([model.a, model.b], (torch.randn(4, D),))
    x = torch.randn(3, D)
    assert torch.equal(run(chain, (x,)), model.b(model.a(x)))
    assert [layer.name for layer in chain] == ["0", "1"]
    assert chain[1].state == {"0.weight": "1.weight", "0.bias": "1.bias"}


def test_a_block_that_looks_at_values_is_one_layer_also_without_memory():
    """It runs on zeros then; values of buffers, which code may compare, are not made up."""
    model = Values()
    with_values = decompose(model, (torch.randn(4, D),))
    without = decompose(copy.deepcopy(model).to("meta"), (torch.randn(4, D),))
    assert [layer.name for layer in without] == [layer.name for layer in with_values]
    model.router.register_buffer("bias", torch.ones(()).to("meta"))
    with pytest.raises(ValueError, match="Router.forward, line"):
        decompose(model, (torch.randn(4, D),))


def test_another_computation_in_the_other_mode_fixes_the_mode():
    def between(model, x):
        return torch.relu(x) * 2 if model.training else x

    model = Two(between)
    chain = decompose(model, (torch.randn(4, D),))
    x = torch.randn(3, D)
    assert torch.equal(run(chain, (x,)), model(x))
    for layer in chain:
        layer.module.eval()
    with pytest.raises(ValueError, match="decompose it once more"):
        run(chain, (x,))
    chain = decompose(model.eval(), (torch.randn(4, D),))
    assert torch.equal(run(chain, (x,)), model(x))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"args": torch.randn(4, D)}, "must be a tuple, not a Tensor"),
        ({"args": ()}, "hold no batch"),
        ({"args": (torch.tensor(1.0),)}, "hold no batch"),
        ({"args": (torch.randn(4, D), 3)}, "TypeError"),
        ({"criterion": nn.Linear(1, 1)}, "criterion with parameters"),
    ],
)
def test_arguments_that_make_no_sense(change, words):
    arguments = {"args": (torch.randn(4, D),), **change}
    with pytest.raises(ValueError, match=words):
        decompose(Two(), **arguments)


def test_a_cache_is_refused_by_name():
    class Model(Two):
        class Part(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(D))

            def forward(self, cache):
                return cache.x * self.scale

        def __init__(self) -> None:
            super().__init__(keep)
            self.part = self.Part()

    with pytest.raises(ValueError, match=r"a Cache, neither a tensor .*`use_cache=False`"):
        decompose(Model(), (torch.randn(4, D),))


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = Values()
    before = copy.deepcopy(model.state_dict())
    state, kinds = torch.get_rng_state(), [type(module) for module in model.modules()]
    decompose(model, (torch.randn(4, D),))
    assert [type(module) for module in model.modules()] == kinds
    assert all(p.grad is None for p in model.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    torch.set_rng_state(state)
    torch.randn(4, D)
    after = torch.randn(3)
    torch.set_rng_state(state)
    decompose(model, (torch.randn(4, D),))
    assert torch.equal(torch.randn(3), after), "random numbers were drawn"


def test_wrong_inputs_of_a_layer():
    chain = decompose(Two(), (torch.randn(4, D),))
    with pytest.raises(ValueError, match="takes 1 tensors, not 2"):
        chain[0].module(torch.randn(4, D), torch.randn(4, D))


def test_a_block_that_puts_out_another_number_of_tensors():
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.extra = nn.Parameter(torch.ones(D)), False

        def forward(self, x):
            return (x * self.scale, x) if self.extra else x * self.scale

    model = nn.Sequential(nn.Linear(D, D), Fickle())
    chain = decompose(model, (torch.randn(4, D),))
    model[1].extra = True
    with pytest.raises(ValueError, match="1 put out 2 tensors, and 1 when"):
        run(chain, (torch.randn(4, D),))


def test_losses_that_no_sum_over_samples_makes():
    """A matrix of all pairs is no stack of samples: no cut lets it cross."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(1, 1), nn.Linear(D, D)

        def forward(self, x):
            x = self.a(x)
            pairs = self.b((x @ x.T).unsqueeze(-1)).squeeze(-1)
            return F.softmax(pairs, 0) @ self.c(x)

    torch.manual_seed(0)
    model = Pairs()
    chain = decompose(model, (torch.randn(4, D),))
    assert [layer.name for layer in chain] == ["a", "b"]
    assert [value.shape for value in chain[1].inputs] == [(D,)]
    for batch in (1, 3):
        x = torch.randn(batch, D)
        assert torch.equal(run(chain, (x,)), model(x))
