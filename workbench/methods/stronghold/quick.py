"""A good choice in a fifth of a second, for a question that somebody is still turning.

The full search (search.py) simulates all that it compares. Here arithmetic (loads.py) says of a few
hundred choices how fast they can be at the best, and only those are simulated that promise most:

* of a grid over the numbers of pulled and kept layers, without and with stashed inputs, as many
  layers resident as a straight line says that the device has room for;
* what was chosen for the question before, in proportion where the depth has changed;
* by how much a simulation is slower than the arithmetic says the same of choices near it, the less
  the further they are, so that what disappoints is left alone with all that is like it;
* around the best choice the grid is finer, down to single layers;
* last some wider windows: they pay where the link is slow and nothing is clipped.

What it finds is simulated and known to fit, like all that the full search compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, exp

from workbench.core.spec import RunSpec
from workbench.methods.stronghold.choice import Choice
from workbench.methods.stronghold.evaluation_cache import EvaluationCache
from workbench.methods.stronghold.loads import Loads
from workbench.methods.stronghold.search import ACROSS, ALONG, Enough, Search, Trial, objective
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile

QUICK_STEPS = 3
"""Steps of a simulation. Few are made, so none may be mistaken: in two steps states that visit the
device may seem to be in time."""
WORK = 5_000
"""Actions of all schedules that are simulated: what a simulation takes grows with them."""
WINDOW_TRIALS = 2
"""Simulations kept back for windows."""
WINDOWS = (2, 8, 4, 16)
WIDER = 0.99
"""A window is tried where arithmetic promises to be faster than the best choice by this factor."""
GRID = 16
"""Strides of the grid along either number."""
STRIDES = (1, 2, 4)
"""Strides of the finer grids around the best choice."""
NEAR = 16
"""A simulation is a witness for choices that differ from it by about one layer in so many."""
DOUBT = 0.3
"""Weight of arithmetic against a simulation of just that choice."""
WORTH = 1.03
"""A choice that promises to be slower than the best by more than this factor is not simulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """The choice for an earlier question."""

    choice: Choice
    layers: int


@dataclass(kw_only=True, slots=True)
class EstimatedChoice:
    """A choice that may be worth a simulation."""

    choice: Choice
    """Its resident layers are about as many as fit; where `exact`, just as many."""
    exact: bool
    about: float
    """Seconds to make small, by arithmetic."""
    slower: float = DOUBT
    weight: float = DOUBT
    """How much slower simulations nearby were, as a sum of factors with these weights."""

    @property
    def promise(self) -> float:
        """Seconds that a simulation is expected to say."""
        return self.about * self.slower / self.weight

    def learn(self, simulated: Choice, slower: float, layers: int) -> None:
        """A simulation, of a model of so many layers, was slower than the arithmetic."""
        here = self.choice
        apart = abs(here.pulled - simulated.pulled) + abs(here.kept - simulated.kept)
        weight = exp(-NEAR * apart / layers - (here.stash != simulated.stash))
        self.slower += weight * slower
        self.weight += weight


