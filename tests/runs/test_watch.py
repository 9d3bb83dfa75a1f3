"""A page sees of sweeps: states, runs, time left, the end of a log, and only what changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path

import psutil
import pytest

from tests.runs.fake_method import TOLD_S
from tests.runs.helpers import sweep_of, wait_for
from tests.runs.in_process import InProcess
from workbench.core.sealed import read_sealed
from workbench.runs.campaign import Campaign
from workbench.runs.log_tail import last_lines, printable, without_tracebacks
from workbench.runs.store import Store
from workbench.ui import watch as watching
from workbench.ui.watch import SweepWatch, Watch

Make = Callable[..., Campaign]
facts = attrgetter("where", "step", "steps", "loss", "seconds_left")


@pytest.fixture
def make(store: Store) -> Make:
    return partial(sweep_of, store, text="steps", seeds=2)


@pytest.fixture
def watch(store: Store) -> Watch:
    return Watch(store, InProcess())


def follow(watch: Watch, name: str = "mine") -> SweepWatch:
    watch.follow(name)
    watch.look()
    watch.look()
    return watch.sweeps[name]


def until(watch: Watch, state: str, name: str = "mine") -> SweepWatch:
    wait_for(lambda: watch.look() is not None and watch.sweeps[name].status.state == state)
    watch.look()
    return watch.sweeps[name]


def test_runs_are_seen_before_during_and_after(make: Make, watch: Watch, tmp_path: Path) -> None:
    campaign = make(text=f"until {tmp_path}", batch=8)
    sweep = follow(watch)
    assert [(p.what, p.state) for p in sweep.points] == [
        ("Fake, 16 layers, seed 0", "pending"),
        ("Fake, 16 layers, seed 1", "pending"),
    ]
    campaign.start()
    for seed in range(2):
        # The fifth step waits; those before it are said to have taken so long.
        told = ("the processors", 4, 5, 1 / 4, TOLD_S)
        seen = partial(lambda n: facts(sweep.points[n]), seed)  # they may be listed anew meanwhile
        wait_for(lambda told=told, seen=seen: watch.look() is not None and seen() == told)
        (tmp_path / str(seed)).touch()
    until(watch, "done")
    assert sweep.counts() == {"done": 2}
    assert [(p.status, p.loss) for p in sweep.points] == [("ok", pytest.approx(0.2))] * 2
    assert all(p.seconds > 0 and p.where == "" for p in sweep.points)
    os.utime(campaign.folder / "sweep.json", (4e9, 4e9))  # the clock was set back after that
    again = follow(Watch(watch.store, InProcess()))
    assert [p.status for p in again.points] == ["ok", "ok"]
    Campaign.create(watch.store, {**campaign.data, "grid": {"seed": [7]}}, replace=True)
    assert [p.status for p in follow(watch).points] == [""], "they were another sweep's"


def test_a_look_reads_only_what_changed(
    make: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch, answered
) -> None:
    for number in range(20):
        make(f"old-{number}", seed=number)
    make().start()
    sweep = follow(watch)
    until(watch, "done")
    monkeypatch.setattr(watching, "AGAIN_S", 1e9)  # or it lists the folder again, seconds later
    while watch.look():
        pass
    reads: list[str] = []
    monkeypatch.setattr(Campaign, "status", lambda self: reads.append(self.name))
    monkeypatch.setattr(watching, "last_lines", lambda path: reads.append(str(path)) or [])
    monkeypatch.setattr(watching, "read_record", lambda path: reads.append(str(path)))
    asked = len(watch.helper.asked)
    for _ in range(20):
        with answered("sweeps: a look at 21 that have not changed", 0.01, "process"):
            assert watch.look() == set()
    assert reads == []
    assert len(watch.helper.asked) == asked
    log = watch.store.folder(sweep.points[1].key) / "log.txt"
    log.write_text("more\n")
    assert watch.look() == {"mine"}
    assert reads == [str(log)]


def test_a_killed_sweep_is_interrupted_and_none_of_its_runs_runs(
    make: Make, watch: Watch, tmp_path: Path
) -> None:
    campaign = make(text=f"until {tmp_path}")
    campaign.start()
    sweep = follow(watch)
    wait_for(lambda: watch.look() is not None and sweep.running())
    psutil.Process(campaign.status().pid).kill()
    until(watch, "interrupted")
    assert [p.state for p in sweep.points] == ["pending", "pending"]
    assert Watch(watch.store, InProcess()).look() == {"mine"}
    other = Watch(watch.store, InProcess())
    other.look()
    assert other.wanted() == "mine"


def test_changed_code_is_said(make: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    make(text="steps 0").start()
    until(watch, "done")
    monkeypatch.setattr("workbench.core.methods.code_version", lambda name: "newer code")
    sweep = follow(watch)
    assert sweep.counts() == {"done": 2}
    assert sweep.outdated == 2


def test_damaged_files_are_one_sentence_each(make: Make, watch: Watch) -> None:
    make(text="steps 0", seeds=1).start()
    until(watch, "done")
    (record,) = watch.store.runs.glob("*/record.json")
    record.write_text(json.dumps(read_sealed(record, "it") | {"schema": 99}))
    (watch.store.root / "sweeps" / "mine" / "events.jsonl").write_text('{"torn": \n]\n')
    sweep = follow(watch)
    assert sweep.points[0].state == "pending"
    assert "schema 99" in sweep.points[0].message
    (watch.store.root / "sweeps" / "mine" / "sweep.json").write_text("{")
    watch.look()
    assert "not JSON" in sweep.problem
    assert "\n" not in sweep.problem


def test_logs_are_plain_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(
        b"step 1\rstep 2\r\n\x1b[31mred\x1b[0m <b>bold</b>\x07\n\xff\xfe\n\n"
        b"right\xe2\x80\xaeleft\n" + b"long " * 200 + b"\nlast"
    )
    lines = last_lines(log)
    assert lines[:2] == ["step 2", "red <b>bold</b>"]
    assert lines[3] == "rightleft"
    assert len(lines[4]) == 240
    assert lines[-1] == "last"
    assert all(line.isprintable() for line in lines)
    assert last_lines(tmp_path / "none") == []
    log.write_text("line\n" * 100_000 + "end\n")
    assert last_lines(log, 2) == ["line", "end"]
    assert printable("\x1b]0;title\x07text") == "text"


def test_a_traceback_is_one_line() -> None:
    wall = [
        "before",
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    g()",
        "    ~^^",
        "ValueError: one",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 2',
        "KeyError: two",
        "after",
    ]
    kept = [line for line in without_tracebacks(wall) if line]
    assert kept == ["before", "ValueError: one", "KeyError: two", "after"]
    assert without_tracebacks(wall[2:6]) == ["ValueError: one"]
