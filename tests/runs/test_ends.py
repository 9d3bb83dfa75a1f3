"""However a worker ends, its run has one record of the right status, or none and a clear error."""

import json
import math
from pathlib import Path

import pytest

from tests.runs.helpers import fake_spec
from workbench.core.record import RunRecord
from workbench.runs.runner import run
from workbench.runs.store import Store, StoreError

SINCE = ("others", "start")
"""Fields that records of before do not have."""


def test_a_finished_run_is_a_whole_record(store: Store) -> None:
    events = []
    spec = fake_spec("steps 0.2", batch=8)

    record = run(spec, store, on_event=events.append)

    assert record.status == "ok"
    assert list(record.start) == ["starting its process", "first step"]
    assert 0 <= record.others["cores"] <= 1
    assert record.losses == [1, 1 / 2, 1 / 3]
    assert record.samples_per_second == pytest.approx(8 / 0.2)
    assert record.peak_bytes == {"device": 100, "host": 200, "disk": None}
    assert record.provenance["packages"]["torch"]
    assert record.provenance["device_class"].startswith("cpu:")
    steps = ["step"] * 3
    assert [e["event"] for e in events] == ["started", "divided", *steps, "ended", "exit"]
    assert store.find(record.key) == record
    assert RunRecord.from_json(record.to_json()) == record
    told = json.loads(record.to_json())
    before = RunRecord.from_json(json.dumps({k: told[k] for k in told if k not in SINCE}))
    assert (before.others, before.start, before.busy) == ({}, {}, ""), "as it was judged then"
    assert "iteration        3/       3" in (store.folder(record.key) / "log.txt").read_text()


@pytest.mark.parametrize(
    ("text", "status", "message", "losses", "refused"),
    [
        ("value_error", "error", "the corpus is empty; give one with at least one sample", 0, True),
        ("late_value_error", "error", "a shape is wrong", 1, False),
        ("library_error", "error", "Expecting value", 0, False),
        ("bug", "error", r"KeyError: 'layer 3\nand a second line'", 0, False),
        ("does_not_fit", "oom_host", "fake does not fit: the smallest layout needs 3 GiB", 0, True),
        ("memory_error", "oom_host", "MemoryError: no memory", 1, False),
        ("torch_host", "oom_host", "DefaultCPUAllocator: can't allocate", 0, False),
        ("no_space", "oom_disk", "No space left on device", 0, False),
        ("tier device", "oom_device", "the device tier is out of memory: weights", 0, False),
        ("exit 7", "error", "exit status 7 and no record", 0, False),
        ("kill_self", "error", "killed by signal 9 (SIGKILL)", 1, False),
        ("leave", "ok", "", 3, False),
    ],
)
def test_every_end_has_its_status(
    store: Store, text: str, status: str, message: str, losses: int, refused: bool
) -> None:
    record = run(fake_spec("children leave" if text == "leave" else text), store)

    assert (record.status, len(record.losses), record.refused) == (status, losses, refused)
    assert message in record.message
    assert "\n" not in record.message
    assert store.find(record.key) == record


def test_a_loss_that_is_not_a_number_is_a_diverged_run(store: Store) -> None:
    record = run(fake_spec("diverge"), store)

    assert record.status == "diverged"
    assert math.isnan(record.losses[-1])
    assert math.isnan(store.find(record.key).losses[-1])


def test_the_traceback_is_in_the_log_and_nowhere_else(store: Store) -> None:
    record = run(fake_spec("bug"), store)

    assert "Traceback" in (store.folder(record.key) / "log.txt").read_text()
    assert "Traceback" not in record.to_json()


def test_time_runs_out_even_in_a_call_that_never_returns(store: Store) -> None:
    """The worker holds the interpreter lock, so neither its signal handler nor its threads run."""
    record = run(fake_spec("hang_in_c"), store, timeout=0.5)

    assert record.status == "timeout"
    assert "0.5 seconds" in record.message
    assert "and no step was done: " in record.message, "where its start was"
    assert sum(record.start.values()) >= 0.5


def test_results_are_cached_and_failures_tried_again(store: Store) -> None:
    events = []

    for text, kinds in (("steps", ["cached"]), ("does_not_fit", ["cached"]), ("bug", ["started"])):
        first = run(fake_spec(text), store)
        events.clear()
        second = run(fake_spec(text), store, on_event=events.append)
        assert [event["event"] for event in events][:1] == kinds
        assert (second.started == first.started) == (kinds == ["cached"])
    forced = run(fake_spec("steps"), store, force=True)
    assert forced.started > first.started


def test_another_device_or_another_code_is_another_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.core import host, methods

    first = run(fake_spec("steps"), store)
    with monkeypatch.context() as patch:
        patch.setattr(host, "device_class", lambda device: "cpu:another")
        assert run(fake_spec("steps"), store).key != first.key
    monkeypatch.setattr(methods, "code_version", lambda name: "changed")
    assert run(fake_spec("steps"), store).key != first.key


def test_a_full_disk_is_an_error_and_loses_nothing(store: Store) -> None:
    kept = run(fake_spec("steps"), store)
    full = fake_spec("disk_full 600", steps=50)

    with pytest.raises(StoreError, match="could not be written"):
        run(full, store)

    assert store.records() == [kept]
    # The disk has room again: the same folder, half-written events and all, is used.
    assert run(fake_spec("steps", steps=50), store).status == "ok"


def test_the_users_folder_and_settings_break_no_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('not the library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    events = []
    assert run(fake_spec("steps 0"), store, on_event=events.append).status == "ok"
    assert "lowered to INFO" in events[1]["text"]
