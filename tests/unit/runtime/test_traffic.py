"""Bytes are counted by their way, and over the link by what they are."""

from __future__ import annotations

import torch

from workbench.core.record import BETWEEN, PARTS
from workbench.runtime.memory.traffic import Traffic, counted_parts, planned_parts
from workbench.schedule.action import D2H, H2D, Action, Kind
from workbench.schedule.schedule import Schedule

LINK = (
    (Kind.LOAD, H2D), (Kind.GRAD_OUT, D2H), (Kind.FETCH, H2D), (Kind.STASH, D2H),
    (Kind.SUM_IN, H2D), (Kind.SUM_OUT, D2H),
)  # fmt: skip
"""Actions over the link, in the order of `PARTS`."""
ACROSS = (Kind.SEND, Kind.SEND_GRAD, Kind.REDUCE)
"""Actions between devices, in the order of `BETWEEN`."""


def test_a_part_is_counted_beside_its_way() -> None:
    traffic = Traffic(torch.device("cpu"))
    traffic.count("load", 3, Kind.LOAD)
    traffic.count("load", 4, Kind.FETCH)
    traffic.count("read", 5)
    traffic.copy("store", torch.zeros(2), torch.ones(2), Kind.SUM_OUT)
    assert traffic.moved == {"load": 7, "store": 8, "read": 5, "write": 0}
    assert traffic.parts == {"weights_in": 3, "activations_in": 4, "sums_out": 8}


def test_what_devices_exchange_is_counted_and_crosses_no_link() -> None:
    traffic = Traffic(torch.device("cpu"))
    traffic.between(3, Kind.SEND)
    traffic.between(4, Kind.SEND)
    traffic.between(5, Kind.REDUCE)
    assert traffic.parts == {"p2p": 7, "all_reduced": 5}
    assert not any(traffic.moved.values())


def test_a_schedule_says_how_many_bytes_each_part_has() -> None:
    actions = [
        Action(kind=kind, unit=1, lane=lane, nbytes=10**place)
        for place, (kind, lane) in enumerate(LINK)
    ]
    more = [
        Action(kind=kind, unit=1, lane="net-out", nbytes=7 + place)
        for place, kind in enumerate(ACROSS)
    ]
    schedule = Schedule(name="s", num_units=3, num_microbatches=1, actions=(*actions, *more))
    told = planned_parts(schedule, 1)
    link = {part: 10**place for place, part in enumerate(PARTS)}
    assert told == link | dict(zip(BETWEEN, (7 + 8, 9), strict=True))
    moved = schedule.moved_bytes()
    assert moved["load"] + moved["store"] == sum(link.values())


def test_ranks_add_up_and_a_step_is_a_share() -> None:
    ranks = [{"weights_in": 30, "sums_in": 3}, {"weights_in": 60}]
    none = dict.fromkeys(PARTS + BETWEEN, 0)
    assert counted_parts(ranks, 3) == none | {"weights_in": 30, "sums_in": 1}
    assert counted_parts(ranks, 0) == {}
