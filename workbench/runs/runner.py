"""One run, from a spec to its record: cached, waited for, or run now in a worker of its own.

`Job` never blocks: a command line polls it in a loop (`run`), a sweep polls one after the other, a
user interface polls it from a timer. Three rules keep the store true:

* a record of the same key (spec, method's code, class of device) is shown instead of run again, if
  it is a result. Out of memory and divergence are results; errors, time-outs and cancelled runs are
  tried again;
* one key is run by one process at a time; others wait for it, and then find its record;
* a run that was killed left its checkpoints; the next attempt finds them in the same folder.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from workbench.core import host, methods
from workbench.core.bytesize import format_bytes
from workbench.core.files import FileLock
from workbench.core.record import RESULTS, RunRecord, Status
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.runs import provenance
from workbench.runs.ahead import Ahead, command_s
from workbench.runs.chosen import told_parts
from workbench.runs.device_locks import HeldDevices
from workbench.runs.events import Event, EventReader
from workbench.runs.guard import GRACE_S
from workbench.runs.jobfile import JobFile
from workbench.runs.logged import check_log
from workbench.runs.one_run import Work
from workbench.runs.processes import kill_marked, variables
from workbench.runs.resolve import key_of, resolve
from workbench.runs.starts import FIRST, start_of, start_words
from workbench.runs.store import Store, StoreError
from workbench.runs.worker import CANCELLED_EXIT, STORE_EXIT, make_record, unfinished

POLL_S = 0.05

NEAR_ALL_MEMORY = 0.9
"""A worker killed while it held this share of the host's memory is taken for out of memory."""


def run(
    spec: RunSpec,
    store: Store,
    *,
    force: bool = False,
    on_event: Callable[[Event], None] | None = None,
    timeout: float | None = None,
    log: str = "",
    ahead: Ahead | None = None,
) -> RunRecord:
    """Run a spec, or return its cached record. Blocks; an exception (Ctrl-C) cancels the run first.

    `timeout` is in seconds of training process, `log` and `ahead` as of `Job`. Raises ValueError
    for a spec that cannot run here and StoreError where the results folder cannot be written.
    """
    with Job(spec, store, force=force, timeout=timeout, log=log, ahead=ahead) as job:
        while (record := job.poll()) is None:
            job.deliver(on_event)
            time.sleep(POLL_S)
        job.deliver(on_event)
        return record


