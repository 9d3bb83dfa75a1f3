"""A loss function that does something else than in the first step is refused wherever it reads
what has changed; one that does the same is not, and none is called where it cannot be."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from workbench.model.loss_again import MOST, LossAgain

ROWS, CLASSES = 2, 3


class Anneal:
    """Holds what a loss function reads, in all ways that names do not tell."""

    rate = 1.0

    def __init__(self) -> None:
        self.n, self.array, self.queue = 1.0, np.ones(1), deque([1.0])
        self.long, self.tensor = [1.0] * 70, torch.ones(5)
        self.table = {"a": {"b": {"c": {"d": 1.0}}}}

    def weight(self) -> float:
        return self.n

    @property
    def half(self) -> float:
        return self.n / 2


@dataclass(slots=True)
class Slots:
    heat: float = 1.0


def begun(loss_fn: Callable) -> tuple[LossAgain, Callable[[], None]]:
    """After a first step, and a function that makes another."""
    again = LossAgain()
    with FakeTensorMode():
        outputs, labels = torch.ones(ROWS, CLASSES), torch.ones(ROWS, dtype=torch.int64)
    again.note([labels], {"logits": outputs, "scale": 2})
    again.begin(loss_fn, tuple)
    return again, lambda: again.check(loss_fn, tuple)


def reading(read: Callable[[Any], Any]) -> Callable:
    """Makes a loss function of an object that reads a number there."""
    return lambda held: (
        lambda out, batch: (
            F.cross_entropy(out["logits"], batch[0]) + read(held) * out["logits"].pow(2).mean()
        )
    )


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda a: a.weight(), lambda a: setattr(a, "n", 0.5)),
        (lambda a: a.half, lambda a: setattr(a, "n", 0.5)),
        (lambda a: type(a).rate, lambda a: setattr(type(a), "rate", type(a).rate / 2)),
        (lambda a: float(a.array[0]), lambda a: a.array.fill(0.5)),
        (lambda a: a.queue[0], lambda a: a.queue.appendleft(0.5)),
        (lambda a: a.long[69], lambda a: a.long.__setitem__(69, 0.5)),
        (lambda a: a.table["a"]["b"]["c"]["d"], lambda a: a.table["a"]["b"]["c"].update(d=0.5)),
        (lambda a: a.tensor.sum(), lambda a: a.tensor.data.fill_(0.5)),
        (lambda a: a.tensor.mean().item(), lambda a: a.tensor.numpy().fill(0.5)),
    ],
)
def test_a_number_is_found_wherever_it_is_read(read, change) -> None:
    held = Anneal()
    _, step = begun(reading(read)(held))
    step()
    change(held)
    with pytest.raises(ValueError, match="reads something that changes .*'mul' is"):
        step()


def test_numbers_of_slots_other_operations_and_errors_are_told() -> None:
    slots = Slots()
    _, step = begun(reading(lambda s: s.heat)(slots))
    slots.heat = 0.25
    with pytest.raises(ValueError, match="a number in its 'mul' is 0.25 now and was 1"):
        step()
    log: dict[str, Any] = {"by": torch.exp, "dim": 0}
    _, step = begun(lambda out, batch: log["by"](out["logits"]).sum(log["dim"]).mean())
    for key, value, words in (
        ("by", torch.sin, "it calls 'sin' where it called 'exp'"),
        ("dim", 1, "its 'sum' has another argument"),
        ("dim", 7, "IndexError"),
    ):
        log.update({"by": torch.exp, "dim": 0, key: value})
        with pytest.raises(ValueError, match=words):
            step()
    log.update(by=torch.exp, dim=0)
    step()


def test_a_teacher_that_learns_is_found_and_a_large_one_is_seldom_called() -> None:
    teacher, calls = nn.Linear(CLASSES, CLASSES), []

    def loss(out: dict, batch: tuple) -> Tensor:
        calls.append(1)
        for _ in range(MOST if many else 1):
            out["logits"] = teacher(out["logits"])
        return out["logits"].mean()

    for many, most in ((False, 15), (True, 4)):
        with torch.no_grad():
            _, step = begun(loss)
            calls.clear()
            for _ in range(15):
                step()
            assert len(calls) == most
            teacher.weight.mul_(0.9)
            for _ in range(many * 15):
                step()
            with pytest.raises(ValueError, match="a number in its '.*' is another"):
                step()


def in_place(out: dict, batch: tuple) -> Tensor:
    grid = torch.zeros(4).fill_(0.5).add_(1.0)
    x = out["logits"].clone().mul_(grid[0]).unsqueeze_(0).add_(torch.randn(3))
    return x[0, :, : int(grid.sum() - 4)].relu_().mean() * torch.tensor([1.0, 2.0]).max()


def focal(out: dict, batch: tuple) -> Tensor:
    chosen = F.log_softmax(out["logits"], 1).gather(1, batch[0][:, None]).squeeze(1)
    return (-((1 - chosen.exp()) ** 2) * chosen).mean()


def test_the_same_is_the_same_and_leaves_no_trace() -> None:
    seen: dict[int, Tensor] = {}

    def by_table(out: dict, batch: tuple) -> Tensor:
        if 3 not in seen:
            seen[3] = torch.arange(3.0).cos()
        return (F.dropout(out["logits"], 0.5) * seen[3]).mean() * out["scale"]

    before = torch.random.get_rng_state()
    for loss in (in_place, by_table, focal, nn.CrossEntropyLoss()):
        again, step = begun(loss)
        assert isinstance(loss, nn.Module) == (again._first is None)  # it takes no dictionary
        for _ in range(3):
            step()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_cannot_be_called_is_left_alone_and_what_draws_by_python_is_not() -> None:
    total = torch.zeros(3)
    for loss in (
        lambda out, batch: float(out["logits"].sum()),
        lambda out, batch: total.add_(1.0).sum() * out["logits"].mean(),
    ):
        _, step = begun(loss)
        step()
    assert not total.any()
    with pytest.raises(ValueError, match="changes from step to step"):
        begun(lambda out, batch: out["logits"].mean() * random.random())  # noqa: S311


class Trainer:
    def loss(self, out: dict, batch: tuple) -> Tensor:
        self.told = out["logits"].detach()
        return out["logits"].mean()


class Criterion(nn.Module):
    def forward(self, out: dict, batch: tuple) -> Tensor:
        self.told = loss = out["logits"].mean()
        return loss


@pytest.mark.parametrize("loss", [Trainer().loss, Criterion()])
def test_what_it_computes_is_not_to_be_kept(loss) -> None:
    with pytest.raises(ValueError, match="told', which .* keeps, .* log beside engine.step"):
        begun(loss)
