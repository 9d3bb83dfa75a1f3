"""Runs carried out by a Ray cluster: a sweep over several machines.

The machines of the cluster are alike (a run's key names the class of device), import this package,
and share the results folder, by a file system that they all mount. Ray decides where a run goes:
one that needs a GPU gets one, others get the cores of a machine. There it is started, watched and
recorded as any run is, so nothing of it is left when Ray or this process dies.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from workbench.core.record import RESULTS, RunRecord, Status
from workbench.core.sealed import read_sealed
from workbench.core.spec import RunSpec
from workbench.runs.events import EventReader
from workbench.runs.executor import LocalExecutor
from workbench.runs.one_run import Work
from workbench.runs.processes import LOAD_S
from workbench.runs.resolve import key_of, resolve
from workbench.runs.runner import POLL_S
from workbench.runs.store import Store

MEMORY_BYTES = 128 << 20
"""Bytes of Ray's own object store where it is started here: it carries records."""
STARTS = 3
"""Attempts to start Ray here."""
END_S = 30.0
"""Longest time in which a cancelled run ends on its machine."""


class RayExecutor:
    """A Ray cluster, or Ray on this machine where no address is given."""

    def __init__(self, store: Store, *, address: str | None = None) -> None:
        """Connects. Raises ValueError where Ray is not installed or does not answer."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # leaves GPUs visible
        if address is None:  # Ray's own word for a node that listens to its own machine only
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
        except ImportError:
            raise ValueError(
                "the executor is ray, and Ray is not installed; pip install ray"
            ) from None
        self._ray, self._store = ray, store
        self._at = f"at {address}" if address else "on this machine"
        if not ray.is_initialized():
            self._connect(address)
        self.waits_for = ""

    def _connect(self, address: str | None) -> None:
        """Ray gives its own processes half a minute to start, and a busy machine may take longer
        the first time."""
        here: dict[str, Any] = {
            "object_store_memory": MEMORY_BYTES,
            "include_dashboard": False,
            # Ray's own 15 would starve a run beside anything else, and runs are measured.
            "_system_config": {"worker_niceness": 0},
        }
        for left in reversed(range(1 if address else STARTS)):
            before = set(psutil.Process().children())
            try:
                self._ray.init(address=address, log_to_driver=False, **({} if address else here))
                return
            except Exception as error:  # what Ray raises of a slow start has no class of its own
                self._ray.shutdown()
                _end_new_children(before, Path(self._ray.__file__).parent)
                if not left:
                    words = f"no Ray cluster answers {self._at}: {error}"
                    raise ValueError(words) from None

    def start(
        self,
        spec: RunSpec,
        *,
        force: bool = False,
        timeout: float | None = None,
        accept: Iterable[Status] = RESULTS,
    ) -> RayWork | None:
        """See `Executor`. Raises ValueError for an unknown method or a device that is not here."""
        spec, accept = resolve(spec, self._store.root), frozenset(accept)
        work = RayWork(self._ray, self._store, key_of(spec), accept)
        if not force and work.take_cached():
            return work
        needs = {"num_gpus": 1} if spec.device == "cuda" else {"num_cpus": self._cores()}
        free = self._ray.available_resources()
        if free.get("GPU" if spec.device == "cuda" else "CPU", 0) < max(needs.values()):
            what = "a GPU" if spec.device == "cuda" else "the cores of a machine"
            self.waits_for = f"{what} of the Ray cluster {self._at}"
            return None
        self.waits_for = ""
        task = self._ray.remote(_carry_out).options(max_retries=0, **needs)
        words = (spec.to_dict(), str(self._store.root), force, timeout, sorted(accept))
        work.begin(task.remote(*words), f"Ray {self._at}")
        return work

    def _cores(self) -> int:
        """Cores of the smallest machine: a run gets a whole one, or two would measure each
        other."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        return int(min(node["Resources"].get("CPU", 1) for node in nodes))


class RayWork(Work):
    """A run on the cluster."""

    def __init__(self, ray: Any, store: Store, key: str, accept: Iterable[Status]) -> None:
        super().__init__(store, key, accept)
        self._ray = ray
        self._reader: EventReader | None = None
        self._task: Any = None

    def begin(self, task: Any, where: str) -> None:
        """Follow a task of the cluster."""
        self._task, self.where = task, where
        self._reader = EventReader(self._store.folder(self.key) / "events.jsonl", from_end=True)

    def poll(self) -> RunRecord | None:
        """The record once there is one."""
        if self.record is None:
            ended, _ = self._ray.wait([self._task], timeout=0)
            self._events += self._reader.read()
            if ended:
                self.record = self._outcome()
        return self.record

    def cancel(self) -> None:
        """Ray interrupts the task, which ends its run and writes the record of that."""
        if self.record is None:
            self._ray.cancel(self._task)

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing of it is left."""
        if self.record is not None:
            return
        self.cancel()
        deadline = time.monotonic() + END_S
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _outcome(self) -> RunRecord:
        """Record that the task returned; for a task that was cancelled or lost, the one it left in
        the store."""
        try:
            record = RunRecord.from_json(self._ray.get(self._task))
            if record.key == self.key:
                return record
            return replace(
                record,
                key=self.key,
                status="error",
                message="the cluster's machines have other code than this one, or another device",
            )
        except self._ray.exceptions.RayError as error:
            cancelled = isinstance(error, self._ray.exceptions.TaskCancelledError)
            lines = str(error).strip().splitlines()
            found = self._store.find(self.key)
            if found is not None and cancelled:
                return found
            words = "it was cancelled" if cancelled else f"Ray lost the run: {lines[-1]}"
            with suppress(OSError, ValueError):
                file = self._store.folder(self.key) / "spec.json"
                told = RunSpec.from_dict(read_sealed(file, "spec"))
                return RunRecord(
                    key=self.key,
                    method=told.method,
                    status="cancelled" if cancelled else "error",
                    spec=told.to_dict(),
                    message=words,
                )
            raise ValueError(words) from None


def _end_new_children(before: set[psutil.Process], package: Path) -> None:
    """Kill what Ray started of a node that was never whole, and that its shutdown forgets. Other
    processes of ours, which may have a Ray of their own, are left alone."""
    for child in set(psutil.Process().children()) - before:
        with suppress(psutil.Error):
            if any(str(package) in word for word in _command_line(child)):
                for process in (*child.children(recursive=True), child):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                child.wait(END_S)


def _command_line(process: psutil.Process) -> list[str]:
    """Command line of a process. It is empty for a moment after a process began, while its program
    is being loaded."""
    deadline = time.monotonic() + LOAD_S
    while not (words := process.cmdline()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return words


def _carry_out(
    spec: dict[str, Any], root: str, force: bool, timeout: float | None, accept: list[Status]
) -> str:
    """On a machine of the cluster: the run, on devices of its own; the record as JSON.

    Ray cancels by Python's handler of SIGINT. There is none in a cluster that was started in the
    background of a shell (``nohup workbench sweep ... &``), where SIGINT is ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    executor = LocalExecutor(Store(root), what="a run of a Ray cluster")
    while True:
        work = executor.start(
            RunSpec.from_dict(spec), force=force, timeout=timeout, accept=frozenset(accept)
        )
        if work is not None:
            break
        time.sleep(POLL_S)
    try:
        while (record := work.poll()) is None:
            time.sleep(POLL_S)
    finally:
        while True:
            with suppress(KeyboardInterrupt):  # another interrupt
                work.close()
                break
    return record.to_json()
