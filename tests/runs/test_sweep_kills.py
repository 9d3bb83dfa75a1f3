"""A sweep that is killed again and again loses nothing, and ends whole."""

import json
import random
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.runs.helpers import (
    HANG_S,
    fake_spec,
    left_behind,
    role,
    start_driver,
)
from workbench.runs import sweep as sweeps
from workbench.runs.store import Store
from workbench.runs.sweep import Sweep

POINTS = 8


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    file = tmp_path / "sweep.json"
    file.write_text(
        json.dumps(
            {
                "base": {"method": "fake", "text": "steps 0.04", "steps": 10, "save_every": 2},
                "grid": {"layers": [2, 4], "seed": list(range(POINTS // 2))},
                "results": "results",
            }
        )
    )
    return file


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return 20 if request.config.getoption("--thorough") else 6


def test_kills_at_random_moments(store: Store, sweep_file: Path, kills: int) -> None:
    """SIGKILL in turn of the sweep, the worker and the guard."""
    dice = random.Random(2)
    finished: dict[str, str] = {}
    sweep = start_driver("sweep", sweep_file)
    for turn in range(kills):
        time.sleep(dice.uniform(0.0, 0.5))
        victim = ("sweep", "worker", "guard")[turn % 3]
        if victim == "sweep":
            sweep.kill()
        else:
            for process in role(victim, store.root):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        if sweep.poll() is not None or victim == "sweep":
            sweep.wait(HANG_S)
            sweep.stderr.close()
            assert left_behind(store.root) == []
            sweep = start_driver("sweep", sweep_file, "--retry-failed")
        now = {record.key: record.started for record in store.records() if record.status == "ok"}
        assert store.problems == {}
        assert finished.items() <= now.items()
        finished = now
    sweep.communicate(timeout=60)
    if sweep.returncode:  # the last kills were of workers, whose runs are errors until retried
        sweep = start_driver("sweep", sweep_file, "--retry-failed")
        _, said = sweep.communicate(timeout=60)
        assert sweep.returncode == 0, said.decode()

    records = store.records()
    assert [record.status for record in records] == ["ok"] * POINTS
    assert all(len(record.losses) == 10 for record in records)
    assert finished.items() <= {record.key: record.started for record in records}.items()


def test_failed_runs_are_retried_only_when_asked(store: Store) -> None:
    specs = [fake_spec("bug"), fake_spec("does_not_fit"), fake_spec("steps")]
    first = Sweep(specs, store)
    first.run()
    assert first.counts() == {"failed": 1, "done": 2}

    assert Sweep(specs, store).ended
    assert Sweep(specs, store, retry_failed=True).counts() == {"pending": 1, "done": 2}
    assert Sweep(specs, store, force=True).counts() == {"pending": 3}


def test_time_left_shrinks_as_points_finish(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs that took a second each, asked at the moment in which the next one begins."""
    sweep = Sweep([fake_spec("steps 0.05", seed=seed) for seed in range(3)], store)
    assert sweep.seconds_left() is None  # nothing is known yet
    left = []
    while not sweep.ended:
        sweep.poll()
        for event in sweep.new_events():
            if event["event"] == "point_ended":
                point = sweep.points[event["index"]]
                point.record = replace(point.record, seconds=1.0)
                with monkeypatch.context() as held:
                    now = max(other.began for other in sweep.points)
                    held.setattr(sweeps, "monotonic", lambda now=now: now)
                    left.append(sweep.seconds_left())
        time.sleep(0.01)

    assert left == [2.0, 1.0, 0.0]


def test_a_corrupt_record_is_run_again_and_kept_aside(store: Store) -> None:
    specs = [fake_spec("steps", seed=seed) for seed in range(3)]
    Sweep(specs, store).run()
    torn, foreign, _ = store.records()
    torn_path = store.folder(torn.key) / "record.json"
    torn_path.write_text(torn.to_json()[:200])
    foreign_path = store.folder(foreign.key) / "record.json"
    foreign_path.write_text(foreign.to_json().replace(foreign.key, "0" * 16))

    sweep = Sweep(specs, store)
    assert sweep.counts() == {"done": 1, "pending": 2}
    assert set(store.problems) == {torn_path, foreign_path}
    sweep.run()

    assert len(store.records()) == 3
    assert store.problems == {}
    aside = torn_path.with_name("record.json.corrupt-1")
    assert aside.read_text() == torn.to_json()[:200]
