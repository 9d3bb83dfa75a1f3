"""A change of a module or a loss function between the steps of an engine is named; no use of the
module that changes nothing is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.unchanged import Unchanged


class Anneal:
    def __init__(self) -> None:
        self.n, self.m, self.calls = 1, 1, 0

    def rate(self) -> float:
        self.calls += 1
        return 1 / self.n

    @property
    def half(self) -> float:
        return self.m / 2


class Settings:
    cold, unread = 1.0, 0


calls, warm = 0, 1.0


class Block(nn.Module):
    slope = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(4, 4), nn.Dropout(0.1)
        self.register_buffer("mask", torch.ones(4))
        self.scale, self.sizes, self.seen, self.epoch = 1.0, [1, 2], 0, 0
        self.table, self.anneal = np.ones(2), Anneal()

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1  # its own, which only counts
        x = self.scaled(self.drop(self.inner(x))) * self.mask * len(self.sizes)
        return x * float(self.table[0]) * self.anneal.rate() * self.anneal.half

    def scaled(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x * self.scale, self.slope)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), nn.BatchNorm1d(4), Block())
        self.config = SimpleNamespace(heat=1.0, notes="none")

    def forward(self, x: Tensor) -> Tensor:
        global calls  # noqa: PLW0603  # as people write it
        calls += 1
        return self.blocks(x) / self.config.heat * warm * Settings.cold


def check_all(unchanged: Unchanged) -> None:
    """Values of few tensors are looked at in one step."""
    for _ in range(4):
        unchanged.check(F.mse_loss)


CHANGES: dict[str, Callable[[Net], object]] = {
    r"blocks\.0\.scale of the model is 0\.5 now and was 1\.0": (
        lambda net: setattr(net.blocks[0], "scale", 0.5)
    ),
    r"blocks\.2\.drop\.p of the model is 0\.9 now and was 0\.1": (
        lambda net: setattr(net.blocks[2].drop, "p", 0.9)
    ),
    r"blocks\.2\.slope of the model is 0\.1 now and was 0\.0": (
        lambda net: setattr(net.blocks[2], "slope", 0.1)
    ),
    r"blocks\.0\.table of the model is another": lambda net: net.blocks[0].table.fill(0.5),
    r"blocks\.0\.anneal\.n of the model is 2": lambda net: setattr(net.blocks[0].anneal, "n", 2),
    r"blocks\.2\.anneal\.m of the model is 2": lambda net: setattr(net.blocks[2].anneal, "m", 2),
    r"config\.heat of the model is 2\.0": lambda net: setattr(net.config, "heat", 2.0),
    r"blocks\.0\.sizes of the model is another": lambda net: net.blocks[0].sizes.append(3),
    r"training of the model is False": lambda net: net.blocks[1].eval(),
    r"hooks of blocks\.1 ": lambda net: net.blocks[1].register_forward_hook(print),
    r"parts of blocks ": lambda net: net.blocks.__setitem__(1, nn.Identity()),
    r"blocks\.0\.mask of the model has been changed": lambda net: net.blocks[0].mask.zero_(),
    r"blocks\.2\.mask of the model has": lambda net: setattr(net.blocks[2], "mask", torch.ones(4)),
    r"inner\.weight of the model has been": lambda net: net.blocks[0].inner.weight.data.mul_(0.9),
    r"inner\.bias of the model has another hook": (
        lambda net: net.blocks[0].inner.bias.register_hook(torch.neg)
    ),
    r"inner\.bias of the model has requires": (
        lambda net: net.blocks[0].inner.bias.requires_grad_(False)
    ),
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_change_of_the_module_is_named(words) -> None:
    net = Net()
    unchanged = Unchanged(net, F.mse_loss)
    check_all(unchanged)
    CHANGES[words](net)
    with pytest.raises(ValueError, match=words):
        check_all(unchanged)


def test_another_way_of_torchs_to_compute_is_named() -> None:
    unchanged = Unchanged(Net(), F.mse_loss)
    with torch.autocast("cpu"), pytest.raises(ValueError, match="torch's autocast or default"):
        unchanged.check(F.mse_loss)
    unchanged.check(F.mse_loss)


def test_looking_at_it_between_steps_changes_nothing() -> None:
    net = Net()
    unchanged = Unchanged(net, F.mse_loss)
    trained = {name: value + 1 for name, value in net.state_dict().items()}
    unchanged.handed_out(trained)
    net.load_state_dict(trained)
    net.eval()(torch.ones(2, 4))
    net.train().blocks[0].epoch = net.config.notes = 3
    net.config.more = 5
    check_all(unchanged)
    with torch.no_grad():
        net.blocks[0].inner.weight.clamp_(-0.1, 0.1)
    with pytest.raises(ValueError, match=r"inner\.weight .* a copy of the model"):
        unchanged.check(F.mse_loss)


def as_long_as_its_text(forward: Callable) -> Callable:
    """As transformers' long ropes are, whose code names buffers in text."""

    def stretch(self: nn.Module, prefix: str, length: int) -> None:
        getattr(self, f"{prefix}ramp").copy_(torch.arange(4.0) * length)
        self.register_buffer(f"{prefix}slope", torch.tensor(1.0 / length))

    @wraps(forward)
    def wrapper(self: nn.Module, x: Tensor) -> Tensor:
        stretch(self, "", len(x))
        return forward(self, x)

    return wrapper


