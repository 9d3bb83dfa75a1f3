"""The search for the fastest choice that fits: arithmetic bounds many, simulation compares few.

Three things are counted in layers and share the device's memory: resident, pulled and kept ones.
Arithmetic (loads.py) says of a few hundred choices how fast they can be at the best, and those are
simulated that promise most:

* first of a grid over the numbers of pulled and kept layers, without and with stashed inputs; as
  many layers are resident as a straight line says that the device has room for;
* what was chosen for the question before, in proportion where the depth has changed;
* a simulation that is slower than the arithmetic says is a witness for choices near it, the less
  the further they are, so that what disappoints is left alone with all that is like it;
* around the best choice the grid is finer, down to single layers;
* wider windows pay where the link is slow and nothing is clipped.

After a fifth of a second that is a good answer (`Search.soon`). The full search (`Search.run`) goes
on from there, and simulates all that may still be as fast, to the layer: also updates that wait for
the norm of all gradients, and fewer layers of a kind than there is room for.

Every choice that is compared is simulated, and known to fit: on the device by memory.py, elsewhere
by the sum of what could ever be there, or where that is too much by the proof (schedule/peak.py).
What is left to the planner, for the chosen one alone: the proof of all tiers, the rules of
schedule/validate.py that concern order, which hold for every layout of one program builder, and
more steps than it takes to tell two choices apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import exp

from workbench.core.spec import RunSpec
from workbench.methods.stronghold.choice import Choice
from workbench.methods.stronghold.loads import Loads
from workbench.methods.stronghold.space import EarlierChoice, SearchSpace

EQUAL = 1e-4
"""A smaller window is preferred when it costs no more than this share of the step time."""
FEW_ACTIONS, MOST_ACTIONS = 5_000, 400_000
"""Actions of all schedules that are simulated for an answer soon, and at the most; what a
simulation takes grows with them."""
WINDOW_TRIALS = 2
"""Simulations for an answer soon that are kept back for windows."""
WINDOWS = (2, 8, 4, 16)
"""Windows that are tried for an answer soon."""
WIDER = 0.99
"""They are tried where arithmetic promises a shorter step than the best by this factor."""
GRID = 16
"""Strides of the grid along either number."""
STRIDES = (1, 2, 4)
"""Strides of the finer grids around the best choice."""
NEAR = 16
"""A simulation is a witness for choices that differ from it by about one layer in so many."""
UNLIKE = ("stash", "eager", "moments_later")
"""Settings of which each makes choices about as different as that."""
DOUBT = 0.3
"""Weight of arithmetic against a simulation of just that choice."""
WORTH, LONG_WORTH = 1.03, 1.05
"""A choice that promises to be slower than the best by more than this factor is not simulated: for
an answer soon, and for the best."""


class Enough(Exception):
    """A search has tried all that it may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A choice with its proved memory and its predicted time."""

    choice: Choice
    lacking: int
    """Bytes by which it exceeds the budgets, of all tiers together."""
    seconds: float
    """Seconds that the search makes small (`objective`)."""

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better: what fits, and is fast; where nothing fits, what lacks least."""
        return self.lacking, self.seconds


@dataclass(kw_only=True, slots=True)
class Estimate:
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
        unlike = sum(getattr(here, kind) != getattr(simulated, kind) for kind in UNLIKE)
        weight = exp(-NEAR * apart / layers - unlike)
        self.slower += weight * slower
        self.weight += weight


def objective(spec: RunSpec, stands: float, clips: float | None) -> float:
    """Seconds to make small: the mean of a step whose gradients are not clipped and one whose are,
    unless there is no difference or the user is sure.
    """
    sure = spec.options.clipping == "speculate"
    return stands if clips is None or sure else (stands + clips) / 2


