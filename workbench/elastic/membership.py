"""Which hosts are there, which round runs, and what follows: state, without sockets or a clock.

* A host is lost when its agent goes, or is silent for 4 s. That ends the round, as does a worker
  that dies, stands still or does not get on. A round is over on all its hosts before the next one
  begins: with who is there, from the newest committed checkpoint.
* Before a host goes (a notice, the list), and when the job is stopped, workers save and leave.
* Without a loss, a round gives way to another shape only where that pays.
* Only the round that runs may commit, and only from hosts that are there.
* Where shapes are chosen by a profile, the first round that succeeds has the script profile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from workbench.elastic.folder import State
from workbench.elastic.messages import Message, Start
from workbench.elastic.placement import Prepare, Ready, Shape, fixed, place
from workbench.elastic.rounds import ENDED, LACKING, SAMPLES, WRONG, Failures, Round, Terms, Worth

LOST_S, STARTING_S = 4.0, 60.0
"""Longest silence of an agent that can start workers, and of one that comes up: then it is lost."""
LEAD_S, AWAY_S = 30.0, 120.0
"""All save so long before a host goes; so long after that, it is asked whether it is back."""
RETRY_S, LONGEST_RETRY_S = 30.0, 600.0
"""First and longest wait before a host that was lost is asked again."""
SAVING_S, ENDING_S = 600.0, 15.0
"""Workers that have not left so long after they were to are ended; an agent that has not ended
them so long after that is lost."""


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


class Membership:
    """All times are of one clock that the caller reads, in seconds."""

    def __init__(
        self, terms: Terms, *, now: float, say: Callable[[str], None],
        before: State | None = None, prepare: Prepare | None = None,
    ) -> None:  # fmt: skip
        """`say` takes what people want to know; `before` is the state of a job that goes on.
        `prepare` finds what a round needs, the newest checkpoint among it; by default that is the
        one heard of."""
        self.hosts = {host: Host(slots=slots) for host, slots in terms.hosts.items()}
        self.round: Round | None = None
        self.number = before.round if before else -bool(terms.profiling)
        self.newest, self.began = (before.committed, before.began) if before else (None, None)
        self.outcome: str | None = None
        """``done``, ``stopped`` or why the job failed; None while it goes on."""
        self.refused = False
        """Whether that is what a user has to mend."""
        self.out: list[tuple[str, Message | None]] = []
        """What to tell to hosts; None where an agent is to be started."""
        self.slow: dict[str, float] = {}
        """Slow workers of this round, and by how much."""
        self._prepare = prepare or (lambda number: Ready(newest=self.newest))
        self._terms, self._say, self._worth = terms, say, Worth(terms)
        self._failures = Failures()
        self._listed, self._profiling = dict(terms.hosts), terms.profiling
        self._cuts: dict[tuple[str, int], str] = {}
        """Shape and chunk -> slices of each stage, as a first rank has measured it."""
        self._nbytes = 0
        """Bytes of the module's parameters, as the first rank of a round has told."""
        self._notices: dict[str, float] = {}
        self._stepped_s: float | None = None
        self._began_s = self._ticked_s = now
        self._settled, self._waits = False, ""
        self._furthest = self.newest or 0

    # -- hosts ---------------------------------------------------------------------------------
    def listed(self, hosts: Mapping[str, int], now: float) -> None:
        """The machine list has changed."""
        before, self._listed = self._listed, dict(hosts)
        for name in hosts.keys() - before.keys():
            self._say(f"{name} is on the list, with {hosts[name]} slots")
            self._worth.changes.append(now)
            host = self.hosts.setdefault(name, Host(slots=hosts[name]))
            host.retry_s, host.fails, host.leaving = now, 0, False
        for name in before.keys() - hosts.keys():
            self._say(f"{name} is off the list")
            self._leave(name, now)
        for name, slots in hosts.items():
            self.hosts[name].slots = slots

    def connected(self, name: str, now: float) -> bool:
        """Whether an agent is welcome: its host was called."""
        host = self.hosts.get(name)
        if host is None or host.phase != "called":
            return False
        host.phase, host.heard_s = "coming", now
        return True

    def lost(self, name: str, now: float, why: str) -> None:
        """An agent is gone, or is taken to be."""
        host = self.hosts.get(name)
        if host is None or host.phase == "away":
            return
        if not host.leaving and (self.outcome is None or self.round is not None):
            there = host.phase == "ready"
            self._say(f"{name} {'is lost' if there else 'does not come'}: {why}")
            self._worth.changes.append(now)
            host.retry_s = now + min(LONGEST_RETRY_S, RETRY_S * 2**host.fails)
            host.fails += 1
        host.phase, host.leaving = "away", False
        self.out.append((name, Message(kind="bye")))  # if it was cut off, and comes back
        if name not in self._listed:
            del self.hosts[name]
        if self.round is not None and name in self.round.seats:
            self._end(now)

    def notice(self, name: str, at: float, now: float) -> None:
        """A host goes at a time, which may be past. Raises ValueError for an unknown host."""
        if name not in self.hosts:
            raise ValueError(f"{name} is none of the hosts {', '.join(self.hosts)}")
        self._notices[name] = at
        self._say(f"{name} goes" + (f" in {at - now:.0f} s" if at > now else ""))

    def _leave(self, name: str, now: float) -> None:
        at, host = self._notices.pop(name, now), self.hosts.get(name)
        if host is not None:
            self._worth.changes.append(now)
            host.retry_s, host.leaving = max(now, at) + AWAY_S, host.phase != "away"
            if not host.leaving and name not in self._listed:
                del self.hosts[name]

    # -- workers -------------------------------------------------------------------------------
    def take(self, name: str, told: Message, now: float) -> None:
        """What an agent tells."""
        host, ours = self.hosts[name], self.round
        host.heard_s = now
        if told.kind == "ready":
            host.phase, host.fails = "ready", 0
            self._say(f"{name} is ready, with {host.slots} slots")
        elif told.kind == "notice":
            self.notice(name, now, now)
        elif told.kind == "ask":
            self.out.append((name, replace(told, kind="yes" if self.may(name, told) else "no")))
        elif ours is None or told.round != ours.number:
            return
        elif told.kind == "step":
            self._step(ours, told, now)
        elif told.kind == "committed":
            self.newest = max(self.newest or 0, told.step)
        elif told.kind == "loaded":
            self._loaded(told.step)
        elif told.kind == "cut":
            self._cuts[str(ours.shape), ours.shape.chunk] = told.cut
            self._nbytes = told.nbytes
        elif told.kind == "wanted":
            self._save("a worker was sent SIGUSR1", now)
        elif told.kind == "over":
            ours.over.add(name)
        elif told.kind == "ended" and ours.phase != "ending":
            self._ended(ours, name, told, now)

    def may(self, name: str, asked: Message) -> bool:
        """The fence: whether a host may put a checkpoint in its place."""
        ours, there = self.round, self._is_ready(name)
        current = ours is not None and ours.number == asked.round and ours.phase != "ending"
        return current and there and name in ours.seats

    def _loaded(self, step: int) -> None:
        """A script may begin a job from a checkpoint of before, of which it alone knows."""
        if self.newest is None:
            self._say(f"the script has taken up the checkpoint of step {step}")
            self.newest = step
        if self.began is None:
            self.began = step

    def _step(self, ours: Round, told: Message, now: float) -> None:
        if self.began is None:
            self.began = told.step - 1
        if ours.step is None:
            since = ours.began_s if self._stepped_s is None else self._stepped_s
            self._worth.costs_s.append(now - since)
            event = "the one before" if self._stepped_s is not None else "the round began"
            self._say(f"step {told.step} is done, {now - since:.1f} s after {event}")
        ours.step, self._stepped_s = max(ours.step or 0, told.step), now
        if told.step > self._furthest:
            self._furthest, ours.gains = told.step, True
            self._failures.forget()
        if told.rank == 0:
            ours.seconds.append(told.seconds)
        if not told.forward_s:
            return
        ours.forwards.setdefault(told.rank, deque(maxlen=SAMPLES)).append(told.forward_s)
        for who, over in ours.slow_peers(told.rank).items():
            if who not in self.slow:
                self.slow[who] = over
                self._say(f"{who} is slow: {over:.2f} times its stage's median")

    def _ended(self, ours: Round, name: str, told: Message, now: float) -> None:
        if not told.failure:
            ours.left.add(told.rank)
            if len(ours.left) < ours.shape.ranks:
                return
            if ours.phase == "running":
                done = self._terms.choose is None or not self._profiling
                self.outcome, self._profiling = "done" if done else None, ""
                self._failures.forget()
        else:
            what = f"rank {told.rank} on {name} {told.failure}"
            self._say(what)
            why = self._failures.judge(told.failure, ours.step, gains=ours.gains)
            if self._profiling and told.failure.startswith(ENDED):
                self._refuse(LACKING.format(what))
            elif self._stepped_s is None and told.failure.startswith(WRONG):
                self._refuse(what)
            elif why:
                self.outcome = f"{why}: {what}"
        self._end(now)

    def _refuse(self, why: str) -> None:
        self.outcome, self.refused = why, True

    # -- rounds --------------------------------------------------------------------------------
    def stop(self, now: float, *, at_once: bool = False) -> None:
        """A person ends the job: all save and leave. Before a step there is nothing to save, and
        who asks again does not want to wait for it."""
        at_once |= self.outcome is not None
        self.outcome = self.outcome or "stopped"
        if self.round is not None and (at_once or self.round.step is None):
            self._end(now)
        elif self.round is not None:
            self._save("the job is stopped (asked again, it ends at once)", now)

    def tick(self, now: float) -> None:
        """Look at the clock, a few times a second, and do what is due."""
        late, self._ticked_s = now - self._ticked_s, now
        for name, host in [*self.hosts.items()]:
            if late > 1.0:  # the manager stood still: what was told meanwhile is not read yet
                host.heard_s += late
            if host.phase == "away" and now >= host.retry_s and name in self._listed:
                host.phase, host.heard_s = "called", now
                self.out.append((name, None))
            silent_s = now - host.heard_s if host.phase != "away" else 0.0
            if silent_s > (LOST_S if host.phase == "ready" else STARTING_S):
                self.lost(name, now, f"silent for {silent_s:.0f} s")
        for name, at in [*self._notices.items()]:
            if now >= at - LEAD_S:
                self._leave(name, now)
        if self.round is not None:
            self._look(self.round, now)
        for name, host in [*self.hosts.items()]:
            if host.leaving and (self.round is None or name not in self.round.seats):
                self.lost(name, now, "")
        if self.round is None and self.outcome is None:
            self._begin(now)

    def _look(self, ours: Round, now: float) -> None:
        late = {name for name in ours.seats if self._is_ready(name)} - ours.over
        if ours.phase == "ending" and not late:
            self.round = None
        elif ours.phase == "ending" and now - ours.since_s > ENDING_S:
            for name in late:
                self.lost(name, now, "it does not end its workers")
        elif ours.phase == "saving" and now - ours.since_s > SAVING_S:
            self._end(now)
        elif ours.phase == "running":
            for name, seats in ours.seats.items():
                if self.hosts[name].leaving or self.hosts[name].slots < len(seats):
                    self._save(f"{name} goes, or has fewer slots", now)
            changed = self._there() not in ({}, ours.slots) and not self._profiling
            new = self._choice() if changed else None
            if new is not None and self._worth.exceeds(ours.shape, new, ours.seconds):
                self._save(f"{new} instead of {ours.shape}", now)

    def _save(self, why: str, now: float) -> None:
        if self._profiling:
            self._end(now)  # there is nothing to save
        elif self.round.phase == "running":
            self.round.phase, self.round.since_s = "saving", now
            self._say(f"all save: {why}")
            self._tell("save")

    def _end(self, now: float) -> None:
        if self.round.phase != "ending":
            self.round.phase, self.round.since_s = "ending", now
            self._tell("end")

    def _tell(self, kind: str) -> None:
        told = Message(kind=kind, round=self.round.number)
        self.out += [(name, told) for name in self.round.seats if self._is_ready(name)]

    def _is_ready(self, name: str) -> bool:
        return name in self.hosts and self.hosts[name].phase == "ready"

    def _there(self) -> dict[str, int]:
        """Slots of the hosts of the next round."""
        ready = (name for name, host in self.hosts.items() if host.phase == "ready")
        return {name: self.hosts[name].slots for name in ready if not self.hosts[name].leaving}

    def spare(self) -> dict[str, int]:
        """Slots of this round's hosts that no rank takes."""
        taken = self.round.seats
        return {host: n - len(taken.get(host, ())) for host, n in self.round.slots.items()}

    def _choice(self) -> Shape | None:
        """Shape of the next round; None where nothing fits, which is said once."""
        slots = sum(self._there().values())
        terms, shape, why = self._terms, None, "" if slots else "none is there"
        choose = fixed(slots, 1, terms.batch) if self._profiling else terms.choose
        try:
            shape = choose(slots, terms.per_host) if slots else None
        except OSError as error:
            self._refuse(LACKING.format(error))
        except ValueError as error:
            why = str(error)
            if self._stepped_s is None and self._there() == self._listed:
                self._refuse(why)
        if why and why != self._waits:
            self._say(f"waiting for hosts: {why}")
        self._waits = why
        return shape

    def _begin(self, now: float) -> None:
        coming = any(host.phase in ("called", "coming") for host in self.hosts.values())
        self._settled |= not coming or now - self._began_s > STARTING_S
        if not self._settled or (shape := self._choice()) is None:
            return
        if (ready := self._prepare(self.number + 1)) is None:
            return
        if ready.lacking:
            self._refuse(ready.lacking)
            return
        if ready.newest != self.newest:
            known = "none" if self.newest is None else self.newest
            self._say(f"the newest sound checkpoint is of step {ready.newest}, known was {known}")
        self.newest = ready.newest
        self._furthest = max(self._furthest, self.newest or 0)
        cut = shape.cut or self._cuts.get((str(shape), shape.chunk), "")
        seats, slots = place(shape, self._there()), self._there()
        self.number, self.slow = self.number + 1, {}
        self.round = Round(number=self.number, shape=shape, seats=seats, slots=slots, began_s=now)
        spare = [f"{host}:{n}" for host, n in self.spare().items() if n]
        profiles = f"profiles into {self._profiling}" if self._profiling else ""
        does = profiles or f"resumed to config {shape} at step {self.newest or 0}"
        self._say(
            f"round {self.number}: {does} on "
            + ", ".join(seats) + ("; spare slots " + ", ".join(spare) if spare else "")
            + (f"; slices of stages {cut}" if cut else "")
        )  # fmt: skip
        for index, (name, own) in enumerate(seats.items()):
            start = Start(
                port=ready.port, host=index, hosts=len(seats), first=own.start, count=len(own),
                stages=shape.stages, replicas=shape.replicas, chunk=shape.chunk, cut=cut,
                nbytes=self._nbytes, resume_step=self.newest, profiling=self._profiling,
                began=self.began,
            )  # fmt: skip
            self.out.append((name, Message(kind="start", round=self.number, start=start)))
