"""Collectives of this machine: what operators exchange is in their times, whichever was measured
first, and costs read the rest."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from tests.methods.aceso.test_profiles import profile
from tests.methods.rank_server import process
from tests.runs.helpers import wait_for
from workbench.cli import main
from workbench.core.paths import import_path
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.database import BACKWARD, COLLECTIVES, FORWARD, read_database
from workbench.methods.aceso.plan import Plan, Stage, subject_of
from workbench.methods.aceso.space import Cluster
from workbench.profile import collective_store, collective_timing
from workbench.profile.collectives import Setting, powers, settings, sizes
from workbench.profile.shard_timing import Timer
from workbench.ranks.launcher import RankLauncher

SUBJECT = subject_of("gpt", "tiny", 4)
NUMBERS = 2 * 64 * 64
"""Numbers of a tensor of two samples."""


def comm(folder: Path, *more: str) -> list[str]:
    return ["aceso", "profile-comm", *profile(folder)[2:], "--max-data-size", "2", *more]


@pytest.fixture
def forked(monkeypatch):
    """It is asked what ranks measure, and not how they start."""
    launcher = partial(RankLauncher, process=process(""))
    monkeypatch.setattr("workbench.profile.together.RankLauncher", launcher)
    monkeypatch.setattr(collective_store, "drifted", lambda *_: False)
    monkeypatch.setattr("workbench.profile.shard_store.drifted", lambda *_: False)


def known(folder: Path, device: str = "cpu"):
    return collective_store.known_collectives(folder, "bf16", print, device=device)


def tables(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "csv").iterdir()}


@pytest.mark.usefixtures("forked")
def test_exchanges_are_in_the_times_of_operators(tmp_path, monkeypatch, capsys) -> None:
    assert main(profile(tmp_path)) == 0
    assert "times of tp 2 are without collectives" in capsys.readouterr().out
    before = tables(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Timer, "cost", None)  # none is timed again
        assert main(comm(tmp_path)) == 0
    after, found = tables(tmp_path), known(tmp_path)
    alone = {name for name in before if "tp1" in name} | {"updates.csv"}
    assert {name for name in before if after[name] == before[name]} == alone
    assert after.keys() - before.keys() == {f"prim_gpt_tiny_{c}_2gpus.csv" for c in COLLECTIVES}
    summed = found.of("all_reduce", 2).at(NUMBERS * 2) * 1e6  # of bf16, in microseconds
    added = {
        row["op_name"]: [float(row[key]) - float(old[key])
                         for key in ("forward-compute", "backward-compute")]
        for old, row in zip(*(csv.DictReader(each["gpt_tiny_mbs2_tp2_algo0.csv"].splitlines())
                              for each in (before, after)), strict=True)
    }  # fmt: skip
    for columns, rows in (("enc-attention-qkv", "enc-attention-dense"),
                          ("enc-MLP-GEMM-1", "enc-MLP-GEMM-2")):  # fmt: skip
        assert added[columns] == pytest.approx([0, summed], abs=2e-3)
        assert added[rows] == pytest.approx([summed, 0], abs=2e-3)
    assert added["enc-MLP-gelu"] == added["enc-1st-layernorm"] == [0, 0]

    # Nothing is measured again, and the other order gives these files, too.
    monkeypatch.setattr(Timer, "cost", None)
    monkeypatch.setattr(collective_timing, "measure", None)
    assert main(comm(tmp_path)) == 0
    capsys.readouterr()
    other = ["--profiled-time-path", str(tmp_path / "other" / "csv")]
    assert main(profile(tmp_path, *other)) == 0
    assert "without collectives" not in capsys.readouterr().out
    assert tables(tmp_path / "other") == tables(tmp_path) == after


@pytest.mark.usefixtures("forked")
def test_costs_find_every_collective_that_they_ask_for(tmp_path) -> None:
    """A stage in which tp, dp and partition change is rated: no size is unknown, none is counted
    twice, and `ours` sums gradients as was measured of devices a stride apart."""
    assert main(profile(tmp_path, "--micro-batch-size", "1", "2", "4")) == 0
    assert main(comm(tmp_path, "--prof-tp-size", "4", "--prof-repeat-time", "1",
                     "--micro-batch-size", "1", "2", "4")) == 0  # fmt: skip
    (tmp_path / "csv" / "p2p_intra_node.csv").write_text("1,2\n5.0,6.0\n")
    assert {each.setting for each in known(tmp_path).found} == {*settings(4)}
    count, half = len(SUBJECT.operators()), 30
    tp = bytes([2] * half + [1] * (count - half))
    dp, algo = bytes(2 // each for each in tp), bytes(i % 3 == 2 for i in range(count))
    plan = Plan(SUBJECT, 4, (Stage(2, tp, dp, algo, bytes(count)),))
    cluster = Cluster(nodes=1, per_node=4, memory=1e6)
    ask = Ask(subject=SUBJECT, cluster=cluster, database=tmp_path / "csv")
    database = read_database(tmp_path / "csv", SUBJECT.name, SUBJECT.operators())
    for cost in ("published", "ours"):
        costs = replace(ask, cost=cost).costs()
        found = costs.of_stage(plan, 0, 0)
        assert 0 < found.reshard < 1e3
        # Beside exchanges between layouts there is what the rows of profiles hold.
        columns = costs.columns(plan.stages[0], 0, 4)[[FORWARD, BACKWARD]].sum(axis=1) / 1e6
        assert (found.forward, found.backward) == pytest.approx(tuple(columns))
    assert database.strided["all_reduce", 2, 2]
    near = database.collectives["all_reduce", 2]
    database.strided["all_reduce", 2, 2] = {mb: 10 * ms for mb, ms in near.items()}
    costs.database = database
    wide = Plan(SUBJECT, 4, (Stage(4, b"\2" * count, b"\2" * count, bytes(count), bytes(count)),))
    slow = costs.of_stage(wide, 0, 0).sums
    costs._curves.clear()
    costs._known.clear()
    database.strided.clear()
    assert (quick := costs.of_stage(wide, 0, 0).sums) > 0
    assert slow == pytest.approx(10 * quick)


@pytest.mark.usefixtures("forked")
def test_a_profile_that_was_interrupted_goes_on_and_nobody_stays(tmp_path, monkeypatch) -> None:
    store, before = collective_store.write, psutil.Process().children(recursive=True)

    def write(*what) -> None:
        store(*what)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collective_store, "write", write)
        assert main(comm(tmp_path)) == 130
    assert {*psutil.Process().children(recursive=True)} <= {*before}
    goes_on(tmp_path, monkeypatch)


@pytest.mark.thorough
def test_ranks_end_where_the_profile_was_killed(tmp_path, monkeypatch) -> None:
    words = [sys.executable, "-m", "workbench", *comm(tmp_path)]
    run = subprocess.Popen(words, env={**os.environ, **import_path()})
    try:
        wait_for(lambda: known(tmp_path))
        ranks = psutil.Process(run.pid).children(recursive=True)
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: not any(rank.is_running() for rank in ranks))
    monkeypatch.setattr(collective_store, "drifted", lambda *_: False)
    goes_on(tmp_path, monkeypatch)


def goes_on(folder: Path, monkeypatch) -> None:
    """Profiling goes on after a kill: collectives that were stored are not measured again."""
    first, asked = {each.setting for each in known(folder).found}, []
    assert not (folder / "csv").exists()
    monkeypatch.setattr(collective_timing, "measure", lambda *given: asked.extend(given[3]))
    assert main(comm(folder)) == 0
    assert {*asked} == {*settings(2)} - first
    assert first


@pytest.mark.usefixtures("forked")
def test_a_rank_that_fails_is_told_in_one_sentence(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(collective_store, "settings", lambda devices: [Setting(2, 1, 1, "gossip")])
    assert main(comm(tmp_path)) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"collectives were not measured: rank \d: .*gossip", told)
    assert not (tmp_path / "csv").exists()


@pytest.mark.gpu
def test_gpus_exchange_over_nccl(tmp_path) -> None:
    if (count := torch.cuda.device_count()) < 2:
        pytest.skip("one GPU exchanges with nobody")
    assert main(comm(tmp_path, "--device", "cuda")) == 0
    found = known(tmp_path, "cuda").found
    assert {each.setting for each in found} == {*settings(powers(2, count)[-1])}
    assert min(min(each.seconds) for each in found) > 0


def test_sizes_of_a_group_together_stay_below_the_limit() -> None:
    for each in settings(8):
        largest = sizes(each, 64)[-1]
        assert largest * each.devices <= 64 << 20 < 2 * largest * each.devices


WRONG = {
    "devices": (["--prof-tp-size", "3"], "--prof-tp-size is 3; it must be a power of two, from 2"),
    "one": (["--prof-tp-size", "1"], "--prof-tp-size is 1; it must be a power of two, from 2"),
    "large": (["--max-data-size", "5000"], "--max-data-size is 5000; it must be from 1 to 4096"),
    "none": (["--max-data-size", "0"], "--max-data-size is 0; it must be from 1 to 4096"),
    "repeats": (["--prof-repeat-time", "0"], "repeat [0]; it must be 1 or more"),
    "tp": (["--tp", "3"], "--tp has 3; it must divide 4, the heads or channels"),
    "model": (["--model-size", "9B"], "the size is '9B'; gpt has 350M"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence_and_writes_nothing(name, tmp_path, capsys) -> None:
    words, told = WRONG[name]
    assert main(comm(tmp_path, *words)) == 2
    out, err = capsys.readouterr()
    assert not out
    assert told in err
    assert err.count("\n") == 1
    assert not [*tmp_path.iterdir()]