class Search:
    """One spec's search. It begins anew each time, and what it has simulated is in the cache, so
    that a search that was interrupted is soon where it was."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        before: EarlierChoice | None = None,
        known: frozenset[Choice] = frozenset(),
    ) -> None:
        """Simulations that are `known` already are not counted. `before` is the choice for another
        question: one like it is tried among the first."""
        self.space, self.before, self._known = space, before, known
        self.layers = space.layers
        actions = self.layers * (4 + 3 * space.spec.microbatches)  # about
        self.few = max(3 + WINDOW_TRIALS, FEW_ACTIONS // actions)
        self.most = max(self.few, MOST_ACTIONS // actions)
        """Simulations for an answer soon, and at the most."""
        self._loads = Loads(space.spec, space.profile)
        self._begin()

    def _begin(self) -> None:
        self._limit = self.few
        self.tried: dict[Choice, Trial] = {}
        self._best: Trial | None = None
        self._estimates: dict[Choice, Estimate] = {}
        self._slower: dict[Choice, float] = {}
        """Simulated choices, and how much slower they are than the arithmetic says."""

    def soon(self) -> Iterator[Choice]:
        """The best start, and then the best there is time for; where nothing fits, what lacks
        least, and no more."""
        self._begin()
        self._far_and_wide()
        if self.before is not None:
            self._simulate(self.space.as_before(self.before))
        for stash in self.space.stashes:
            if (estimate := self._promising((stash,))) is not None:
                self._simulate(estimate.choice)
        if self._best is None or self._best.lacking:
            self._limit += len(self.space.stashes)
            for choice in self.space.smallest():
                self._simulate(choice)
        yield self._best.choice
        if self._best.lacking:
            return
        with suppress(Enough):
            self._limit = self.few - WINDOW_TRIALS
            for later in self.space.later:
                self._simulate(replace(self._best.choice, moments_later=later))
            self._improve(WORTH)
        with suppress(Enough):
            self._limit = self.few
            past = () if self.before is None else (self.before.choice.window,)
            self._widen((*past, *WINDOWS), WIDER)
            self._improve(WORTH)
        yield self._best.choice

    def run(self) -> Choice:
        """The fastest choice within the budgets, with the smallest window where times are equal;
        where nothing fits, what lacks least."""
        *_, choice = self.soon()
        if self._best.lacking:
            return choice
        with suppress(Enough):
            self._limit, before = self.most, []
            while before != (leaders := self._leaders()):
                before = leaders
                for trial in leaders:
                    self._close_by(trial.choice)
                self._improve(LONG_WORTH)
                self._widen(self.space.windows(), LONG_WORTH)
        limit = self._best.lacking, self._best.seconds * (1 + EQUAL)
        equal = [trial for trial in self.tried.values() if trial.rank <= limit]
        return min(equal, key=lambda one: (one.choice.window, one.choice.stash, one.rank)).choice

    def _leaders(self) -> list[Trial]:
        """The best trial, and the best with another window."""
        best = self._best
        others = [one for one in self.tried.values() if one.choice.window != best.choice.window]
        return [best, *sorted(others, key=lambda one: one.rank)[:1]]

    # -- where to look -----------------------------------------------------------------------------

    def _far_and_wide(self) -> None:
        """Estimate a grid over the numbers of pulled and kept layers."""
        start = self.space.start()
        steps = [*range(0, self.layers, -(-self.layers // GRID)), self.layers]
        pulled = steps if self.space.axes["pulled"] else [start.pulled]
        kept = steps if self.space.axes["kept"] else [start.kept]
        for corner in self.space.smallest():
            grid = (replace(corner, pulled=p, kept=k) for p, k in product(pulled, kept))
            self._around(corner, grid)

    def _around(self, known: Choice, choices: Iterable[Choice]) -> None:
        """Estimate choices of other numbers of pulled and kept layers than a known one; the device
        memory that they leave, as it follows from that one, is given to resident layers."""
        slope, start = self.space.slopes[known.stash], self.space.start()
        room = self.space.budgets.device - self.space.cache.device_bytes(known)
        for there in choices:
            used = (there.pulled - known.pulled) * slope["pulled"]
            used += (there.kept - known.kept) * slope["kept"]
            count = known.resident
            if self.space.axes["resident"]:
                count += int((room - used) // slope["resident"])
            if count >= 0:
                count = min(count, self.space.most_resident(there))
                self._add(replace(there, resident=count, on_disk=start.on_disk, eager=start.eager))

    def _close_by(self, best: Choice) -> None:
        """Estimate, to the layer, choices near the best: the room that pulled and kept layers leave
        is given to resident ones, and that of resident and pulled ones to kept ones; with stashed
        inputs or without, with updates that wait for the norm or do not, and with moments that
        follow weights or do not."""
        space, on_disk = self.space, self.space.start().on_disk
        strides = [1 << power for power in range(self.layers.bit_length())]
        for eager, stash, later in product(space.eager, space.stashes, space.later):
            like = replace(best, stash=stash, eager=eager, moments_later=later, on_disk=on_disk)
            found = [*map(space.with_residents, space.moved(like, ("pulled", "kept"), strides))]
            for there in space.moved(like, ("resident", "pulled"), strides):
                if space.axes["kept"] and there.resident <= space.most_resident(there):
                    found.append(space.most(there, "kept", 0, self.layers))
            for choice in found:
                if choice is not None:
                    self._add(choice, exact=True)

    def _add(self, choice: Choice, *, exact: bool = False) -> None:
        """Estimate the choice, unless it is estimated or simulated already, or the host has no room
        for it."""
        while (over := self._loads.host_bytes(choice) - self.space.budgets.host) > 0:
            roomier = self.space.roomier(choice, over)
            if roomier == choice:
                return
            choice = roomier
        if choice in self._estimates or choice in self._slower:
            return
        estimate = Estimate(choice=choice, exact=exact, about=self._about(choice))
        for simulated, slower in self._slower.items():
            estimate.learn(simulated, slower, self.layers)
        self._estimates[choice] = estimate

    def _about(self, choice: Choice) -> float:
        known = self.space.cache.estimated
        if choice not in known:
            known[choice] = objective(self.space.spec, *self._loads.step_seconds(choice))
        return known[choice]

    # -- what to simulate --------------------------------------------------------------------------

    def _promising(self, stashes: tuple[bool, ...]) -> Estimate | None:
        """The estimate that promises most, made exact, among choices with these `stash`
        settings."""
        while here := [one for one in self._estimates.values() if one.choice.stash in stashes]:
            estimate = min(here, key=lambda one: one.promise)
            if estimate.exact:
                return estimate
            del self._estimates[estimate.choice]
            if (choice := self.space.fitted(estimate.choice)) is not None:
                self._add(choice, exact=True)
        return None

    def _improve(self, worth: float) -> None:
        """Simulate what promises most, as long as it may be slower than the best by no more than a
        factor."""
        around = None
        while True:
            if self._best is not around:
                around = self._best
                near = self.space.moved(around.choice, ("pulled", "kept"), STRIDES)
                self._around(around.choice, near)
            estimate = self._promising(self.space.stashes)
            if estimate is None or estimate.promise > worth * self._best.seconds:
                return
            self._simulate(estimate.choice)

    def _widen(self, windows: Iterable[int], factor: float) -> None:
        """Simulate the best choice with other windows, where arithmetic promises a step shorter by
        a factor."""
        for window in dict.fromkeys(windows):
            best = self._best.choice
            streamed = self.layers - best.resident - best.pulled
            if self.space.asked.window != "auto" or window > self.layers or not streamed:
                continue
            there = self.space.fitted(replace(best, window=window))
            if there is not None and self._about(there) < factor * self._best.seconds:
                self._simulate(there)

    def _simulate(self, choice: Choice) -> None:
        self._estimates.pop(choice, None)
        if choice not in self.tried:
            if len(self.tried.keys() - self._known) >= self._limit:
                raise Enough
            placed, lacking = self.space.placed(choice)
            seconds = objective(self.space.spec, *self.space.cache.step_seconds(placed))
            self.tried[choice] = Trial(choice=placed, lacking=lacking, seconds=seconds)
        trial = self.tried[choice]
        if self._best is None or trial.rank < self._best.rank:
            self._best = trial
        if trial.choice not in self._slower:
            slower = self._slower[trial.choice] = trial.seconds / self._about(trial.choice)
            for estimate in self._estimates.values():
                estimate.learn(trial.choice, slower, self.layers)
