"""What passes take where ranks share a processor is measured once, and plans know it."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest

from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile
from tests.methods.test_ranks import spec_for
from workbench.methods.harmony import planner, rehearsal
from workbench.methods.harmony.rehearsal import with_overhead
from workbench.methods.harmony.train import profiles_for
from workbench.profile.profile import Wires
from workbench.profile.store import stored_profile

WIRES = Wires(
    ranks=2, load_bytes_per_s=1e9, store_bytes_per_s=1e9, message_bytes_per_s=1e9,
    reduce_bytes_per_s=1e9, message_latency_s=0.0,
)  # fmt: skip


@pytest.fixture
def rehearsing(monkeypatch):
    """As where timings are not brief, which those of tests are."""
    monkeypatch.setattr(rehearsal, "brief", lambda: False)


def test_it_is_measured_once_and_kept_and_planned_with(tmp_path, rehearsing):
    spec = spec_for(ranks=2, forward_size=2, backward_size=2)
    before = profiles_for(spec, tmp_path, Silent())
    children, told = psutil.Process().children(), []
    profiles = with_overhead(before, tmp_path, told.append)
    assert told[0] == "rehearsing: 24 steps of a small model on 2 ranks"
    seconds = profiles[2].hardware.wires.pass_overhead_s
    assert 0 <= seconds < 0.1
    assert stored_profile(spec.with_(microbatches=3), tmp_path).hardware.wires.pass_overhead_s == (
        seconds
    )
    again = profiles_for(spec, tmp_path, Silent())
    assert with_overhead(again, tmp_path, lambda _: pytest.fail("it was measured")) == again
    assert again[2].hardware.wires.pass_overhead_s == seconds
    planned = [planner.plan(spec, found, mode="pp").step_seconds for found in (before, again)]
    assert (planned[1] > planned[0]) == (seconds > 0)
    assert psutil.Process().children() == children


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cuda", "wires": WIRES},
        {"wires": None},
        {"wires": replace(WIRES, pass_overhead_s=0.0)},
    ],
)
def test_nothing_is_rehearsed_where_nobody_shares_or_it_is_known(tmp_path, rehearsing, changes):
    profile = made_up_profile(spec_for())
    profile = replace(profile, hardware=replace(profile.hardware, **changes))
    found = with_overhead({2: profile}, tmp_path, lambda _: pytest.fail("it was measured"))
    assert found == {2: profile}
    assert not [*tmp_path.iterdir()]
