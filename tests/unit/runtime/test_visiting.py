"""Weights that visit a place for forward passes, and the place that is chosen."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.model import make_model
from workbench.model.whole import make_whole
from workbench.runtime.checkpoint.checkpoint import in_memory
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.passes.visiting import Arriving, Part, Place, Units, Visits
from workbench.training.places import HOST, Unable, foreign, somewhere

CPU, BF16 = torch.device("cpu"), torch.bfloat16
SPEC = ModelSpec(layers=8, hidden=64, heads=2, seq=8, vocab=300, dropout=0.1, tied=True)


@pytest.mark.parametrize("lean", [False, True])
def test_units_are_there_two_at_a_time_and_compute_what_the_whole_model_does(lean):
    model, place = make_model(SPEC, 0), Place(device=CPU, dtype=BF16, room=0, lean=lean)
    whole = make_whole(model, seed=3).eval()
    masters = {name: p.detach().clone() for name, p in whole.named_parameters()}
    whole.to(BF16)
    ids = torch.randint(300, (6, 9), generator=torch.Generator().manual_seed(0))
    parts = [Part((n, n + 1), [ids[n : n + 2, :-1]], ids[n : n + 2, 1:]) for n in (0, 2, 4)]
    meter = device_meter(CPU)
    for master in masters.values():
        meter.exclude(master)
    with torch.no_grad():
        wanted = [whole(part.given, part.targets, samples=part.samples) for part in parts]
        with meter:
            found = Units(model, Visits(in_memory(masters), place), seed=0).losses(parts)
    assert found == wanted
    units = sorted(2 * model.unit_parameters(unit) for unit in range(model.num_units))
    passing = 6 * 8 * 300 * 4  # logits of a part are the most that is there beside weights
    assert meter.peak < sum(units[-1 if lean else -2 :]) + passing < sum(units) / 2


class Odd(nn.Module):
    """Takes weights in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.experts = nn.Parameter(torch.randn(3, 16, 16))
        self.lstm, self.scale = nn.LSTM(16, 16, batch_first=True), nn.Parameter(torch.rand(16))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        assert self.scale.device == ids.device
        x = self.lstm(self.norm(self.words(ids)))[0] * self.scale
        x = x @ self.experts[1] + (self.experts[0].T @ x[..., None])[..., 0]
        return F.linear(x, self.words.weight) * self.experts.shape[0]


def test_weights_arrive_when_a_function_takes_them_and_leave_for_others():
    torch.manual_seed(0)
    module, ids = Odd().to(BF16), torch.randint(50, (2, 7))
    room = 2 * 16 * 16 * 2
    visits = Visits(
        in_memory({name: p.detach().float() for name, p in module.named_parameters()}),
        Place(device=CPU, dtype=BF16, room=room),
    )
    bare = Odd().to("meta", BF16)
    names = {id(p): name for name, p in bare.named_parameters()}
    with torch.no_grad(), Arriving(visits, names):
        found = bare(ids)
    assert torch.equal(found, module(ids))
    assert sum(nbytes for _, nbytes in visits._here.values()) <= max(room, 50 * 16 * 2)


def test_the_processor_is_the_place_where_the_device_has_no_room(monkeypatch):
    places = [Place(device=CPU, dtype=BF16, room=room) for room in (3, 2, 1)]
    ways = "workbench.training.places.ways"
    monkeypatch.setattr(ways, lambda *_: map(nullcontext, places))
    given, told = (CPU, BF16, None), []

    def until(room: int):
        def work(place: Place) -> int:
            with foreign(place):
                if place.room is not None and place.room > room:
                    raise torch.OutOfMemoryError
                return 10 // (0 if place.room else 2)

        return work

    assert somewhere(until(0), *given, told.append) == 5
    assert somewhere(lambda place: place.room, *given, told.append) == 3
    assert [words.split(": ")[1] for words in told] == ["the device has no room beside training"]
    assert somewhere(until(2), *given, told.append) == 5
    assert told[1].endswith("ZeroDivisionError on the device: integer division or modulo by zero")
    monkeypatch.setattr(ways, lambda *_: iter(()))
    assert somewhere(lambda place: place, *given, told.append) == HOST
    assert len(told) == 2
    with pytest.raises(ZeroDivisionError), foreign(HOST):
        raise ZeroDivisionError
    with pytest.raises(Unable), foreign(replace(HOST, room=1)):
        raise ZeroDivisionError
