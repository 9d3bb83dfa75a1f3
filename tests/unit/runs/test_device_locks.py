"""A device is held by one run at a time, and a run may want several."""

from __future__ import annotations

import pytest

from workbench.runs import device_locks
from workbench.runs.device_locks import VISIBLE, LockableDevice

GPUS = [LockableDevice(name=f"GPU {n}", environment={VISIBLE: str(n)}) for n in range(3)]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(device_locks.FOLDER, str(tmp_path))


def test_a_run_takes_as_many_as_it_wants_or_none():
    one = device_locks.take(GPUS, 1, "a run")
    assert (one.name, one.environment) == ("GPU 0", {VISIBLE: "0"})
    two = device_locks.take(GPUS, 2, "a run of two ranks")
    assert (two.name, two.environment) == ("GPU 1 and GPU 2", {VISIBLE: "1,2"})
    assert device_locks.take(GPUS, 1, "a third run") is None
    one.release()
    assert device_locks.take(GPUS, 2, "a fourth run") is None, (
        "one is not enough, and is given back"
    )
    again = device_locks.take(GPUS, 1, "a fifth run")
    assert again.name == "GPU 0"
    for held in (two, again):
        held.release()


def test_who_waits_is_told_who_has_it():
    held = device_locks.take(GPUS[:1], 1, "the sweep of depth")
    assert device_locks.holder(GPUS[0]).startswith("the sweep of depth, process ")
    held.release()
    held.release()