class Rope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("ramp", "slope", "other"):
            self.register_buffer(name, torch.ones(4))

    @as_long_as_its_text
    def forward(self, x: Tensor) -> Tensor:
        return x * self.ramp * self.slope * self.other


def test_a_buffer_that_its_own_forward_pass_writes_is_no_change() -> None:
    net = Rope()
    unchanged = Unchanged(net, F.mse_loss)
    net.eval()(torch.ones(9, 4))
    net.train()
    check_all(unchanged)
    net.other.mul_(2)
    with pytest.raises(ValueError, match="other of the model has been changed"):
        check_all(unchanged)


heat, told = 1.0, []


def by_global(out: Tensor, batch: Tensor) -> Tensor:
    told.append(1)
    return out.mean() * heat


class Trainer:
    def __init__(self) -> None:
        self.heat, self.steps, self.criterion = 1.0, 0, nn.CrossEntropyLoss(torch.ones(4))

    def loss(self, out: Tensor, batch: Tensor) -> Tensor:
        return self.weighed(self.criterion(out, batch))

    def weighed(self, loss: Tensor) -> Tensor:
        return loss * self.heat


def by_value(factor: float) -> Callable:
    return lambda out, batch: out.mean() * factor


def by_default(factor: float) -> Callable:
    return lambda out, batch, by=factor: out.mean() * by


def test_of_two_criteria_each_is_looked_at() -> None:
    both = [nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(label_smoothing=0.2)]
    one, other = both

    def loss(out: Tensor, batch: Tensor) -> Tensor:
        return one(out, batch) + other(out, batch)

    for each in both:
        unchanged = Unchanged(Net(), loss)
        unchanged.check(loss)
        each.label_smoothing += 0.5
        with pytest.raises(ValueError, match=r"label_smoothing, which .* reads, is 0\.[67] now"):
            unchanged.check(loss)


@pytest.mark.parametrize("made", [by_value, by_default])
def test_a_loss_function_may_be_made_anew_but_reads_no_other_value(made) -> None:
    unchanged = Unchanged(Net(), made(0.25))
    unchanged.check(made(0.5 * 0.5))
    with pytest.raises(ValueError, match="which the loss function reads, is 0.5 now and was 0.25"):
        unchanged.check(made(0.5))


def test_a_variable_beside_the_loss_function_is_named(monkeypatch) -> None:
    unchanged = Unchanged(Net(), by_global)
    told.clear()
    unchanged.check(by_global)
    monkeypatch.setitem(by_global.__globals__, "heat", 2.0)
    with pytest.raises(ValueError, match="'heat', which the loss function reads, is 2.0"):
        unchanged.check(by_global)


def test_a_variable_and_a_class_beside_the_code_around_the_blocks_are_named(monkeypatch) -> None:
    unchanged = Unchanged(Net())
    monkeypatch.setitem(Net.forward.__globals__, "calls", 9)
    monkeypatch.setattr(Settings, "unread", 9)
    unchanged.check()
    for change, words in (
        (lambda m: m.setitem(Net.forward.__globals__, "warm", 2.0), "'warm', which the forward"),
        (lambda m: m.setattr(Settings, "cold", 2.0), r"'Settings'\.cold, which the forward"),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            with pytest.raises(ValueError, match=f"{words} pass reads, is 2.0 now and was 1.0"):
                unchanged.check()
    unchanged.check()


def test_what_a_trainers_method_reads_is_named_and_what_it_counts_is_not() -> None:
    trainer = Trainer()
    unchanged = Unchanged(Net(), trainer.loss)
    trainer.steps += 1
    unchanged.check(trainer.loss)
    trainer.heat = 0.5
    with pytest.raises(ValueError, match="heat, which the loss function reads, is 0.5"):
        unchanged.check(trainer.loss)
    trainer.heat = 1.0
    trainer.criterion.weight[0] = 2.0
    with pytest.raises(ValueError, match="weight, which the loss function reads"):
        unchanged.check(trainer.loss)


def test_what_a_librarys_object_gives_by_a_property_is_named() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    net = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_attention_heads=2, attn_implementation="sdpa")
    ).train()
    unchanged = Unchanged(net, F.mse_loss)
    unchanged.check(F.mse_loss)
    net.config._attn_implementation = "eager"
    with pytest.raises(ValueError, match="_internal of the model is 'eager' now and was 'sdpa'"):
        unchanged.check(F.mse_loss)
