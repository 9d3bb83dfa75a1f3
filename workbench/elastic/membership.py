"""Which hosts are there, which round runs, and what is to be done: state, without sockets.

The manager tells what happened and when; `out` is what it is to do. Rules:

* A host is lost when its agent is silent for 4 s, or goes. What is lost ends the round, as a worker
  does that dies, stands still or does not get on. A round that ends by itself is over everywhere
  before the next one begins: with who is there, from the newest committed checkpoint.
* Where a host is to go (a notice, the list), all workers save and leave first.
* Without a loss, the round gives way to another shape only where it pays (`pays`).
* Only the round that runs may commit, and only hosts that are in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from workbench.elastic.messages import (
    Checkpoint,
    Ended,
    Message,
    Progress,
    Sign,
    Start,
    Turn,
)
from workbench.elastic.placement import Choose, Plan, place

LOST_S = 4.0
"""An agent that can start workers and is silent for so long is lost."""
STARTING_S = 60.0
"""So long an agent may be silent while it comes up, and hosts are waited for at the start."""
LEAD_S = 30.0
"""All save this long before a host goes."""
RETRY_S, LONGEST_RETRY_S = 30.0, 600.0
"""First and longest wait before a new agent is started on a host that was lost."""
AWAY_S = 120.0
"""A host that was to go is asked again so long after that."""
ENDING_S = 15.0
"""An agent that does not end its workers in so long is lost."""
HORIZON_S = 1800.0
"""Between changes, before there are three."""
SLOW, SAMPLES = 1.15, 5
"""A worker so much over its stage's median is slow; forward passes that are looked at."""
FRUITLESS = 3
"""Rounds in a row in which a worker fails before any step is done: no use in another."""

Morph = Literal["always", "gain", "never"]


def pays(now: float, then: float, horizon_s: float, cost_s: float) -> bool:
    """Whether `then` samples a second make more of the horizon than `now`, `cost_s` without any
    included."""
    return then * max(0.0, horizon_s - cost_s) > now * horizon_s


@dataclass(kw_only=True)
class Host:
    """One of the list, or one that is still to go."""

    slots: int
    phase: Literal["away", "called", "coming", "ready"] = "away"
    """Called: its agent was started. Coming: that has connected."""
    heard_s: float = 0.0
    retry_s: float = 0.0
    fails: int = 0
    leaving: bool = False


