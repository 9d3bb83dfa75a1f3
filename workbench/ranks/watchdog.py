"""Finds the rank that hangs: one that does not start, does not go on, or does not end.

A rank that fails or is killed shows it by its exit status. One that hangs shows nothing, and all
others wait for it sooner or later, so the question is who is to blame. The board tells how far each
rank has come, and what it has begun and not ended (executor/board.py). To blame is one that is at
work on something, rather than one that waits for a message or a sum of another. While the watching
process itself was stopped, as a whole job may be, nothing is known of anybody, and nobody is blamed
for it.

A rank that is stopped (SIGSTOP) shows that by itself, however long its work may take. Where ranks
tell the board no more than their steps (other people's libraries), they are asked where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from subprocess import Popen

from workbench.core.others import read
from workbench.core.parents import is_stopped
from workbench.runtime.executor.board import Board, Stage
from workbench.runtime.memory.shared import host_layout
from workbench.schedule.action import MEETING
from workbench.schedule.schedule import Schedule

STILL = {
    Stage.ABSENT: "still importing",
    Stage.HERE: "still meeting the others, or laying out memory",
}
STOPPED = "rank {} hangs: it is stopped"
WORKING = 0.1
"""Processors that ranks use at least while they prepare anything."""
LOOK_S = 1.0
"""Between two looks; longer means that the watching process stood still."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long ranks may take, in seconds."""

    start_s: float = 600.0
    """Without any beginning an action until the end of the first step, while the processors do
    nothing for them: they import, make the model, compile and record as long as that takes."""
    most_s: float = 3600.0
    """How long that may go on: a rank that hangs may spin."""
    hang_s: float = 120.0
    """Without any beginning an action, in later steps: longer than any should take."""
    stop_s: float | None = None
    """How long a rank may be stopped, by default `hang_s`."""
    end_s: float = 60.0
    """From the end of the last action until all processes have ended, and a second more for each
    `END_BYTES` of the host's memory, whose pages the system unlocks one by one."""


LIMITS = Limits()
END_BYTES = 1e9
"""In each of these seconds; seen: 2.7 GB/s by each of two ranks."""


