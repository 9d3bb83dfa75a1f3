"""Sums of gradients over ranks are rounded once, whatever the gradients are stored in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.runtime.test_distributed_checkpoint import processes
from workbench.runtime.transport import groups
from workbench.schedule import Schedule
from workbench.schedule.action import NET_OUT, Action, Kind

NUMEL = 37
"""Divides by no number of ranks and into no whole pieces."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_three_ranks_add_up_16_bits_in_fp32(tmp_path, monkeypatch, dtype) -> None:
    action = Action(kind=Kind.REDUCE, unit=0, lane=NET_OUT)
    schedule = Schedule(name="sums", num_units=1, num_microbatches=1, actions=(action,), replicas=3)
    random = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, NUMEL, generator=random).to(dtype)  # [ranks, values]
    monkeypatch.setattr(groups, "PIECE", 16)

    def add_up(rank: int, world: Any) -> Any:
        own = drawn[rank].clone()
        first = groups.Groups(schedule).add_up(own, action)
        return first, own.tolist()

    expected = drawn.float().sum(0).to(dtype).tolist()
    assert processes(3, tmp_path, add_up) == [(0, expected)] * 3
