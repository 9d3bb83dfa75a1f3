"""Where nobody gives a cut, it follows from what slices take here."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch

from tests.varuna import net
from workbench.core.stage_map import StageMap
from workbench.methods.varuna.cutting import measured_cut
from workbench.methods.varuna.shares import Shares
from workbench.methods.varuna.slice_timing import SliceBench
from workbench.methods.varuna.slices import Slices
from workbench.profile.timing import Sample

TIMES = {0: (1.0, 2.0), 1: (3.0, 4.0), 2: (2.0, 4.5), 4: (2.0, 9.0)}
"""Forward and backward passes by the first slice of each kind; slices 2 and 3 are alike."""
EVERY = [TIMES[unit] for unit in (0, 1, 2, 2, 4)]


def slowest(bounds: tuple[int, ...]) -> float:
    """Seconds of the slowest stage; all but the last run forward twice."""
    stages = [EVERY[first:end] for first, end in pairwise((0, *bounds, len(EVERY)))]
    again = [sum(f for f, _ in stage) for stage in stages[:-1]] + [0]
    return max(a + sum(f + b for f, b in stage) for a, stage in zip(again, stages, strict=True))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_slowest_stage_is_as_fast_as_can_be_and_nothing_is_left_behind(monkeypatch, stages):
    seen = []

    def seconds(bench):
        seen.append(bench._stage.units.start)
        return [[Sample(each, each)] * 4 for each in TIMES[seen[-1]]]

    monkeypatch.setattr(SliceBench, "_seconds", seconds)
    slices = Slices(net.net(batchnorm=True), net.batch)
    before = {name: value.clone() for name, value in slices.module.state_dict().items()}
    random = torch.random.get_rng_state()
    asked = slices, StageMap.of(stages, 2), Shares(batch=12, replicas=2, chunk=3), "varuna"
    how = {"device": torch.device("cpu"), "dtype": torch.float32}
    found = [*map(int, measured_cut(*asked, **how).split())]
    assert seen == [0, 1, 2, 4], "one of each kind"
    best = min(map(slowest, combinations(range(1, 5), stages - 1)))
    assert slowest(tuple(sum(found[: n + 1]) for n in range(stages - 1))) == best
    torch.testing.assert_close(slices.module.state_dict(), before, rtol=0, atol=0)
    assert all(each.grad is None for each in slices.module.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)
