"""The process that runs a named sweep, or the runs of an exhibit (runs/campaign.py).

Run as ``python -m workbench.sweep_process FOLDER``, standard input being a pipe from the process
that started it: when that closes, nobody is left who wants the runs, and they are cancelled. With
``--detached`` it goes on without anybody. SIGTERM cancels. However it dies, its workers die with it
(runs/guard.py), and what was finished stays finished.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from workbench.core.files import FileLock
from workbench.core.record import RunRecord
from workbench.runs.campaign import Campaign, Status
from workbench.runs.events import Event, EventLog
from workbench.runs.executors import executor_of
from workbench.runs.inputs import check_inputs, check_starts
from workbench.runs.polled import PolledRuns
from workbench.runs.runner import POLL_S
from workbench.runs.store import Store
from workbench.runs.sweep import Sweep, SweepFile

LOCK_PATIENCE_S = 2.0
"""Seconds to wait for the lock: another process may just be testing whether it is free."""
SAY_S = 0.5
"""Longest time in seconds between two written states, while anything changes."""
OF_RUNS = frozenset({"step", "phase", "profile", "started", "ended", "exit"})
"""Events that stand in the runs' own folders, and are not repeated in the sweep's."""
DONE, FAILED, TAKEN = 0, 3, 4


def sweep_of(
    file: SweepFile, results: str | Path | None, *, timeout: float | None = None, **how: bool
) -> Sweep:
    """The sweep of a file in a results folder, by default the file's; `how` are `Sweep`'s. Raises
    ValueError for one that cannot be run."""
    store = Store(results or file.results)
    Campaign(store, file.name)  # raises for a name that no sweep can have
    check_inputs(file.specs, store)
    check_starts(file.specs, store)
    return Sweep(
        file.specs,
        store,
        timeout=file.written.timeout if timeout is None else timeout,
        executor=executor_of(file.written.executor, store, f"the sweep {file.name}"),
        **how,
    )


def run_visibly(
    file: SweepFile,
    sweep: Sweep,
    on_event: Callable[[Event], None] | None = None,
    told: Callable[[str], object] = lambda text: None,
) -> list[RunRecord]:
    """Run a sweep so that a notebook or a page that looks finds it; one that another process
    runs already is run beside that, and waits for it, of which people are `told`."""
    campaign = Campaign(sweep.store, file.name)
    lock = campaign.lock()
    if lock is None:
        pid = campaign.status().pid
        told(f"process {pid} runs the sweep {campaign.name} already; waiting for it")
        return sweep.run(on_event)
    try:
        campaign = Campaign.create(sweep.store, file.data | {"name": file.name}, replace=True)
        campaign.go_on()
        SweepProcess(campaign, [sweep]).run(on_event)
    finally:
        lock.release()
    return [point.record for point in sweep.points if point.record is not None]


class SweepProcess:
    """Carries a campaign's stages out, one after the other, as its orders say."""

    def __init__(
        self,
        campaign: Campaign,
        stages: Iterable[PolledRuns],
        *,
        detached: bool = False,
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`gone` says whether the process that wanted the runs has ended."""
        self.campaign = campaign
        self._stages = iter(stages)
        self._detached, self._gone = detached, gone
        self._started = time.time()
        self._log = EventLog(campaign.folder / "events.jsonl")
        self._retried = asked(campaign)
        self._losses: dict[str, float] = {}
        self._before: Counter[str] = Counter()
        self._said: tuple[float, Status | None] = (0.0, None)
        self._cancelled = ""
        self._stage: PolledRuns | None = None
        self._complete = False

    def run(self, on_event: Callable[[Event], None] | None = None) -> Status:
        """Run all stages to their end, and return the state in which the sweep is left; an
        exception (Ctrl-C) cancels."""
        status = Status(state="interrupted", text="it was interrupted")
        try:
            for stage in self._stages:
                self._stage, self._complete = stage, False
                while not stage.ended:
                    self._obey(stage)
                    stage.poll()
                    self._pass_on(stage, on_event)
                    self._say(self._status(stage))
                    time.sleep(POLL_S)
                self._pass_on(stage, on_event)
                self._before += stage.counts()
                self._stage = None
                if self._cancelled:
                    break
            else:
                self._complete = True
            status = self._final()
        except (ValueError, OSError) as error:
            status = Status(state="failed", text=" ".join(str(error).split()))
            raise
        finally:
            if self._stage is not None:
                self._stage.close()
                self._before += self._stage.counts()
            self._say(status, at_once=True)
            self._log.close()
        return status

    def cancel(self, why: str) -> None:
        """End the points that run, and start no more."""
        if not self._cancelled:
            self._cancelled = why
            if self._stage is not None:
                self._stage.cancel()

    def _obey(self, stage: PolledRuns) -> None:
        orders, wanted = self.campaign.orders(), asked(self.campaign)
        if self._gone():
            self.cancel(
                "who started it has ended; start it again and it goes on with the remaining runs"
            )
        elif orders.get("want") == "cancel":
            self.cancel("it was cancelled")
        stage.paused = orders.get("want") == "pause"
        if wanted > self._retried:
            self._retried = wanted
            stage.retry()

    def _pass_on(self, stage: PolledRuns, on_event: Callable[[Event], None] | None) -> None:
        for event in stage.new_events():
            if event["event"] == "step":
                self._losses[stage.points[event["index"]].key] = float(event["loss"])
            if event["event"] not in OF_RUNS:
                self._log.write(event["event"], **_values(event))
            if on_event is not None:
                on_event(event)

    def _status(self, stage: PolledRuns) -> Status:
        text, state = "", "running"
        if stage.paused:
            state, text = "paused", "it is paused; runs in work may finish" * bool(stage.running)
        elif not stage.running and stage.waits_for:
            state, text = "waiting", f"it waits for {stage.waits_for}"
        return self._with_facts(
            Status(
                state=state,
                text=text,
                counts=dict(self._before + stage.counts()),
                running=[
                    {
                        "index": stage.points.index(point),
                        "key": point.key,
                        "where": point.work.where,
                        "step": len(point.step_seconds),
                        "steps": point.spec.steps,
                        "loss": self._losses.get(point.key),
                    }
                    for point in stage.running
                ],
                seconds_left=stage.seconds_left(),
            )
        )

    def _final(self) -> Status:
        """The state at the end; a sweep cancelled when all points were done is done."""
        if not self._cancelled or self._complete:
            return Status(state="done")
        state = "interrupted" if self._gone() else "cancelled"
        return Status(state=state, text=self._cancelled)

    def _with_facts(self, status: Status) -> Status:
        """Return `status` with the facts of this process added."""
        return replace(
            status,
            pid=os.getpid(),
            detached=self._detached,
            started=self._started,
            retried=self._retried,
        )

    def _say(self, status: Status, *, at_once: bool = False) -> None:
        """Write the state to the sweep's folder if it has changed, every `SAY_S` at the most."""
        at, said = self._said
        if at_once:
            counts = dict(self._before)
            status = self._with_facts(Status(state=status.state, text=status.text, counts=counts))
        new = said is None or (status.state, status.counts) != (said.state, said.counts)
        if at_once or new or (status != said and time.monotonic() >= at + SAY_S):
            self.campaign.say(status)
            self._said = time.monotonic(), status


def stages_of(campaign: Campaign, *, retry: bool = False) -> Iterator[PolledRuns]:
    """Stages of a campaign: its sweep as written, or the searches and sweeps of an exhibit.

    Raises ValueError for a campaign that is malformed.
    """
    file = campaign.file
    if file.written.exhibit:
        from workbench.exhibits import open_exhibit

        session = open_exhibit(file.written.exhibit, file.written.size, campaign.store.root)
        yield from session.stages()
        return
    yield Sweep(
        file.specs,
        campaign.store,
        timeout=file.written.timeout,
        retry_failed=retry,
        executor=executor_of(file.written.executor, campaign.store, f"the sweep {campaign.name}"),
    )


def run_stages(
    campaign: Campaign,
    lock: FileLock,
    *,
    detached: bool = False,
    gone: Callable[[], bool] = lambda: False,
) -> int:
    """Carry a campaign out in this process, which holds its lock; returns the exit code."""
    try:
        stages = stages_of(campaign, retry=asked(campaign) > campaign.status().retried)
        process = SweepProcess(campaign, stages, detached=detached, gone=gone)
        signal.signal(signal.SIGTERM, lambda *_: process.cancel("its process was asked to end"))
        process.run()
    except (ValueError, OSError) as error:
        sentence = " ".join(str(error).split())
        campaign.say(Status(state="failed", text=sentence, started=time.time(), pid=os.getpid()))
        print(f"sweep process: {sentence}", file=sys.stderr)
        return FAILED
    finally:
        lock.release()
    return DONE


def asked(campaign: Campaign) -> int:
    """How many times people asked to run failed points again."""
    found = campaign.orders().get("retry", 0)
    return found if isinstance(found, int) else 0


def main(folder: Path, *, detached: bool) -> int:
    """Exit code: 0 it ended, 3 it failed with a sentence in its state, 4 another process has it."""
    # Ray cancels a run by this signal, which a shell ignores for what it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    campaign = Campaign(Store(folder.parent.parent), folder.name)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while (lock := campaign.lock()) is None:
        if time.monotonic() > deadline:
            return TAKEN
        time.sleep(POLL_S)
    parent = os.getppid()

    def gone() -> bool:
        return os.getppid() != parent or bool(select.select([0], [], [], 0)[0])

    return run_stages(campaign, lock, detached=detached, gone=(lambda: False) if detached else gone)


def _values(event: Event) -> Event:
    return {name: value for name, value in event.items() if name not in ("time", "event")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m workbench.sweep_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--detached", action="store_true")
    options = parser.parse_args()
    sys.exit(main(options.folder, detached=options.detached))
