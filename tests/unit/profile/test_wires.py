"""Links of several ranks are measured by as many processes, none of which stays behind."""

from __future__ import annotations

from functools import partial

import psutil
import pytest
import torch

from tests.methods.rank_server import process
from workbench.profile import together, wires
from workbench.profile.profile import Hardware, Profile, UnitCost, Wires
from workbench.profile.server import server_of
from workbench.ranks.launcher import RankLauncher
from workbench.runs.overrides import make_spec

HARDWARE = Hardware(
    name="made up",
    source="published",
    device="cpu",
    cores=4,
    device_bytes=1 << 30,
    host_bytes=1 << 30,
    h2d_bytes_per_s=1e9,
    d2h_bytes_per_s=1e9,
    host_adam_params_per_s=1e8,
    device_adam_params_per_s=1e9,
    matmul_flops_per_s=1e10,
)


@pytest.fixture
def forked(monkeypatch):
    """It is asked what ranks measure, and not how they start."""
    monkeypatch.setattr(together, "RankLauncher", partial(RankLauncher, process=process("")))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.usefixtures("forked")
def test_ranks_measure_what_they_move(answered) -> None:
    before = children()
    found = wires.measure(4, "cpu")
    assert (found.ranks, [*found.reduce_by_group]) == (4, ["2"])
    assert found.reduce_by_group["2"] > 0
    rates = (found.load_bytes_per_s, found.message_bytes_per_s, found.reduce_bytes_per_s)
    assert min(rates) > 0
    assert found.message_latency_s > 0
    answered.enter("ranks: a message between two", 0.1, found.message_latency_s)
    assert (found.host_adam_params_per_s, found.slowdowns) == (None, {})
    assert children() <= before


@pytest.mark.gpu
def test_ranks_with_gpus_measure_their_updates_and_what_is_in_their_way() -> None:
    ranks = min(4, torch.cuda.device_count())
    if ranks < 2:
        pytest.skip("one GPU is no several")
    found = wires.measure(ranks, "cuda")
    assert found.host_adam_params_per_s > 0
    lanes = ("h2d", "d2h", "host")
    assert {f"{a}|{b}" for a in lanes for b in lanes if a != b} < {*found.slowdowns}
    assert min(found.slowdowns.values()) >= 1


@pytest.mark.usefixtures("forked")
def test_a_rank_that_cannot_measure_says_why_and_nobody_stays() -> None:
    before = children()
    with pytest.raises(
        RuntimeError, match=r"the links of 2 ranks were not measured: rank \d: .*nowhere"
    ):
        wires.measure(2, "nowhere")
    assert children() <= before


def test_plans_take_what_was_measured_for_as_many_ranks() -> None:
    measured = Wires(
        ranks=2, load_bytes_per_s=1.0, store_bytes_per_s=2.0, message_bytes_per_s=3.0,
        reduce_bytes_per_s=4.0, message_latency_s=5.0, reduce_by_group={"3": 8.0},
    )  # fmt: skip
    unit = UnitCost(kind="block", parameters=1, forward_s=1, recompute_s=1, backward_s=1)

    def server(ranks: int):
        hardware = {**{f: getattr(HARDWARE, f) for f in HARDWARE.__slots__}, "wires": measured}
        profile = Profile(
            hardware=Hardware(**hardware), units=(unit,), microbatch=1, seq=1, weight_bytes=4
        )
        return server_of(profile, make_spec({"method": "harmony-pp", "ranks": ranks, "batch": 4}))

    two = server(2)
    assert (two.load_bytes_per_s, two.store_bytes_per_s, two.reduce_bytes_per_s) == (1.0, 2.0, 4.0)
    assert two.message_seconds(30) == 15.0
    assert [two.sum_seconds(24, devices) for devices in (2, 3)] == [6.0, 3.0]
    assert server(4).message_latency_s == 0.0, "four ranks were not measured"