class Watchdog:
    """Looks at the ranks of one run."""

    def __init__(
        self,
        schedule: Schedule,
        board: Board,
        limits: Limits,
        first: int,
        processes: Sequence[Popen] = (),
        ask: Callable[[], str] | None = None,
        place: Callable[[int], str] = lambda rank: "",
    ) -> None:
        """Begin to watch; the ranks start now, with step `first`. `processes` are, or will be,
        those of the ranks; `ask` tells who hangs and where, of ranks whose actions are whole
        steps, and `place` ends a sentence on a rank with where inside its action it is."""
        self._schedule, self._board, self._limits, self._first = schedule, board, limits, first
        self._processes, self._ask, self._place = processes, ask, place
        self._stopped_s: dict[int, float] = {}
        """Ranks that are stopped, and since when that is seen."""
        working = {action.rank for action in schedule.actions}
        self._working = [rank for at in sorted(working) for rank in schedule.mesh.peers(at)]
        """There may be more ranks than packs."""
        self._end_s = limits.end_s + host_layout(schedule)[1] / END_BYTES
        self._started_s = time.monotonic()
        self._until_s = self._started_s + limits.most_s
        self._used = self._started_s, read().own
        """Last look at the processor time of the run: when, and how much."""
        self._done_s: float | None = None
        self._looked_s: float | None = None

    def late(self, until: int, at_least_s: float = 0.0) -> str | None:
        """Names the rank that hangs on its way to the end of a step, and how; None while none does.
        To be asked all the time. Actions may take `at_least_s`."""
        self._look()
        for rank, since_s in self._stopped_s.items():
            if time.monotonic() - since_s > (limit_s := self._stop_s):
                told = f"{STOPPED.format(rank)}, and has been for {limit_s:.0f} s"
                return f"{told}{self._place(rank)}"
        stages = [self._board.stage(rank) for rank in range(self._schedule.mesh.processes)]
        if min(stages) is not Stage.READY:
            return self._not_started(stages)
        at_work = [rank for rank in self._working if self._board.drained_by(rank) < until]
        idle_s = min(map(self._board.idle_s, at_work), default=0.0)
        limit_s = max(at_least_s, self._limits.hang_s if self._begun else self._limits.start_s)
        if not self._begun:
            idle_s = min(idle_s, time.monotonic() - self._started_s)
        return self._blamed(at_work, limit_s) if idle_s > limit_s else None

    def _look(self) -> None:
        """Move all limits by the time that this process stood still, and that of the start by the
        time in which ranks worked at it."""
        now = time.monotonic()
        if not self._begun and now - self._used[0] > LOOK_S:
            (at, before), self._used = self._used, (now, read().own)
            if self._used[1] - before > WORKING * (now - at) and now < self._until_s:
                self._started_s = now
        still_s = 0.0 if self._looked_s is None else now - self._looked_s - LOOK_S
        self._looked_s = now
        if still_s > 0:
            self._started_s += still_s
            if self._done_s is not None:
                self._done_s += still_s
            self._stopped_s.clear()
            self._board.excuse(still_s)
        self._stopped_s = {
            rank: self._stopped_s.get(rank, now)
            for rank, process in enumerate(self._processes)
            if self._board.idle_s(rank) > LOOK_S and is_stopped(process.pid)
        }

    @property
    def _stop_s(self) -> float:
        limits = self._limits
        return limits.hang_s if limits.stop_s is None else limits.stop_s

    @property
    def _begun(self) -> bool:
        """Whether the first step is over."""
        return self._board.steps > self._first

    def _not_started(self, stages: list[Stage]) -> str | None:
        if time.monotonic() - self._started_s < self._limits.start_s:
            return None
        least = min(stages)
        late = [rank for rank, stage in enumerate(stages) if stage is least]
        told = (
            f"{_ranks(late, 'has', 'have')} not started after {self._limits.start_s:.0f} s: "
            f"{STILL[least]}"
        )
        return told if self._ask is None else f"{told}; {self._ask()}"

    def _blamed(self, at_work: list[int], limit_s: float) -> str:
        since = f"nobody has begun anything for {limit_s:.0f} s"
        if stopped := set(at_work) & self._stopped_s.keys():
            return f"{STOPPED.format(min(stopped))}, and {since}"
        if self._ask is not None:
            return f"{self._ask()}; {since}"
        actions, mesh = self._schedule.actions, self._schedule.mesh
        unfinished = {
            mesh.process(actions[action].rank, replica): (action, step)
            for replica, action, step in self._board.unfinished()
            if actions[action].kind not in MEETING
        }
        rank = min(set(at_work) & set(unfinished) or at_work, key=self._board.turned_s)
        if rank in unfinished:
            action, step = unfinished[rank]
            return f"rank {rank} hangs: it began {actions[action].name} of step {step}, and {since}"
        last = self._board.doing(rank)
        if last is None:
            return f"rank {rank} hangs: it is ready for its first action, and {since}"
        action, step = last
        return (
            f"rank {rank} hangs: the last that it began is {actions[action].name} of step {step}, "
            f"and {since}"
        )

    def still_there(self, running: Collection[int]) -> str | None:
        """Names the ranks that have done all and do not end; None while they have time."""
        self._look()
        now = time.monotonic()
        if self._done_s is None:
            self._done_s = now
        if not running or now - self._done_s < self._end_s:
            return None
        return f"{_ranks(running, 'does', 'do')} not end, {self._end_s:.0f} s after the last action"


def _ranks(ranks: Collection[int], one: str, several: str) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {one}"
    return f"ranks {', '.join(map(str, ranks))} {several}"
