"""Shared memory in which the ranks of one machine write the actions they have done, and failures.

Each rank walks its own lanes (executor.py). Where one waits for what another does to shared host
memory (a stash, a gradient, an update), it waits here: a count per action in memory that all
processes map, of the steps in which the action is done. Counts only grow, so nothing is ever reset,
and a reader needs no lock. A message has two counts more: the receiver's, that its place is free,
and the sender's, that it is filled (inbox.py), or on GPUs that both have been issued (signals.py).
These two come before its actions are done, for which a norm on another rank may wait. Collectives
need no board: the ranks that take part wait in them.

The board also knows how far each rank has come, what it is at and when it turned to something last,
so that a rank that hangs can be named, and the first failure, so that nobody waits for a rank that
is gone. Losses and norms lie here until the process of the run has reported them: of the last steps
only, so a rank whose step would take the place of an unreported one waits.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch

from workbench.runtime.memory.counts import NOBODY, Counts
from workbench.schedule.mesh import Mesh
from workbench.schedule.schedule import Schedule

EVERYBODY = -2
NOTHING = -1
"""Instead of an action: none has begun."""
KEPT = 64
"""Steps whose ends are kept, for the run's own process to report."""
AHEAD = KEPT - 1
"""Steps that compute lanes may end before they are reported: a norm may be entered for one more."""


class Stage(IntEnum):
    """How far a rank has come before its first action."""

    ABSENT = 0
    HERE = 1
    """Its process has imported what it needs; it meets the others and lays out its memory."""
    READY = 2


class Failed(RuntimeError):
    """Another rank failed, or the run was stopped; its own cause is told by that rank."""


class Stopped(Failed):
    """Another lane failed, or the run was cancelled; the cause is raised in the caller."""


