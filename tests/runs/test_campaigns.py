"""Named sweeps: watched from outside, started once, and ended with who wanted them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.runs.helpers import (
    HANG_S,
    HERE,
    ROOT,
    end_kernel,
    kernel_with,
    left_behind,
    processes_of,
    role,
    sweep_of,
    wait_for,
)
from workbench.core.files import FileLock
from workbench.runs import campaign as campaigns
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store

Make = Callable[..., Campaign]


@pytest.fixture
def make(store: Store, tmp_path: Path) -> Make:
    """Sweeps each run of which waits for its seed's file in the test's folder."""
    return partial(sweep_of, store, text=f"until {tmp_path}", seeds=2)


def let(tmp_path: Path, *seeds: int) -> None:
    """Runs of these seeds may end."""
    for seed in seeds or range(3):
        (tmp_path / str(seed)).touch()


def state(campaign: Campaign) -> str:
    return campaign.status().state


def test_it_runs_to_its_end_in_a_process_of_its_own(make: Make, store: Store, monkeypatch) -> None:
    """Also where the system's time is set back meanwhile."""
    campaign = make(text="steps 0.02")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert state(campaign) == "new"
    assert campaign.start()
    status = campaign.status()
    assert status.state == "running"
    assert status.pid not in (None, os.getpid())
    wait_for(lambda: state(campaign) == "done")
    assert campaign.status().counts == {"done": 2}
    assert [record.status for record in store.records()] == ["ok"] * 2
    events = [json.loads(line) for line in (campaign.folder / "events.jsonl").open()]
    kinds = [event["event"] for event in events]
    assert kinds.count("point") == kinds.count("point_ended") == 2
    assert "step" not in kinds, "steps stand in the runs' own folders"


def test_one_that_a_script_started_in_the_background_can_be_interrupted(make: Make) -> None:
    """A shell ignores SIGINT for what it starts there, and Ray cancels runs by that signal."""
    campaign, before = make(), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        campaign.start()
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(lambda: campaign.status().running)
    told = Path(f"/proc/{campaign.status().pid}/status").read_text()
    ignored = int(re.search(r"SigIgn:\s*(\w+)", told)[1], 16)
    assert not ignored >> (signal.SIGINT - 1) & 1


