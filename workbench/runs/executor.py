"""Carries runs out: on this machine, one run on a device, or by an engine with many machines.

A sweep knows only this interface. An executor starts a run if it has room for one now; what it
returns is polled, and is a `runner.Job` where the run is on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from workbench.core.record import RESULTS, Status
from workbench.core.spec import RunSpec
from workbench.runs import device_locks
from workbench.runs.one_run import Work
from workbench.runs.runner import Job
from workbench.runs.store import Store


class Executor(Protocol):
    """Starts runs where there is room."""

    waits_for: str
    """Resource that the last run that could not be started waits for, in words."""

    def start(
        self,
        spec: RunSpec,
        *,
        force: bool = False,
        timeout: float | None = None,
        accept: Iterable[Status] = RESULTS,
    ) -> Work | None:
        """Start a run, or take its record; None while there is no room. Arguments as of `Job`."""


class LocalExecutor:
    """This machine: one run at a time on each GPU, or on the processors; as many GPUs as the run
    has ranks."""

    def __init__(self, store: Store, *, what: str = "a run") -> None:
        """`what` names this holder to others who want a device."""
        self._store, self._what = store, what
        self.waits_for = ""

    def start(self, spec: RunSpec, **how: Any) -> Job | None:
        """See `Executor`. Raises ValueError for an unknown method or a device that is not here, and
        StoreError."""
        job = Job(spec, self._store, **how)
        if job.take_cached():
            return job
        among = device_locks.lockable_devices(job.spec.device)
        count = job.spec.ranks if job.spec.device == "cuda" else 1
        job.devices = device_locks.take(among, count, self._what)
        if job.devices is not None:
            self.waits_for = ""
            return job
        taken = [f"{each.name} (taken by {device_locks.holder(each)})" for each in among]
        needed = f"{count} of " if count > 1 else ""
        self.waits_for = needed + " or ".join(taken)
        return None