class Board:
    """Shared counts, one an action and replica; `path` is a file that `make` made."""

    def __init__(
        self, path: Path, *, actions: int, ranks: int, units: int, rank: int, replicas: int = 1
    ) -> None:
        """`ranks` are all processes, `replicas` so many of each position, `rank` this one."""
        self.rank, self.mesh = rank, Mesh(ranks // replicas, replicas)
        self.position, self.replica = self.mesh.position(rank), self.mesh.replica(rank)
        self._actions = actions
        self._stopped = False
        """Whether this rank has failed: its own lanes must not wait for others any more."""
        self._allowed_s = 0.0
        """When this process allowed ranks to go on."""
        file = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(file, _nbytes(actions * replicas, ranks, units))
        finally:
            os.close(file)
        actions *= replicas
        counts = np.frombuffer(self._map, np.int64, _counts(actions, ranks))
        self._failed, self._allowed, self._reported = map(Counts, counts[:3].reshape(3, 1))
        rest = counts[3:]
        done, ready, self._begun, self._left = rest[: 4 * actions].reshape(4, actions)
        self._done, self._ready = Counts(done), Counts(ready)
        rest = rest[4 * actions :]
        self._steps, self._drained, self._stages = map(Counts, rest[: 3 * ranks].reshape(3, ranks))
        self._doing = rest[3 * ranks : 5 * ranks].reshape(ranks, 2)
        self._places = rest[5 * ranks : 6 * ranks]
        self._decided = Counts(rest[6 * ranks :])
        """Number, and 1, of the last steps that have a norm."""
        floats = np.frombuffer(self._map, np.float64, _floats(ranks, units), counts.nbytes)
        self._seen, floats = floats[:ranks], floats[ranks:]
        self._ends = floats[: 3 * KEPT * ranks].reshape(KEPT, ranks, 3)
        """(part of the loss, when it was done, which step) of the last steps, by rank."""
        floats = floats[3 * KEPT * ranks :]
        self.norms = floats[: ranks * units].reshape(ranks, units)
        """[ranks, units]: the square of the norm of a rank's gradients, of the step whose norm is
        taken next."""
        self.total = floats[ranks * units : ranks * units + 2]
        """The global norm of the last step that has one, and how many updates were made by then."""
        self._norms_of = floats[ranks * units + 2 :].reshape(KEPT, 2)
        """Norm, and updates by then, of the last steps that have a norm."""

    def pin(self) -> None:
        """Let devices write here without anyone waiting: norms of what stays on them."""
        whole = np.frombuffer(self._map, np.uint8)
        code = int(torch.cuda.cudart().cudaHostRegister(whole.ctypes.data, whole.nbytes, 0))
        if code:
            raise RuntimeError(f"pinning the board of the ranks failed with CUDA error {code}")

    @staticmethod
    def sizes(schedule: Schedule) -> dict[str, int]:
        """Sizes of a schedule's board, as `make` takes them."""
        return {
            "actions": len(schedule.actions),
            "ranks": schedule.mesh.processes,
            "units": schedule.num_units,
            "replicas": schedule.replicas,
        }

    @staticmethod
    def make(path: Path, *, actions: int, ranks: int, units: int, replicas: int = 1) -> None:
        """A new board on which nothing is done."""
        with path.open("wb") as file:
            file.truncate(_nbytes(actions * replicas, ranks, units))
            file.write(np.int64(NOBODY).tobytes())

    def start_at(self, step: int, updates_done: int, norm: float | None = None) -> None:
        """All that comes before a step is done: the run continues a checkpoint, whose last step had
        this norm."""
        for counts in (self._done, self._ready, self._steps, self._drained, self._reported):
            counts.numbers[:] = step
        self.total[1] = updates_done
        if norm is not None:
            self._enter_norm(step - 1, norm)

    def publish(self, action: int, step: int) -> None:
        """This rank has done an action of a step, and all can see what it did."""
        self._done[self._index(action)] = step + 1

    def wait(self, action: int, step: int, replica: int | None = None) -> None:
        """Until another rank of this replica, or of the one given, has done an action of a step.
        Raises Failed when it never will."""
        if step >= 0:
            self._until(self._done, self._index(action, replica), step)

    def publish_ready(self, action: int, step: int) -> None:
        """This rank, which sends or receives a message of a step by an action, is ready for its
        partner: the message's place is filled, or free."""
        self._ready[self._index(action)] = step + 1

    def wait_ready(self, action: int, step: int) -> None:
        """Until the partner that sends or receives a message by an action is ready. Raises Failed
        when it never will be."""
        self._until(self._ready, self._index(action), step)

    def _index(self, action: int, replica: int | None = None) -> int:
        return (self.replica if replica is None else replica) * self._actions + action

    def _until(self, counts: Counts, index: int, seen: int) -> None:
        while not counts.wait(index, seen, self._failed):
            self.check()

    # For the watchdog, which looks for the rank that hangs.

    def come(self, stage: Stage) -> None:
        """This rank has come so far."""
        self._doing[self.rank] = NOTHING, 0
        self._seen[self.rank] = time.monotonic()
        self._stages[self.rank] = stage

    def stage(self, rank: int) -> Stage:
        """How far a rank has come."""
        return Stage(self._stages[rank])

    def begin(self, action: int, step: int) -> None:
        """This rank turns to an action."""
        self._doing[self.rank] = action, step
        self._begun[self._index(action)] = step + 1
        self._seen[self.rank] = time.monotonic()

    def end(self, action: int, step: int) -> None:
        """This rank turns away from it, done or given to the device."""
        self._left[self._index(action)] = step + 1

    def doing(self, rank: int) -> tuple[int, int] | None:
        """(action, step) that a rank began last, if any."""
        action, step = self._doing[rank]
        return None if action == NOTHING else (int(action), int(step))

    def turn(self, place: int) -> None:
        """Enter that this rank turns to a place inside an action, from 1 on."""
        self._places[self.rank] = place

    def place(self, rank: int) -> int:
        """The place that a rank turned to last; 0 for none."""
        return int(self._places[rank])

    def unfinished(self) -> list[tuple[int, int, int]]:
        """(replica, action, step) of all that somebody has begun and not ended."""
        found = np.flatnonzero(self._begun > self._left)
        return [(*divmod(int(i), self._actions), int(self._begun[i]) - 1) for i in found]

    def idle_s(self, rank: int) -> float:
        """Seconds since a rank came so far, or began something, or was allowed to go on."""
        return time.monotonic() - max(self.turned_s(rank), self._allowed_s)

    def turned_s(self, rank: int) -> float:
        """When a rank came so far, or began something, by the monotonic clock."""
        return float(self._seen[rank])

    def end_step(self, step: int, loss: float, *, worked: bool = True) -> None:
        """This rank's compute lane is done with a step, and with its part of the loss. When it was
        done counts for nothing where it had no work: such a rank may have started late. Waits where
        a step that is not reported yet would be lost; raises Failed when it never will be."""
        done = time.monotonic() if worked else 0.0
        self._until(self._reported, 0, step - AHEAD)
        self._ends[step % KEPT, self.rank] = loss, done, step + 1
        self._steps[self.rank] = step + 1

    @property
    def steps(self) -> int:
        """Steps that the compute lanes of all ranks are done with."""
        return self._steps.least()

    def ended(self, step: int) -> tuple[float, float]:
        """Loss of one of the last steps, and when the last rank that had work was done, by the
        monotonic clock, which all processes of a machine share."""
        parts = self._ends[step % KEPT]
        assert (parts[:, 2] == step + 1).all(), f"the end of step {step} is not on the board"
        return float(parts[:, 0].sum()), float(parts[:, 1].max())

    def report(self, steps: int) -> None:
        """So many steps are reported, and ranks may write over them. That they waited for it is no
        idleness."""
        self._allowed_s = time.monotonic()
        self._reported[0] = steps

    def decide(self, step: int, norm: float) -> None:
        """Enter a step's global norm; one that is not finite counts no update."""
        self.total[0] = norm
        self.total[1] += math.isfinite(norm)
        self._enter_norm(step, norm)

    def _enter_norm(self, step: int, norm: float) -> None:
        self._norms_of[step % KEPT] = norm, self.total[1]
        self._decided[step % KEPT] = step + 1  # last: from now on it is known

    def norm_of(self, step: int) -> float | None:
        """The global norm of one of the last steps; None while it is not known. Compute lanes may
        be done with a step before it is."""
        found = self.decided(step)
        return None if found is None else found[0]

    def decided(self, step: int) -> tuple[float, int] | None:
        """The global norm of one of the last steps, and how many updates were made by its end; None
        while that is not known."""
        if step < 0 or self._decided[step % KEPT] != step + 1:
            return None
        norm, done = self._norms_of[step % KEPT]
        return float(norm), int(done)

    # Between segments, all ranks stand still while the host memory of all is saved.

    def allow(self, step: int) -> None:
        """Let all ranks go on up to a step. What they stood still until now is not idleness."""
        self._allowed_s = time.monotonic()
        self._allowed[0] = step

    def excuse(self, seconds: float) -> None:
        """Excuse the ranks for `seconds` in which nobody looked, and perhaps nobody ran: they do
        not count as idleness."""
        since_s = max(float(self._seen.max()), self._allowed_s)
        self._allowed_s = min(time.monotonic(), since_s + seconds)

    def await_allowed(self, step: int) -> None:
        """Until this rank may begin a segment that ends at a step."""
        self._until(self._allowed, 0, step - 1)

    def drain(self, step: int) -> None:
        """All lanes of this rank have ended their work up to a step."""
        self._drained[self.rank] = step

    def drained_by(self, rank: int) -> int:
        """The step up to which all lanes of a rank have ended their work."""
        return self._drained[rank]

    @property
    def drained(self) -> int:
        """Steps that all ranks have drained."""
        return self._drained.least()

    def fail(self) -> None:
        """Tell all that this rank has failed, unless another one has."""
        self._stopped = True
        if self._failed[0] == NOBODY:
            self._failed[0] = self.rank

    def again(self, step: int) -> None:
        """The only rank is to do a step again in which it has failed."""
        self._failed[0], self._stopped = NOBODY, False
        self.start_at(step, int(self.total[1]))

    def stop(self) -> None:
        """Tell all ranks to end."""
        if self._failed[0] == NOBODY:
            self._failed[0] = EVERYBODY

    def check(self) -> None:
        """Raise Failed where there is no use in waiting."""
        failed = self._failed[0]
        if failed == EVERYBODY or self._stopped:
            raise Failed("the run was stopped")
        if failed not in (NOBODY, self.rank):
            raise Failed(f"rank {failed} failed")


def _floats(ranks: int, units: int) -> int:
    return ranks + 3 * KEPT * ranks + ranks * units + 2 + 2 * KEPT


def _counts(actions: int, ranks: int) -> int:
    return 3 + 4 * actions + 6 * ranks + KEPT


def _nbytes(actions: int, ranks: int, units: int) -> int:
    return 8 * (_counts(actions, ranks) + _floats(ranks, units))
