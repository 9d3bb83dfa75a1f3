"""What passes take where ranks share a processor is measured once, and plans know it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial

import psutil
import pytest

from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile
from tests.methods.rank_server import process
from tests.methods.test_ranks import spec_for
from tests.runs.helpers import living
from workbench.methods.harmony import planner
from workbench.profile import measure, rehearsal
from workbench.profile.profile import Wires
from workbench.profile.rehearsal import with_overhead
from workbench.profile.several import of_size
from workbench.profile.store import rehearsed, silent, stored_profile
from workbench.training import ranks as train_ranks
from workbench.training.rank_processes import RankTraining
from workbench.training.ranks import profiles_for

WIRES = Wires(
    ranks=2, load_bytes_per_s=1e9, store_bytes_per_s=1e9, message_bytes_per_s=1e9,
    reduce_bytes_per_s=1e9, message_latency_s=0.0,
)  # fmt: skip


@pytest.fixture
def rehearsing(monkeypatch):
    """As where timings are not brief, which those of tests are."""
    monkeypatch.setattr(rehearsal, "brief", lambda: False)


def test_it_is_measured_once_and_kept_and_planned_with(tmp_path, monkeypatch, measured, answered):
    shutil.copytree(measured, tmp_path / "profiles")
    # On a machine that becomes slower layers are timed anew, as test_store.py asks.
    monkeypatch.setattr(measure, "probe", lambda device, dtype: 1.0)
    spec = spec_for(method="harmony-pp", ranks=2, forward_size=2, backward_size=2)
    before = profiles_for(planner, spec, tmp_path, Silent())
    assert before[2].hardware.wires.pass_overhead_s is None, "timings of tests are brief"
    monkeypatch.setattr(rehearsal, "brief", lambda: False)
    if not answered.asked:  # nobody wants to know how good the answer is
        monkeypatch.setattr(rehearsal, "STEPS", 14)
        forked = partial(RankTraining, process=process(""))
        monkeypatch.setattr(train_ranks, "RankTraining", forked)
    before_it = set(living(psutil.Process().children()))
    first, second = Silent(), Silent()
    assert profiles_for(planner, spec, tmp_path, first) == before, "it is a short run"
    assert told(first)[-1].startswith("not rehearsed, which takes some 40 s: this run takes about")
    (tmp_path / "reports").mkdir()  # where plans are judged
    profiles = profiles_for(planner, spec, tmp_path, first)
    steps = rehearsal.STEPS
    assert f"rehearsing: {steps} steps of 2 small models on 2 ranks" in told(first)
    assert set(living(psutil.Process().children())) <= before_it
    seconds = profiles[2].hardware.wires.pass_overhead_s
    assert seconds >= 0
    assert profiles[2].hardware.wires.pass_slowdown >= 1
    answered.enter("ranks: what a pass takes beyond its plan", 0.1, seconds)
    assert profiles_for(planner, spec, tmp_path, second) == profiles
    assert told(second) == []
    stored = stored_profile(spec.with_(batch=2), tmp_path)
    assert stored.hardware.wires.pass_overhead_s == seconds


def told(report):
    return [values["text"] for kind, values in report.events if kind == "profile"]


@pytest.mark.parametrize(
    ("overhead", "slowdown", "found"),
    [(3e-4, 1.3, (3e-4, 1.3)), (2e-3, 1.0, (2e-3, 1.0)), (0.0, 1.2, (0.0, 1.2)),
     (0.0, 0.5, (0.0, 1.0))],
)  # fmt: skip
def test_it_is_what_steps_take_beyond_their_plan(overhead, slowdown, found):
    """Of steady steps that nobody notes down; where they are faster than planned it is nothing."""
    there = replace(WIRES, pass_overhead_s=overhead, pass_slowdown=slowdown)

    def profiled(spec):
        found, times = made_up_profile(of_size(spec, 2)), spec.model.hidden / 64
        names = ("forward_s", "recompute_s", "backward_s")
        units = [
            replace(unit, **{name: times * getattr(unit, name) for name in names})
            for unit in found.units
        ]
        return replace(found, units=tuple(units))

    def trained(spec, schedule):
        packs = {name: schedule.settings[name] for name in ("forward_packs", "backward_packs")}
        profile = rehearsal._on(there, profiled(spec))
        steady = planner.plan(spec.with_(**packs), {2: profile}, mode="pp").step_seconds
        return [9.0] * 8 + [steady] * 29 + [9.0] * 3

    trials = [
        rehearsal.rehearse(
            spec, profiled(spec), WIRES, scheduled=planner.rehearsal, trained=trained
        )
        for spec in (rehearsal._small("harmony-pp", 2, width) for width in rehearsal.WIDTHS)
    ]
    solved = rehearsal.solved(trials)
    told = solved["pass_overhead_s"], solved["pass_slowdown"]
    assert told == pytest.approx(found, rel=0.1, abs=5e-5)


def test_who_waited_for_another_process_takes_what_it_measured(tmp_path):
    known = replace(WIRES, pass_overhead_s=1e-3)
    assert rehearsed(WIRES, tmp_path, "cpu", silent, lambda: {"pass_overhead_s": 1e-3}) == known
    late = rehearsed(WIRES, tmp_path, "cpu", silent, lambda: pytest.fail("measured again"))
    assert late == known


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

    def never(*_):
        pytest.fail("it was measured")

    found = with_overhead({2: profile}, spec_for(), tmp_path, never, scheduled=never, trained=never)
    assert found == {2: profile}
    assert not [*tmp_path.iterdir()]