class QuickSearch(Search):
    """One spec's quick search."""

    steps = QUICK_STEPS

    def __init__(
        self,
        spec: RunSpec,
        profile: Profile,
        budgets: Budgets,
        cache: EvaluationCache | None = None,
        *,
        before: Before | None = None,
        afresh: bool = False,
    ) -> None:
        """Simulations that `cache` knows already are not counted, unless `afresh`: the answer is
        then the same whatever was asked before."""
        super().__init__(spec, profile, budgets, cache)
        self.before = before
        self._loads = Loads(spec, profile)
        actions = self.layers * (4 + 3 * spec.microbatches)  # about
        self.simulations = max(3 + WINDOW_TRIALS, WORK // actions)
        """As many at the most."""
        self._limit = self.simulations
        self._free = frozenset() if afresh else self.cache.known(self.steps)
        self._counted: dict[Choice, int] = {}
        """Choice -> its number in the order of simulations."""
        self._slopes = {stash: self._slope(stash) for stash in self._stashes()}
        self._best: Trial | None = None
        self._estimates: dict[Choice, EstimatedChoice] = {}
        """A choice without its resident layers -> its estimate."""
        self._seen: dict[Choice, float] = {}
        """Simulated choices, and how much slower they are than the arithmetic says."""

    def run(self) -> Choice:
        """The last of `choices`."""
        return [*self.choices()][-1]

    def choices(self) -> Iterator[Choice]:
        """The best start, and then the best there is time for; where nothing fits, what lacks
        least, and no more."""
        self._best, self._limit = None, self.simulations
        self._estimates, self._seen = {}, {}
        self._far_and_wide()
        if self.before is not None:
            self._simulate(self._settled(self._as_before(self.before)))
        for stash in self._stashes():
            if (estimate := self._promising((stash,))) is not None:
                self._simulate(estimate.choice)
        if self._best is None or self._best.lacking:
            self._limit += len(self._stashes())
            self._best = self._least()
        yield self._best.choice
        if self._best.lacking:
            return
        with suppress(Enough):
            self._limit = self.simulations - WINDOW_TRIALS
            self._improve()
        with suppress(Enough):
            self._limit = self.simulations
            self._widen()
            self._improve()
        yield self._best.choice

    # -- where to look -----------------------------------------------------------------------------

    def _as_before(self, before: Before) -> Choice:
        past, start, scale = before.choice, self._start(), self.layers / before.layers
        return replace(
            start,
            pulled=round(past.pulled * scale) if self.axes["pulled"] else start.pulled,
            kept=round(past.kept * scale) if self.axes["kept"] else start.kept,
            stash=past.stash if past.stash in self._stashes() else start.stash,
            window=min(past.window, self.layers) if self.asked.window == "auto" else start.window,
        )

    def _far_and_wide(self) -> None:
        start = self._start()
        steps = [*range(0, self.layers, -(-self.layers // GRID)), self.layers]
        pulled = steps if self.axes["pulled"] else [start.pulled]
        kept = steps if self.axes["kept"] else [start.kept]
        for stash in self._stashes():
            corner = self._settled(replace(start, stash=stash))
            self._around(corner, ((p, k) for p in pulled for k in kept))

    def _close_by(self, best: Choice) -> None:
        self._around(
            best,
            (
                (best.pulled + pulled * stride, best.kept + kept * stride)
                for stride in STRIDES
                for pulled, kept in ALONG + ACROSS
                if (not pulled or self.axes["pulled"]) and (not kept or self.axes["kept"])
            ),
        )

    def _around(self, known: Choice, numbers: Iterable[tuple[int, int]]) -> None:
        """Places with these numbers of pulled and kept layers; the device memory that they leave,
        as it follows from a known choice, is given to resident layers."""
        slope, plain = self._slopes[known.stash], self._settled(self._start())
        room = self.budgets.device - self._device_bytes(known)
        for pulled, kept in numbers:
            if not (0 <= pulled <= self.layers and 0 <= kept <= self.layers):
                continue
            used = (pulled - known.pulled) * slope["pulled"] + (kept - known.kept) * slope["kept"]
            count = known.resident
            if self.asked.resident == "auto":
                count += int((room - used) // slope["resident"])
            there = replace(
                known, pulled=pulled, kept=kept, on_disk=plain.on_disk, eager=plain.eager
            )
            if count >= 0:
                self._add(replace(there, resident=min(count, self._most_resident(there))))

    def _most_resident(self, choice: Choice) -> int:
        most = self.layers if self.asked.window == "auto" else choice.window
        return min(most, self.layers - choice.pulled)

    def _slope(self, stash: bool) -> dict[str, float]:
        """Bytes of device memory that one layer more of each kind takes, about."""
        none = replace(self._start(), pulled=0, kept=0, stash=stash)
        half, least = max(1, self.layers // 2), self._device_bytes(none)
        return {
            kind: (self._device_bytes(replace(none, **{kind: half})) - least) / half
            for kind in ("resident", "pulled", "kept")
        }

    def _add(self, choice: Choice, *, exact: bool = False) -> None:
        """Estimate the choice, unless it is estimated or simulated already, or the host has no room
        for it."""
        key = _key(choice)
        roomy = self._roomy(choice)
        if key in self._estimates or roomy is None or roomy in self._seen:
            return
        estimate = self._estimates[key] = EstimatedChoice(
            choice=roomy, exact=exact, about=self._about(roomy)
        )
        for simulated, slower in self._seen.items():
            estimate.learn(simulated, slower, self.layers)

    def _roomy(self, choice: Choice) -> Choice | None:
        """The choice with what the host needs room for, as `_placed` will find it."""
        over = self._loads.host_bytes(choice) - self.budgets.host
        if over > 0 and self.spec.clip is None and choice.eager == "some":
            return self._roomy(replace(choice, eager="all"))
        if over > 0 and (more := self._spilled(choice, over)) != choice:
            return more
        return choice if over <= 0 else None

    def _about(self, choice: Choice) -> float:
        return objective(self.spec, *self._loads.step_seconds(choice))

    # -- what to simulate --------------------------------------------------------------------------

    def _promising(self, stashes: tuple[bool, ...]) -> EstimatedChoice | None:
        """The estimate that promises most, made exact, among choices with these `stash`
        settings."""
        while here := [
            estimate for estimate in self._estimates.values() if estimate.choice.stash in stashes
        ]:
            estimate = min(here, key=lambda estimate: estimate.promise)
            if estimate.exact:
                return estimate
            del self._estimates[_key(estimate.choice)]
            if (choice := self._fitted(estimate.choice)) is not None:
                self._add(choice, exact=True)
        return None

    def _fitted(self, choice: Choice) -> Choice | None:
        """The choice with as many resident layers as fit, and as many kept ones as fit beside
        them."""
        if self.asked.resident == "auto":
            choice = self._adjusted(choice, "resident", 0, self._most_resident(choice))
        elif self._device_bytes(choice) > self.budgets.device:
            return None
        if choice is None or not self.axes["kept"]:
            return choice
        return self._adjusted(choice, "kept", choice.kept, self.layers)

    def _adjusted(self, choice: Choice, kind: str, least: int, most: int) -> Choice | None:
        """The choice with as many layers of a kind as fit, found from a number that is about right;
        None where not even the least number fits."""
        fits, beyond = least - 1, most + 1
        # A layer of a user's module may keep nothing beside its input.
        count, slope = getattr(choice, kind), max(1, self._slopes[choice.stash][kind])
        while beyond - fits > 1:
            count = min(max(count, fits + 1), beyond - 1)
            over = self._device_bytes(replace(choice, **{kind: count})) - self.budgets.device
            if over <= 0:
                fits, count = count, count + max(1, int(-over // slope))
            else:
                beyond, count = count, count - max(1, ceil(over / slope))
        return replace(choice, **{kind: fits}) if fits >= least else None

    def _simulate(self, choice: Choice) -> None:
        self._estimates.pop(_key(choice), None)
        if choice not in self.tried:
            self.tried[choice] = self._tried(choice)
        trial = self.tried[choice]
        if self._best is None or trial.rank < self._best.rank:
            self._best = trial
        if trial.choice not in self._seen:
            slower = self._seen[trial.choice] = trial.seconds / self._about(trial.choice)
            for estimate in self._estimates.values():
                estimate.learn(trial.choice, slower, self.layers)

    def _improve(self) -> None:
        """Simulate what promises most, as long as it promises anything."""
        around = None
        while True:
            if self._best is not around:
                around = self._best
                self._close_by(around.choice)
            estimate = self._promising(self._stashes())
            if estimate is None or estimate.promise > WORTH * self._best.seconds:
                return
            self._simulate(estimate.choice)

    def _widen(self) -> None:
        """Other windows for the best choice."""
        past = () if self.before is None else (self.before.choice.window,)
        for window in dict.fromkeys((*past, *WINDOWS)):
            best = self._best.choice
            streamed = self.layers - best.resident - best.pulled
            if self.asked.window != "auto" or window > self.layers or not streamed:
                continue
            there = self._fitted(replace(best, window=window))
            if there is not None and self._about(there) < WIDER * self._best.seconds:
                self._simulate(there)

    def _tried(self, choice: Choice) -> Trial:
        if choice not in self._free:
            number = self._counted.get(choice, len(self._counted))
            if number >= self._limit:
                raise Enough
            self._counted[choice] = number
        return super()._tried(choice)


def _key(choice: Choice) -> Choice:
    """The choice without what follows from the rest."""
    return replace(choice, resident=0, on_disk=0, eager="")