@dataclass(kw_only=True)
class Round:
    """One that has begun and is not over."""

    number: int
    plan: Plan
    began_s: float
    phase: Literal["running", "saving", "ending"] = "running"
    phase_s: float = 0.0
    step: int | None = None
    """Done in this round, in all."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=31))
    forwards: dict[int, list[float]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    over: set[str] = field(default_factory=set)


class Membership:
    """All times are of one clock that the caller reads, in seconds."""

    def __init__(
        self, hosts: Mapping[str, int], choose: Choose, *,
        batch: int, per_host: int, morph: Morph, now: float,
        horizon_s: float | None = None, number: int = 0, committed: int | None = None,
    ) -> None:  # fmt: skip
        """`number` and `committed` are the last round and the newest checkpoint of a job that goes
        on."""
        self.hosts = {host: Host(slots=slots) for host, slots in hosts.items()}
        self.round: Round | None = None
        self.number, self.newest = number, committed
        self.outcome: str | None = None
        """``done``, or why the job ends; None while it goes on."""
        self.out: list[tuple[str, Message | None]] = []
        """Messages to hosts; None where an agent is to be started."""
        self.say: Callable[[str], None] = lambda text: None
        """Takes what people want to know."""
        self.slow: dict[int, float] = {}
        """Slow ranks of this round, and by how much."""
        self._choose, self._batch, self._per_host = choose, batch, per_host
        self._morph, self._horizon_s = morph, horizon_s
        self._listed = dict(hosts)
        self._notices: dict[str, float] = {}
        self._changes: list[float] = []
        self._costs: list[float] = []
        self._stepped_s: float | None = None
        self._began_s = self._ticked_s = now
        self._settled = False
        self._fruitless, self._waits = 0, ""

    # -- hosts ---------------------------------------------------------------------------------
    def listed(self, hosts: Mapping[str, int], now: float) -> None:
        """The machine list has changed."""
        for name, slots in hosts.items():
            if name not in self._listed:
                self.say(f"{name} is on the list, with {slots} slots")
                self._changes.append(now)
            host = self.hosts.setdefault(name, Host(slots=slots))
            if name not in self._listed:
                host.retry_s, host.fails, host.leaving = now, 0, False
            host.slots = slots
        for name in self._listed.keys() - hosts.keys():
            self.say(f"{name} is off the list")
            self._leave(name, now)
        self._listed = dict(hosts)

    def connected(self, name: str, now: float) -> bool:
        """Whether an agent is welcome: its host was called."""
        host = self.hosts.get(name)
        if host is None or host.phase != "called":
            return False
        host.phase, host.heard_s = "coming", now
        return True

    def heard(self, name: str, now: float) -> None:
        """Something has come from an agent."""
        self.hosts[name].heard_s = now

    def ready(self, name: str, now: float) -> None:
        """An agent can start workers."""
        self.hosts[name].phase, self.hosts[name].fails = "ready", 0
        self.say(f"{name} is ready, with {self.hosts[name].slots} slots")

    def lost(self, name: str, now: float, why: str) -> None:
        """An agent is gone, or is taken to be."""
        host = self.hosts.get(name)
        if host is None or host.phase == "away":
            return
        if not host.leaving and self.outcome is None:
            self._changes.append(now)
            host.retry_s = now + min(LONGEST_RETRY_S, RETRY_S * 2**host.fails)
            host.fails += 1
            self.say(f"{name} is lost: {why}")
        host.phase, host.leaving = "away", False
        self.out.append((name, Sign(sign="bye")))  # a host that was cut off and comes back
        if name not in self._listed:
            del self.hosts[name]
        if self.round is not None and name in self.round.plan.seats:
            self._end(now)

    def notice(self, name: str, at: float, now: float) -> None:
        """A host goes at a time, which may be past. Raises ValueError for one that is not there."""
        if name not in self.hosts:
            raise ValueError(f"{name} is none of the hosts {', '.join(self.hosts)}")
        self._notices[name] = at
        self.say(f"{name} goes" + (f" in {at - now:.0f} s" if at > now else ""))

    def _leave(self, name: str, now: float) -> None:
        host = self.hosts[name]
        self._changes.append(now)
        host.retry_s = max(now, self._notices.pop(name, now)) + AWAY_S
        if host.phase == "away":
            if name not in self._listed:
                del self.hosts[name]
            return
        host.leaving = True

    # -- workers -------------------------------------------------------------------------------
    def progress(self, told: Progress, now: float) -> None:
        """A worker has done a step."""
        ours = self._current(told)
        if ours is None or told.step is None:
            return
        if ours.step is None:
            since = ours.began_s if self._stepped_s is None else self._stepped_s
            self._costs.append(now - since)
            self.say(f"step {told.step} is done, {now - since:.1f} s after the one before")
        ours.step, self._fruitless = max(ours.step or 0, told.step), 0
        self._stepped_s = now
        if told.rank == 0:
            ours.seconds.append(told.seconds)
        if told.forward_s is not None:
            ours.forwards.setdefault(told.rank, []).append(told.forward_s)
            self._look_for_slow(ours, told.rank)

    def _look_for_slow(self, ours: Round, rank: int) -> None:
        stages = ours.plan.shape.stages
        peers = range(rank % stages, ours.plan.shape.ranks, stages)
        times = {peer: ours.forwards.get(peer, [])[-SAMPLES:] for peer in peers}
        if any(len(each) < SAMPLES for each in times.values()):
            return
        middle = median(map(median, times.values()))
        for peer, each in times.items():
            if median(each) > SLOW * middle and peer not in self.slow:
                self.slow[peer] = median(each) / middle
                self.say(f"rank {peer} on {self.host_of(peer)} is slow: {self.slow[peer]:.2f} times")

    def host_of(self, rank: int) -> str:
        """Of a rank of this round."""
        return next(host for host, seats in self.round.plan.seats.items() if rank in seats)

    def may_commit(self, name: str, asked: Checkpoint) -> bool:
        """The fence: whether a checkpoint may be put in its place."""
        ours = self._current(asked)
        there = name in self.hosts and self.hosts[name].phase == "ready"
        return ours is not None and ours.phase != "ending" and there and name in ours.plan.seats

    def committed(self, told: Checkpoint) -> None:
        """A checkpoint is in its place."""
        self.newest = max(self.newest or 0, told.step)

    def ended(self, name: str, told: Ended, now: float) -> None:
        """A worker has ended, stands still, or does not get on."""
        ours = self._current(told)
        if ours is None or ours.phase == "ending":
            return
        if told.failure is None:
            ours.left.add(told.rank)
            if len(ours.left) == ours.plan.shape.ranks:
                if ours.phase == "running":
                    self.outcome = "done"
                self._end(now)
            return
        self.say(f"rank {told.rank} on {name} {told.failure}")
        self._fruitless += ours.step is None
        if self._fruitless == FRUITLESS:
            self.outcome = (
                f"{FRUITLESS} rounds in a row ended before a step was done: the last one since rank "
                f"{told.rank} on {name} {told.failure}"
            )
        self._end(now)

    def stop(self, now: float) -> None:
        """A person ends the job."""
        self.outcome = self.outcome or "stopped"
        if self.round is not None:
            self._end(now)

    def wanted(self, round: int, now: float) -> None:
        """A worker was sent SIGUSR1."""
        if self.round is not None and self.round.number == round:
            self._save("a worker was sent SIGUSR1", now)

    def over(self, name: str, round: int, now: float) -> None:
        """No process of the round is left on a host."""
        if self.round is not None and self.round.number == round:
            self.round.over.add(name)

    def _current(self, told: Progress | Ended | Checkpoint) -> Round | None:
        ours = self.round
        return ours if ours is not None and ours.number == told.round else None

    # -- rounds --------------------------------------------------------------------------------
    def tick(self, now: float, *, may_begin: bool = True) -> None:
        """Look at the clock, a few times a second, and do what is due."""
        late = now - self._ticked_s
        if late > 1.0:  # we stood still ourselves: what was told meanwhile is not read yet
            for host in self.hosts.values():
                host.heard_s += late
        self._ticked_s = now
        for name, host in [*self.hosts.items()]:
            if host.phase == "away" and now >= host.retry_s and name in self._listed:
                host.phase, host.heard_s = "called", now
                self.out.append((name, None))
            limit = LOST_S if host.phase == "ready" else STARTING_S
            if host.phase != "away" and now - host.heard_s > limit:
                self.lost(name, now, f"silent for {now - host.heard_s:.0f} s")
        for name, at in [*self._notices.items()]:
            if now >= at - LEAD_S:
                self._leave(name, now) if name in self.hosts else self._notices.pop(name)
        if self.round is not None:
            self._look_at_round(self.round, now)
        for name, host in [*self.hosts.items()]:
            if host.leaving and (self.round is None or name not in self.round.plan.seats):
                self.lost(name, now, "")
        if self.round is None and self.outcome is None and may_begin:
            self._begin(now)

    def _look_at_round(self, ours: Round, now: float) -> None:
        there = {name for name in ours.plan.seats if self._is_ready(name)}
        if ours.phase == "ending":
            if there <= ours.over:
                self.round = None
            elif now - ours.phase_s > ENDING_S:
                for name in there - ours.over:
                    self.lost(name, now, "it does not end its workers")
        elif ours.phase == "running":
            for name, seats in ours.plan.seats.items():
                if self.hosts[name].leaving or self.hosts[name].slots < len(seats):
                    self._save(f"{name} goes, or has fewer slots", now)
                    return
            self._consider(ours, now)

    def _consider(self, ours: Round, now: float) -> None:
        """Morph without a loss, where that pays."""
        plan = self._plan()
        old, new = ours.plan.shape, plan.shape if plan else None
        if new is None or self._morph == "never" or str(new) == str(old) and new.chunk == old.chunk:
            return
        if self._morph == "gain":
            if not ours.seconds:
                return
            rate = self._batch / median(ours.seconds)
            faster = new.ranks / old.ranks
            if old.seconds and new.seconds:
                faster = old.seconds / new.seconds
            if not pays(rate, rate * faster, self.horizon_s, median(self._costs)):
                return
        self._save(f"{new} instead of {old}", now)

    @property
    def horizon_s(self) -> float:
        """For how long the next shape will probably last."""
        if self._horizon_s is not None:
            return self._horizon_s
        if len(self._changes) < 3:
            return HORIZON_S
        return fmean(b - a for a, b in zip(self._changes, self._changes[1:], strict=False))

    def _save(self, why: str, now: float) -> None:
        ours = self.round
        if ours.phase == "running":
            ours.phase, ours.phase_s = "saving", now
            self.say(f"all save: {why}")
            self._tell(Turn(round=ours.number, turn="save"))

    def _end(self, now: float) -> None:
        ours = self.round
        if ours.phase != "ending":
            ours.phase, ours.phase_s = "ending", now
            self._tell(Turn(round=ours.number, turn="end"))

    def _tell(self, turn: Turn) -> None:
        self.out += [(name, turn) for name in self.round.plan.seats if self._is_ready(name)]

    def _is_ready(self, name: str) -> bool:
        return name in self.hosts and self.hosts[name].phase == "ready"

    def _plan(self) -> Plan | None:
        """Of the next round; None where nothing fits, and why goes to `_waits`."""
        there = {n: h.slots for n, h in self.hosts.items() if h.phase == "ready" and not h.leaving}
        try:
            if not there:
                raise ValueError("no host is there")
            return place(self._choose(sum(there.values()), self._per_host), there)
        except ValueError as error:
            self._waits = str(error)
            return None

    def _begin(self, now: float) -> None:
        coming = [n for n, host in self.hosts.items() if host.phase in ("called", "coming")]
        self._settled |= not coming or now - self._began_s > STARTING_S
        if not self._settled:
            return
        waits, plan = self._waits, self._plan()
        if plan is None:
            if self._waits != waits:
                self.say(f"waiting for hosts: {self._waits}")
            return
        self.number, self._waits, self.slow = self.number + 1, "", {}
        self.round = Round(number=self.number, plan=plan, began_s=now)
        shape, resume = plan.shape, self.newest if self.number > 1 else None
        spare = ", ".join(f"{host}:{slots}" for host, slots in plan.spare.items())
        self.say(
            f"round {self.number}: resumed to config {shape} at step {resume or 0} on "
            f"{', '.join(plan.seats)}" + (f"; spare slots {spare}" if spare else "")
        )
        for index, (name, seats) in enumerate(plan.seats.items()):
            start = Start(
                round=self.number, port=0, host=index, hosts=len(plan.seats), first=seats.start,
                count=len(seats), stages=shape.stages, replicas=shape.replicas, chunk=shape.chunk,
                resume_step=resume,
            )  # fmt: skip
            self.out.append((name, start))

    def described(self) -> dict[str, Any]:
        """What people see of it."""
        ours = self.round
        return {
            "round": self.number,
            "phase": self.outcome or (ours.phase if ours else "waiting"),
            "shape": str(ours.plan.shape) if ours else None,
            "step": ours.step if ours else None,
            "committed": self.newest,
            "hosts": {name: host.phase for name, host in self.hosts.items()},
            "ranks": {n: [*seats] for n, seats in ours.plan.seats.items()} if ours else {},
            "spare": dict(ours.plan.spare) if ours else {},
        }
