"""No process outlives its run, whichever of them is killed, and however its children hide."""

import os
import signal
from pathlib import Path

import pytest

from tests.runs.helpers import (
    HANG_S,
    fake_spec,
    left_behind,
    processes_of,
    role,
    start_driver,
    wait_for,
)
from workbench.runs.runner import Job, run
from workbench.runs.store import Store

FAMILY = 5
"""Guard, worker, its child, the child in its own session, the orphan in a third session."""


def start(text: str, store: Store) -> Job:
    """A job whose worker is where it wants to be."""
    job = Job(fake_spec(text), store)
    job.poll()
    events = job.folder / "events.jsonl"
    wait_for(lambda: events.exists() and "hanging" in events.read_text())
    if text == "children":
        # A child is there for a moment before it has a session of its own.
        wait_for(lambda: len(processes_of(store.root)) == FAMILY and sessions(store) == 4)
    return job


def sessions(store: Store) -> int:
    return len({os.getsid(process.pid) for process in processes_of(store.root)})


def finish(job: Job) -> None:
    wait_for(job.poll)
    job.close()


def test_cancel_ends_the_whole_family(store: Store) -> None:
    job = start("children", store)

    job.cancel()
    finish(job)

    assert job.record.status == "cancelled"
    assert left_behind(store.root, patience_s=0) == []


def test_a_worker_that_ignores_the_request_is_killed(store: Store, answered) -> None:
    job = start("ignore_sigterm", store)

    job.cancel()
    job.cancel()  # the user insists: no grace
    with answered("runs: one that ignores its end, cancelled twice", 4):
        finish(job)

    assert job.record.status == "cancelled"
    assert job._guard.returncode == -signal.SIGKILL, "who would give it some"


@pytest.mark.parametrize("victim", ["worker", "guard"])
def test_sigkill_of_worker_or_guard(store: Store, victim: str) -> None:
    job = start("children", store)

    role(victim, store.root)[0].kill()
    finish(job)

    assert (job.record.status, job.record.refused) == ("error", False)
    assert "signal 9" in job.record.message
    assert left_behind(store.root, patience_s=0) == []


def test_an_exception_in_the_caller_cancels_the_run(store: Store) -> None:
    def interrupt(event: dict) -> None:
        if event["event"] == "hanging":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fake_spec("children"), store, on_event=interrupt)

    assert left_behind(store.root, patience_s=0) == []
    assert [record.status for record in store.records()] == ["cancelled"]


def test_a_run_that_was_not_allowed_to_finish_leaves_no_grandchildren(store: Store) -> None:
    run(fake_spec("children leave"), store)

    assert left_behind(store.root, patience_s=0) == []


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_command_line_is_killed(store: Store, signal_number: int, answered) -> None:
    command = start_driver("run", "-m", "fake", "--text", "children", "--results", store.root)
    wait_for(lambda: len(processes_of(store.root)) == FAMILY)

    command.send_signal(signal_number)
    command.wait(HANG_S)

    with answered("runs: their command killed, until nothing that they started is left", 5):
        assert left_behind(store.root) == []
    if signal_number == signal.SIGKILL:
        assert store.records() == []  # nobody was there to say how it ended: it is not done
    else:
        assert command.returncode == 130
        assert [record.status for record in store.records()] == ["cancelled"]
        assert command.stderr.read().decode().count("Traceback") == 0


def test_the_next_run_ends_what_a_double_murder_left(store: Store) -> None:
    """Runner and guard killed at once: the kernel takes the worker, the mark finds the others."""
    words = ("run", "-m", "fake", "-l", "4", "--steps", "3", "--results", store.root)
    command = start_driver(*words, "--text", "children")
    wait_for(lambda: len(processes_of(store.root)) == FAMILY)
    (guard,) = role("guard", store.root)
    command.send_signal(signal.SIGSTOP)  # it must not notice before it dies
    guard.kill()
    command.kill()
    command.wait(HANG_S)
    assert len(processes_of(store.root)) > 0

    again = start_driver(*words, "--text", "children", "--timeout", "1")
    again.wait(HANG_S)

    assert left_behind(store.root, patience_s=0) == []
    assert [record.status for record in store.records()] == ["timeout"]


def test_two_processes_never_run_one_key_at_once(store: Store) -> None:
    spec = fake_spec("steps 0.2")
    with Job(spec, store) as first, Job(spec, store) as second:
        first.poll()
        assert first.running
        assert second.poll() is None
        assert [e["event"] for e in second.new_events()] == ["waiting"]
        assert not second.running
        wait_for(first.poll)
        wait_for(second.poll)
        assert second.cached
        assert second.record == first.record


def test_a_job_cancelled_while_it_waits_never_begins(store: Store) -> None:
    spec = fake_spec("hang")
    with Job(spec, store) as first, Job(spec, store) as second:
        first.poll()
        second.poll()
        second.cancel()
        assert second.poll().status == "cancelled"
        assert store.records() == []


def test_a_killed_run_resumes_from_its_checkpoint(store: Store, tmp_path: Path) -> None:
    spec = fake_spec(f"until {tmp_path}", steps=20, save_every=4, seed=0)
    words = ("run", "-m", "fake", "-l", "4", "--text", spec.text, "--steps", "20", "--seed", "0")
    command = start_driver(*words, "--save-every", "4", "--results", store.root)
    wait_for(lambda: [p.read_text() for p in store.runs.glob("*/checkpoints/next_step")] == ["16"])
    command.kill()
    command.wait(HANG_S)
    assert left_behind(store.root) == []

    (tmp_path / "0").touch()
    events = []
    record = run(spec, store, on_event=events.append)

    assert record.status == "ok"
    assert record.losses == [1 / (step + 1) for step in range(20)]
    resumed = next(event for event in events if event["event"] == "resumed")
    assert resumed["next_step"] == 16
    assert [event["event"] for event in events].count("step") == 4
    events.clear()
    run(spec, store, force=True, on_event=events.append)
    assert not any(event["event"] == "resumed" for event in events)


def test_a_forced_run_that_is_cancelled_leaves_the_result_there_was(store: Store) -> None:
    spec = fake_spec("steps 0.2")
    first = run(spec, store)

    with Job(spec, store, force=True) as job:
        job.poll()
        job.cancel()
        assert wait_for(job.poll).status == "cancelled"

    assert store.records() == [first]