def check_timeout(seconds: float | None) -> None:
    """Raise ValueError for a time limit that is none."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"the time limit is {seconds} seconds; it must be positive and finite")


class Job(Work):
    """One run in progress. Poll it until it returns the record; leave its context to cancel it."""

    def __init__(
        self,
        spec: RunSpec,
        store: Store,
        *,
        force: bool = False,
        timeout: float | None = None,
        accept: Iterable[Status] = RESULTS,
        log: str = "",
        ahead: Ahead | None = None,
    ) -> None:
        """`accept`: statuses of an earlier record that are shown instead of run. `log` names the
        package that writes curves (logged.py); `ahead` are processes that wait for a run, which
        stay their owner's unless this one takes them. Starts nothing.

        Raises ValueError for an unknown method, or a device or a package that is not here.
        """
        check_timeout(timeout)
        check_log(log)
        self.spec = resolve(spec, store.root)
        super().__init__(store, key_of(self.spec), accept)
        self.devices: HeldDevices | None = None
        """Devices it runs on, held until it has ended; to be set before the first poll."""
        self._timeout, self._force, self._curves, self._ahead = timeout, force, log, ahead
        self._lock: FileLock | None = None
        self._guard: subprocess.Popen | None = None
        self._job: JobFile | None = None
        self._reader: EventReader | None = None
        self._began = 0.0
        self._waiting = self._cancelled = False
        self._exit: Event = {}

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._store.folder(self.key)

    @property
    def where(self) -> str:
        """The devices it holds, in words; empty where it needs none."""
        return self.devices.name if self.devices is not None else ""

    @property
    def running(self) -> bool:
        """Whether its processes have been started and have not ended."""
        return self._guard is not None and self.record is None

    def poll(self) -> RunRecord | None:
        """Do what can be done without waiting; returns the record once there is one. Raises
        StoreError."""
        if self.record is None:
            if self._guard is None:
                self._begin()
            else:
                self._follow()
        return self.record

    def cancel(self) -> None:
        """Ask the run to end, and poll on for its record; a second call leaves it no time."""
        if self._guard is not None and self._guard.poll() is None:
            if self._cancelled:
                self._guard.kill()
            else:
                self._guard.send_signal(signal.SIGTERM)
        self._cancelled = True

    def close(self) -> None:
        """Cancel if it still runs, wait until all is gone, and give the key's lock back."""
        if self._guard is not None and self.record is None:
            self.cancel()
            with suppress(StoreError):
                deadline = time.monotonic() + GRACE_S + 15
                while self.poll() is None:
                    time.sleep(POLL_S)
                    if time.monotonic() > deadline:
                        self._guard.kill()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        if self.take_cached():
            return
        if self._cancelled:
            self.record = RunRecord(
                key=self.key,
                method=self.spec.method,
                status="cancelled",
                spec=self.spec.to_dict(),
                message="it was cancelled before it began",
            )
            self._release()
            return
        if self._lock is None:
            self._lock = self._store.lock(self.key)
        if self._lock is None:
            if not self._waiting:
                self._tell("waiting", text=f"another process is running {self.key}")
            self._waiting = True
            return
        if not self.take_cached():  # the process that held the lock may have made the record
            self._start()

    def take_cached(self) -> bool:
        """Take a record that is there, unless it is to be made anew; the key's lock goes then."""
        # A forced run that had to wait for another one takes the other's result: it is as fresh.
        if (self._force and not self._waiting) or not super().take_cached():
            return False
        self._release()
        return True

    def _start(self) -> None:
        folder = self._store.prepare(self.key)
        mark, ahead = str(folder), self._ahead
        if ahead and (self.devices or not ahead.waits):
            ahead = None
        marks = {mark}
        with suppress(OSError, ValueError):
            marks.add(JobFile.load(folder).mark)
        for each in marks:
            kill_marked(each)  # what an attempt left whose runner and guard were both killed
        checkpoints = folder / "checkpoints"
        if self._force and checkpoints.exists():
            import shutil

            shutil.rmtree(checkpoints)
        self._job = JobFile(
            key=self.key,
            module=methods.find(self.spec.method).module,
            started=datetime.now(UTC).isoformat(),
            mark=ahead.mark if ahead else mark,
            before_s=command_s() if ahead else 0.0,
            timeout_s=self._timeout,
            resume=checkpoints.exists(),
            log=self._curves,
            provenance={
                **provenance.gather(),
                "code_version": methods.code_version(self.spec.method),
                "device_class": host.device_class(self.spec.device),
            },
        )
        try:
            write_sealed(folder / "spec.json", self.spec.to_dict())
            self._job.save(folder)
            log = (folder / "log.txt").open("ab")
        except OSError as error:
            raise self._store.unusable(error) from error
        self._reader = EventReader(folder / "events.jsonl", from_end=True)
        self._began = time.monotonic()
        held = [self._lock.fd] if self._lock is not None else []
        held += self.devices.fds if self.devices is not None else []
        there = self.devices.environment if self.devices is not None else {}
        with log:
            if ahead and (guard := ahead.hand(folder, [log.fileno(), *held])):
                self._guard = guard
                return
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "workbench.runs.guard", str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=held,
                env=variables(self._job.mark) | there,
            )

    def _follow(self) -> None:
        ended = self._guard.poll() is not None
        for event in self._reader.read():
            if event["event"] == "exit":
                self._exit = event
            self._events.append(event)
        if ended:
            self._guard.stdin.close()
            kill_marked(self._job.mark, group=self._guard.pid)  # in case the guard was killed
            try:
                self.record = self._outcome()
            finally:
                self._release()

    def _outcome(self) -> RunRecord:
        """The record of the attempt: the worker's, or one for a worker that wrote none."""
        found = self._store.find(self.key)
        if found is not None and found.started == self._job.started:
            return found
        ended = self._guard.returncode  # 128 + n is signal n
        returncode = self._exit.get("returncode", 128 - ended if ended > 128 else ended)
        status, message = verdict(
            self._exit, returncode, cancelled=self._cancelled, timeout_s=self._timeout
        )
        if returncode == STORE_EXIT:
            self._store.prepare(self.key)  # says what is wrong, if it still is
            raise StoreError(
                0, f"the results folder could not be written; see {self.folder / 'log.txt'}"
            )
        start = start_of(self.folder, self._job)
        if status == "timeout" and start and FIRST not in start:
            message = f"{message}; {start_words(start)}"
        record = make_record(
            self.spec,
            self._job,
            unfinished(self.folder, self._job),
            status=status,
            message=message,
            seconds=time.monotonic() - self._began,
            start=start,
            microbatches=told_parts(self.folder, self._job),
        )
        if found is None or found.status not in RESULTS:  # of a forced run, the result stays
            self._store.write(record)
        return record

    def _release(self) -> None:
        if self.devices is not None:
            self.devices.release()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def verdict(
    end: Event, returncode: int, *, cancelled: bool = False, timeout_s: float | None = None
) -> tuple[Status, str]:
    """Status and sentence for a worker that wrote no record.

    `end` is what the guard saw (its ``exit`` event, empty if it was killed too), `returncode` the
    worker's, -n for signal n.
    """
    reason = end.get("reason")
    if reason == "timeout":
        return "timeout", f"it had not ended after its time limit of {timeout_s:g} seconds"
    if cancelled or reason == "cancelled" or returncode in (CANCELLED_EXIT, -signal.SIGTERM):
        return "cancelled", "it was cancelled"
    if returncode == -signal.SIGKILL:
        resident = end.get("peak_resident_bytes", 0)
        if end.get("oom_kills", 0) > 0:
            return "oom_host", "the kernel ended it because the host was out of memory"
        if resident >= NEAR_ALL_MEMORY * host.host_memory_bytes():
            held = format_bytes(resident)
            return "oom_host", f"it was killed while it held {held} of host memory"
    if returncode < 0:
        return (
            "error",
            f"it was killed by signal {-returncode} ({signal.Signals(-returncode).name})",
        )
    return "error", f"it ended with exit status {returncode} and no record; see log.txt"
