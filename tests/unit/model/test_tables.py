"""Tables that code keeps beside a module have values after the module was looked at, or it is
refused and they are as they were."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from workbench.model import tables
from workbench.model.objective import Batch, Objective

kept: dict[int, Tensor] = {}


def by_dictionary(n: int) -> Tensor:
    if n not in kept:
        kept[n] = torch.arange(n).float().cos()
    return kept[n]


@functools.lru_cache
def by_function(n: int) -> Tensor:
    return torch.arange(n).float().cos()


class Block(nn.Module):
    def __init__(self, table, dim: int) -> None:
        super().__init__()
        self.inner, self.table, self.dim = nn.Linear(4, 4), table, dim

    def forward(self, x: Tensor) -> Tensor:
        by = self.table(x.shape[self.dim])
        return self.inner(x) * (by[:, None] if self.dim == 0 else by)


def looked_at(table, dim: int, loss=lambda out, _: out.mean()) -> None:
    net = nn.Sequential(*(Block(table, dim) for _ in range(2)))
    Objective(net, loss, Batch((torch.ones(8, 4), torch.ones(8)))).layered()


@pytest.fixture(autouse=True)
def cleared():
    kept.clear()
    by_function.cache_clear()


@pytest.mark.parametrize("table", [by_dictionary, by_function])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_table_that_is_kept_has_values(table, dim) -> None:
    looked_at(table, dim)
    assert not isinstance(table(4), FakeTensor)
    assert torch.equal(table(4), torch.arange(4).float().cos())


@pytest.mark.parametrize(("table", "name"), [(by_dictionary, "kept"), (by_function, "table")])
def test_one_that_is_kept_without_values_is_refused_and_taken_out(monkeypatch, table, name) -> None:
    monkeypatch.setattr(tables, "COST", 0.0)  # a model too large to be called before
    with pytest.raises(ValueError, match=f"'{name}', which .* without values; keep"):
        looked_at(table, 1)
    assert not kept
    assert not by_function.cache_info().currsize
    table(4)
    looked_at(table, 1)


def test_what_a_loss_function_logs_is_refused() -> None:
    told, by_name = [], {}

    def in_list(out: Tensor, _: Tensor) -> Tensor:
        told.append(out.detach())
        return out.mean()

    def in_dictionary(out: Tensor, _: Tensor) -> Tensor:
        by_name["told"] = loss = out.mean()
        return loss

    for loss, name in ((in_list, "told"), (in_dictionary, "by_name")):
        words = f"'{name}', which the module's code or loss_fn keeps, .* log beside engine.step"
        with pytest.raises(ValueError, match=words):
            looked_at(by_function, 1, loss)
    assert not any(isinstance(each, FakeTensor) for each in (*told, *by_name.values()))
