"""Sweeps on a Ray cluster: a real one, on this machine, of real runs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.runs.helpers import connections, left_behind, wait_for
from workbench.runs.campaign import LIVE, Campaign
from workbench.runs.executors import executor_of
from workbench.runs.ray_executor import RayExecutor
from workbench.runs.store import Store
from workbench.runs.sweep import Sweep, expand

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
TINY = {
    "method": "plain", "layers": 2, "hidden": 32, "heads": 2, "seq": 16, "vocab": 256, "batch": 2,
    "device": "cpu",
}  # fmt: skip

SLOW = "timed out during startup"
"""In Ray's words, where its own processes have not started within its own limit, three times."""
BUSY = 3
"""Processes that want to run, for each core: on a machine that is less busy Ray must start."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine, for the tests of this file; as in the background of a shell, where
    nobody hears SIGINT."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, heard)
    import ray  # only now: it reads its settings when it is imported

    ray.shutdown()


@pytest.fixture
def executor(cluster: None, store: Store) -> RayExecutor:
    try:
        return executor_of("ray", store, "a test")
    except ValueError as error:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if SLOW not in str(error) or load < BUSY * cores:
            raise
        pytest.skip(
            f"{load:.0f} processes want {cores} cores, and Ray gives itself 30 s to start: {error}"
        )


def test_cancel_ends_the_run_on_its_machine(executor: RayExecutor, store: Store, answered) -> None:
    sweep = Sweep(expand(TINY | {"steps": 100_000}), store, executor=executor)
    wait_for(lambda: sweep.poll() or sweep.points[0].step_seconds)
    events = list(sweep.new_events())
    assert {e["where"] for e in events if e["event"] == "point"} == {"Ray on this machine"}
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == [*range(len(steps))] != []
    waits = Sweep(expand(TINY | {"steps": 7}), store, executor=executor)
    waits.poll()
    assert waits.waits_for == "the cores of a machine of the Ray cluster on this machine"
    sweep.cancel()
    with answered("Ray: a run cancelled, until it has ended on its machine", 15):
        wait_for(lambda: sweep.poll() or sweep.ended)
    assert sweep.points[0].record.status == "cancelled"
    assert left_behind(store.root) == []


def test_ray_listens_to_this_machine_only(executor: RayExecutor) -> None:
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    listening = {
        connection.laddr.ip
        for process in family
        for connection in connections(process)
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_sweep_runs_on_the_cluster_that_it_names(executor: RayExecutor, store: Store) -> None:
    """By its address; its process starts none of its own."""
    at = executor._ray.get_runtime_context().gcs_address
    base, grid = TINY | {"steps": 5}, {"seed": [1, 2]}
    data = {"name": "on-ray", "base": base, "grid": grid, "executor": f"ray:{at}"}
    campaign = Campaign.create(store, data)
    campaign.start()
    wait_for(lambda: campaign.status().state not in ("new", *LIVE))
    assert campaign.status().state == "done", (campaign.folder / "log.txt").read_text()
    assert [record.status for record in store.records()] == ["ok", "ok"]
    assert Sweep(expand(base, grid=grid), store, executor=executor).ended, "nothing is run twice"
    told = (campaign.folder / "events.jsonl").read_text().splitlines()
    assert json.loads(told[0])["where"] == f"Ray at {at}"


def test_clusters_that_do_not_answer_and_engines_that_are_not_known(store: Store) -> None:
    with pytest.raises(ValueError, match="must be local, ray, or ray:ADDRESS"):
        executor_of("slurm", store, "a test")


@pytest.mark.parametrize(("address", "starts"), [(None, 3), ("10.0.0.1:6379", 1)])
def test_a_slow_start_is_tried_again_and_then_told(
    address: str | None,
    starts: int,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, ended, started, read = [], [], [], set()
    command_line = psutil.Process.cmdline

    def loads(process: psutil.Process) -> list[str]:
        """The system may tell nothing of a program that it is still loading."""
        if process.pid in read:
            return command_line(process)
        read.add(process.pid)
        return []

    monkeypatch.setattr(psutil.Process, "cmdline", loads)
    program = tmp_path / "ray" / "raylet.py"
    program.parent.mkdir()
    program.write_text("import time\ntime.sleep(600)")

    def init(**settings: object) -> None:
        tried.append(settings["address"])
        started.append(subprocess.Popen([sys.executable, str(program)]))
        raise Exception("The current node timed out during startup.")

    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        shutdown=lambda: ended.append(True),
        __file__=str(program.parent / "__init__.py"),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    others = subprocess.Popen([sys.executable, str(program)])
    with pytest.raises(ValueError, match=r"no Ray cluster answers .*: The current node timed out"):
        RayExecutor(store, address=address)
    assert tried == [address] * starts
    assert len(ended) == starts
    assert not [process.pid for process in started if psutil.pid_exists(process.pid)]
    assert others.poll() is None, "what was there before is somebody else's"
    others.kill()
    others.wait()
    ray.init = lambda **_: tried.append("well")
    RayExecutor(store, address=address)
    assert tried[-1] == "well"