def test_a_second_start_is_none(make: Make, store: Store, tmp_path: Path) -> None:
    campaign = make()
    assert campaign.start()
    other_tab = Campaign(store, "mine")
    assert not other_tab.start()
    assert other_tab.status().pid == campaign.status().pid
    rival = subprocess.Popen(
        [*campaigns.COMMAND, str(campaign.folder)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert rival.wait(HANG_S) == 4
    rival.stdin.close()
    let(tmp_path)
    wait_for(lambda: state(campaign) == "done")
    starts = [
        line for line in (campaign.folder / "events.jsonl").open() if '"event": "point"' in line
    ]
    assert len(starts) == 2


def test_pause_lets_the_run_end_and_go_on_runs_the_rest(
    make: Make, store: Store, tmp_path: Path
) -> None:
    campaign = make()
    campaign.start()
    wait_for(lambda: campaign.status().running)
    campaign.pause()
    let(tmp_path)
    wait_for(lambda: state(campaign) == "paused" and not campaign.status().running)
    assert campaign.status().counts == {"done": 1, "pending": 1}
    wait_for(lambda: processes_of(store.root) == [])  # it is still ending when its record is there
    time.sleep(0.5)
    assert processes_of(store.root) == [], "none has begun since"
    assert not campaign.start(), "its process is still there"
    wait_for(lambda: state(campaign) == "done")


def test_an_order_of_another_page_is_not_lost(make: Make, store: Store, monkeypatch) -> None:
    """Which comes between reading and replacing, and waits for that, or overtakes it."""
    campaign, came = make(), threading.Event()
    other = threading.Thread(target=lambda: (Campaign(store, "mine").retry(), came.set()))
    replace, take = campaigns.write_sealed, FileLock.take

    def replacing(path: Path, orders: dict) -> None:
        monkeypatch.setattr(campaigns, "write_sealed", replace)
        other.start()
        assert came.wait(60)
        replace(path, orders)

    def locking(path: Path, **how: object) -> FileLock | None:
        if threading.current_thread() is other:
            came.set()
        return take(path, **how)

    monkeypatch.setattr(Campaign, "start", lambda self, **how: None)
    monkeypatch.setattr(campaigns, "write_sealed", replacing)
    monkeypatch.setattr(FileLock, "take", locking)
    campaign.pause()
    other.join()
    assert campaign.orders() == {"want": "pause", "retry": 1}


def test_an_attached_sweep_ends_with_the_kernel_and_can_be_found(
    make: Make, store: Store, answered
) -> None:
    campaign = make()
    kernel = kernel_with(store, "attached")
    wait_for(lambda: role("worker", store.root))
    end_kernel(kernel)
    with answered("sweeps: the kernel killed, until nothing is left", 10):
        assert left_behind(store.root) == []
        wait_for(lambda: not campaign.alive)
    assert state(campaign) == "interrupted"
    assert "start it again" in campaign.status().text


def test_a_detached_sweep_goes_on_without_the_kernel(
    make: Make, store: Store, tmp_path: Path
) -> None:
    campaign = make()
    kernel = kernel_with(store, "detached")
    wait_for(lambda: role("worker", store.root))
    end_kernel(kernel)
    let(tmp_path)
    wait_for(lambda: state(campaign) == "done")
    assert campaign.status().counts == {"done": 2}


def test_a_sweep_whose_process_is_killed_leaves_nothing_and_goes_on(
    make: Make, store: Store, tmp_path: Path
) -> None:
    campaign = make()
    campaign.start(detached=True)
    wait_for(lambda: role("worker", store.root))
    psutil.Process(campaign.status().pid).kill()
    assert left_behind(store.root) == []
    wait_for(lambda: state(campaign) == "interrupted")
    let(tmp_path)
    assert campaign.start()
    wait_for(lambda: state(campaign) == "done")


def test_a_polite_kill_cancels(make: Make, store: Store) -> None:
    campaign = make()
    campaign.start()
    wait_for(lambda: role("worker", store.root))
    os.kill(campaign.status().pid, signal.SIGTERM)
    wait_for(lambda: not campaign.alive)
    assert state(campaign) == "cancelled"
    assert left_behind(store.root, patience_s=0) == []


def test_two_sweeps_that_want_one_place_take_turns(
    make: Make, store: Store, tmp_path: Path
) -> None:
    first, second = make("first"), make("second", seeds=1, batch=8)
    first.start()
    wait_for(lambda: first.status().running)
    second.start()
    wait_for(lambda: state(second) == "waiting")
    assert second.status().text == (
        f"it waits for the processors (taken by the sweep first, process {first.status().pid})"
    )
    let(tmp_path)
    most = 0
    while state(first) != "done" or state(second) != "done":
        most = max(most, len(role("worker", store.root)))
        time.sleep(0.02)
    assert most == 1


def test_bad_sweeps_are_refused_in_a_sentence(store: Store) -> None:
    for data, words in (
        ({"name": "../up", "base": {"method": "fake"}}, "cannot name a sweep"),
        ({"name": 7, "base": {"method": "fake"}}, "it must be text or null"),
        ({"base": {"method": "fake"}, "grid": {"seed": []}}, "at least one value"),
        ({"base": {"method": "fake", "batch": 0}}, "at least 1"),
        ({"base": {"method": "fake"}, "executor": 3}, "executor is 3"),
        ({"exhibit": ["8a"]}, "exhibit is"),
        ({"base": {"method": "fake"}, "colour": 3}, "unknown field 'colour'"),
    ):
        with pytest.raises(ValueError, match=words):
            Campaign.create(store, data)
    assert not store.root.exists(), "nothing was written"


def test_a_name_stands_for_one_sweep(make: Make) -> None:
    campaign = make()
    assert make().folder == campaign.folder
    with pytest.raises(ValueError, match="another sweep named 'mine'"):
        make(seeds=4)


def test_a_file_that_was_damaged_is_told_and_nothing_starts(make: Make) -> None:
    campaign = make()
    (campaign.folder / "sweep.json").write_text('{"base": ')
    with pytest.raises(ValueError, match="not JSON"):
        campaign.start()
    assert not campaign.alive
    for name in ("state.json", "order.json"):
        (campaign.folder / name).write_text("]")
        assert (campaign.status().state, campaign.orders()) == ("new", {})
        assert f"{name} is not used: it is not JSON" in campaign.status().text
        (campaign.folder / name).unlink()


def test_the_command_line_s_sweep_is_found_by_its_name(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "from the shell.json"
    base = {"method": "fake", "text": f"until {tmp_path}", "seed": 0}
    file.write_text(json.dumps({"base": base, "results": "results"}))
    words = [sys.executable, str(HERE / "driver.py"), "sweep", str(file)]
    shell = subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: Campaign.all(store))
        (campaign,) = Campaign.all(store)
        assert campaign.name == "from-the-shell"
        wait_for(lambda: state(campaign) == "running")
        assert not campaign.start(), "a process runs it already"
        let(tmp_path)
        assert shell.wait(HANG_S) == 0
        assert state(campaign) == "done"
    finally:
        with suppress(ProcessLookupError):
            shell.kill()
        shell.wait()
