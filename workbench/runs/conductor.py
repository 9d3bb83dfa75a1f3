"""The process that conducts a named sweep (campaign.py).

Run as ``python -m workbench.runs.conductor FOLDER``, standard input being a pipe from whoever
started it: when that closes, nobody is left who wants the sweep, and it is cancelled. With
``--detached`` it goes on without anybody. SIGTERM cancels. However it dies, its workers die with it
(guard.py), and what was finished stays finished.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workbench.runs.campaign import Campaign, Status
from workbench.runs.events import Event, EventLog
from workbench.runs.executor import executor_of
from workbench.runs.runner import POLL_S
from workbench.runs.store import KeyLock, Store
from workbench.runs.sweep import Sweep

LOCK_PATIENCE_S = 2.0
"""Somebody may just be looking whether the lock is free."""
SAY_S = 0.5
"""Longest time between two states, while anything changes."""
OF_RUNS = frozenset({"step", "phase", "profile", "started", "ended", "exit"})
"""Events that stand in the runs' own folders, and are not repeated in the sweep's."""
DONE, FAILED, TAKEN = 0, 3, 4


class Conductor:
    """Carries a campaign's sweep out, as its orders say."""

    def __init__(
        self,
        campaign: Campaign,
        sweep: Sweep,
        *,
        detached: bool = False,
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`gone`: whether nobody wants the sweep any more."""
        self.campaign, self.sweep = campaign, sweep
        self._detached, self._gone = detached, gone
        self._started = time.time()
        self._log = EventLog(campaign.folder / "events.jsonl")
        self._retried = _asked(campaign)
        self._losses: dict[str, float] = {}
        self._said: tuple[float, Status | None] = (0.0, None)
        self._cancelled = ""

    def run(self, on_event: Callable[[Event], None] | None = None) -> Status:
        """Until the sweep has ended; an exception (Ctrl-C) cancels it. The last word is the state
        in which it is left."""
        status = Status(state="interrupted", text="it was interrupted")
        try:
            while not self.sweep.ended:
                self._obey()
                self.sweep.poll()
                self._pass_on(on_event)
                self._say(self._status())
                time.sleep(POLL_S)
            self._pass_on(on_event)
            status = self._final()
        except (ValueError, OSError) as error:
            status = Status(state="failed", text=" ".join(str(error).split()))
            raise
        finally:
            self.sweep.close()
            self._say(status, at_once=True)
            self._log.close()
        return status

    def cancel(self, why: str) -> None:
        """End what runs and start nothing more."""
        if not self._cancelled:
            self._cancelled = why
            self.sweep.cancel()

    def _obey(self) -> None:
        orders, asked = self.campaign.orders(), _asked(self.campaign)
        if self._gone():
            self.cancel("who started it has ended; start it again and it goes on with what is left")
        elif orders.get("want") == "cancel":
            self.cancel("it was cancelled")
        self.sweep.paused = orders.get("want") == "pause"
        if asked > self._retried:
            self._retried = asked
            self.sweep.retry()

    def _pass_on(self, on_event: Callable[[Event], None] | None) -> None:
        for event in self.sweep.new_events():
            if event["event"] == "step":
                self._losses[self.sweep.points[event["index"]].key] = float(event["loss"])
            if event["event"] not in OF_RUNS:
                self._log.write(event["event"], **_values(event))
            if on_event is not None:
                on_event(event)

    def _status(self) -> Status:
        sweep, text, state = self.sweep, "", "running"
        if sweep.paused:
            state, text = "paused", "it is paused; what runs is let finish" * bool(sweep.running)
        elif not sweep.running and sweep.waits_for:
            state, text = "waiting", f"it waits for {sweep.waits_for}"
        return Status(
            state=state,
            text=text,
            counts=dict(sweep.counts()),
            running=[
                {
                    "index": sweep.points.index(point),
                    "key": point.key,
                    "where": point.work.where,
                    "step": len(point.step_seconds),
                    "steps": point.spec.steps,
                    "loss": self._losses.get(point.key),
                }
                for point in sweep.running
            ],
            seconds_left=sweep.seconds_left(),
            pid=os.getpid(),
            detached=self._detached,
            started=self._started,
            retried=self._retried,
        )

    def _final(self) -> Status:
        """How it ended."""
        left = self.sweep.counts()["pending"]
        gone = self._cancelled and self._gone()
        state = "interrupted" if gone else "cancelled" if self._cancelled and left else "done"
        text = self._cancelled if state != "done" else ""
        return Status(state=state, text=text)

    def _say(self, status: Status, *, at_once: bool = False) -> None:
        """Write the state down where it has changed, not more often than anybody looks."""
        at, said = self._said
        if at_once:
            status = Status(
                state=status.state,
                text=status.text,
                counts=dict(self.sweep.counts()),
                pid=os.getpid(),
                detached=self._detached,
                started=self._started,
                retried=self._retried,
            )
        new = said is None or (status.state, status.counts) != (said.state, said.counts)
        if at_once or new or (status != said and time.monotonic() >= at + SAY_S):
            self.campaign.say(status)
            self._said = time.monotonic(), status


def conduct(
    campaign: Campaign,
    lock: KeyLock,
    *,
    detached: bool = False,
    gone: Callable[[], bool] = lambda: False,
) -> int:
    """Carry a campaign out in this process, which holds its lock; returns the exit code."""
    try:
        file = campaign.file
        sweep = Sweep(
            file.specs,
            campaign.store,
            timeout=file.timeout_s,
            retry_failed=_asked(campaign) > campaign.status().retried,
            executor=executor_of(file.executor, campaign.store, f"the sweep {campaign.name}"),
        )
        conductor = Conductor(campaign, sweep, detached=detached, gone=gone)
        signal.signal(signal.SIGTERM, lambda *_: conductor.cancel("its process was asked to end"))
        conductor.run()
    except (ValueError, OSError) as error:
        sentence = " ".join(str(error).split())
        campaign.say(Status(state="failed", text=sentence, started=time.time()))
        print(f"conductor: {sentence}", file=sys.stderr)
        return FAILED
    finally:
        lock.release()
    return DONE


def main(folder: Path, *, detached: bool) -> int:
    """Exit code: 0 it ended, 3 it failed with a sentence in its state, 4 another process has it."""
    campaign = Campaign(Store(folder.parent.parent), folder.name)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while (lock := campaign.lock()) is None:
        if time.monotonic() > deadline:
            return TAKEN
        time.sleep(POLL_S)
    parent = os.getppid()

    def gone() -> bool:
        return os.getppid() != parent or bool(select.select([0], [], [], 0)[0])

    return conduct(campaign, lock, detached=detached, gone=(lambda: False) if detached else gone)


def _asked(campaign: Campaign) -> int:
    """How often people asked to run again what failed."""
    asked = campaign.orders().get("retry", 0)
    return asked if isinstance(asked, int) else 0


def _values(event: Event) -> Event:
    return {name: value for name, value in event.items() if name not in ("time", "event")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m workbench.runs.conductor")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--detached", action="store_true")
    options = parser.parse_args()
    sys.exit(main(options.folder, detached=options.detached))
