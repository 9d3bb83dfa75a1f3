"""A good choice in a fifth of a second, for a question that somebody is still turning.

The full search (search.py) walks down from far away. Here the starts are close, and the number of
simulations is limited:

* the choice of the question before, in proportion where the depth has changed;
* without and with stashed inputs, as many pulled layers as make the link as busy as the host, and
  as many kept ones as make them as busy as compute: what each does is a straight line in these
  numbers, so finding them takes no simulation;
* a walk with a stride of a few layers from the best start of each kind (stashed or not, pulled
  layers or none), and smaller strides from the best of these walks;
* last some other windows: wide ones pay where the link is slow and nothing is clipped.

What it finds is simulated and known to fit, like all that the full search compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from workbench.methods.evaluate import Budgets
from workbench.methods.stronghold.choice import Choice
from workbench.methods.stronghold.search import ACROSS, ALONG, FINE, Search, Trial
from workbench.methods.stronghold.trials import Trials
from workbench.profile.profile import Profile, all_at_once
from workbench.runs.spec import RunSpec
from workbench.schedule.action import D2H, H2D, HOST

WORK = 10_000
"""Actions of all schedules that are simulated: what a simulation takes grows with them."""
WINDOW_TRIALS = 3
"""Simulations kept back for windows."""
WINDOWS = (2, 8, 16, 4)
STRIDE = 4
"""Of the first walks."""
PROMISING = 0.97
"""A start that keeps activations is tried where what is busiest would be busy for less of the time
than this share."""
WORTH = 1.04
"""A start that is slower than the best one by more than this factor is not walked from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What was chosen for an earlier question."""

    choice: Choice
    layers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Loads:
    """Seconds a step in which something works, where the three of host memory slow each other."""

    compute: float
    host: float
    link: float
    """Its busier way."""


class Enough(Exception):
    """All simulations are used up."""


class QuickSearch(Search):
    """One spec's quick search."""

    def __init__(
        self,
        spec: RunSpec,
        profile: Profile,
        budgets: Budgets,
        trials: Trials | None = None,
        *,
        before: Before | None = None,
    ) -> None:
        """Simulations that `trials` knows already are not counted."""
        super().__init__(spec, profile, budgets, trials)
        self.before = before
        actions = self.layers * (4 + 3 * spec.microbatches)  # about
        self.simulations = max(WINDOW_TRIALS, WORK // actions)
        """As many at the most."""
        self._limit, self._free = self.simulations, self.trials.known()
        self._counted: dict[Choice, int] = {}
        """Choice -> its place in the order of simulations."""
        self._best: Trial | None = None

    def run(self) -> Choice:
        """The last of `choices`."""
        return [*self.choices()][-1]

    def choices(self) -> Iterator[Choice]:
        """The best start, and then the best there is time for; where nothing fits, what lacks
        least, and no more."""
        self._best, self._limit = None, self.simulations
        starts = [self._trial(choice, fill) for choice, fill in self._starts()]
        if self._best.lacking:
            starts.append(self._least())
        yield self._best.choice
        if self._best.lacking:
            return
        self._limit = self.simulations - WINDOW_TRIALS
        self._while_there_is_time(lambda: self._walks(starts))
        self._limit = self.simulations
        self._while_there_is_time(self._other_windows)
        yield self._best.choice

    def _while_there_is_time(self, work: Callable[[], None]) -> None:
        with suppress(Enough):
            work()

    def _starts(self) -> list[tuple[Choice, tuple[str, ...]]]:
        """Choices to begin with, and what to give the room to that they leave."""
        start, starts = self._start(), []
        if self.before is not None:
            past, scale = self.before.choice, self.layers / self.before.layers
            asked = {
                "pulled": round(past.pulled * scale) if self.axes["pulled"] else start.pulled,
                "kept": round(past.kept * scale) if self.axes["kept"] else start.kept,
                "stash": past.stash if past.stash in self._stashes() else start.stash,
                "window": min(past.window, self.layers),
            }
            if self.spec.window != "auto":
                asked["window"] = start.window
            starts.append((replace(start, **asked), ()))
        balanced = [self._balanced(replace(start, stash=stash)) for stash in self._stashes()]
        starts += [(choice, ("kept",)) for choice in balanced]
        keeping = min(map(self._keeping, balanced), key=self._busiest)
        if self._busiest(keeping) < PROMISING * min(map(self._busiest, balanced)):
            starts.append((keeping, ()))
        return starts

    def _balanced(self, choice: Choice) -> Choice:
        """The choice with pulled layers while the host has more to do than the link."""
        choice = self._settled(choice)
        if not self.axes["pulled"]:
            return choice
        return self._more(choice, "pulled", lambda at: at.host > at.link)

    def _keeping(self, choice: Choice) -> Choice:
        """The choice with kept layers while compute has more to do than the host and the link."""
        if not self.axes["kept"]:
            return choice
        return self._more(choice, "kept", lambda at: at.compute > max(at.host, at.link))

    def _busiest(self, choice: Choice) -> float:
        loads = self._loads(choice)
        return max(loads.compute, loads.host, loads.link)

    def _more(self, choice: Choice, kind: str, wanted: Callable[[Loads], bool]) -> Choice:
        """The choice with as many layers of a kind as fit and are wanted."""
        low, high = getattr(choice, kind), self.layers + 1
        if not wanted(self._loads(choice)):
            return choice
        while high - low > 1:
            middle = (low + high) // 2
            there = self._settled(replace(choice, **{kind: middle}))
            fits = self._device_bytes(there) <= self.budgets.device
            if fits and there.resident + there.pulled < self.layers and wanted(self._loads(there)):
                low, choice = middle, there
            else:
                high = middle
        return choice

    def _loads(self, choice: Choice) -> Loads:
        profile, hardware, spec = self.profile, self.profile.hardware, self.spec
        _, block, *_, head = profile.units
        slower = {lane: hardware.slowdowns.get(all_at_once(lane), 1.0) for lane in (HOST, H2D, D2H)}
        weights = block.parameters * profile.weight_bytes
        streamed = self.layers - choice.resident - choice.pulled
        visits = choice.pulled * block.parameters * profile.state_bytes
        recomputed = self.layers - choice.kept
        stashed = recomputed * spec.microbatches * block.input_bytes if choice.stash else 0
        there = visits + stashed + (2 * streamed - min(choice.window, streamed)) * weights
        back = visits + stashed + streamed * weights
        passes = self.layers * (block.recompute_s + block.backward_s) + recomputed * block.forward_s
        return Loads(
            compute=(passes + head.recompute_s + head.backward_s) * spec.microbatches,
            host=streamed * block.parameters / hardware.host_adam_params_per_s
            / spec.host_workers * slower[HOST],
            link=max(
                there / hardware.h2d_bytes_per_s * slower[H2D],
                back / hardware.d2h_bytes_per_s * slower[D2H],
            ),
        )  # fmt: skip

    def _walks(self, starts: list[Trial]) -> None:
        """From the best start of each kind, and on from where the best of these walks ends."""
        kinds: dict[tuple[bool, bool], Trial] = {}
        for trial in sorted(starts, key=lambda trial: trial.rank):
            kinds.setdefault((trial.choice.stash, trial.choice.pulled > 0), trial)
        limit = 0, self._best.seconds * WORTH
        for trial in kinds.values():
            if trial.rank <= limit:
                self._down(trial, STRIDE)
        best = self._best
        for stride in (FINE, 1):
            best = self._down(best, stride)

    def _down(self, best: Trial, stride: int) -> Trial:
        """Down the valley with one stride, the room that is left given to nobody."""
        before = None
        while best is not before:
            before = best
            for pulled, kept in ALONG if stride > FINE else ALONG + ACROSS:
                best = self._run(best, pulled * stride, kept * stride, ())
        return best

    def _other_windows(self) -> None:
        past = () if self.before is None else (self.before.choice.window,)
        for window in dict.fromkeys((*past, *WINDOWS)):
            best = self._best.choice
            streamed = self.layers - best.resident - best.pulled
            if self.spec.window == "auto" and best.window != window <= self.layers and streamed:
                self._trial(replace(best, window=window), ("kept",))

    def _trial(self, choice: Choice, fill: tuple[str, ...]) -> Trial:
        trial = super()._trial(choice, fill)
        if self._best is None or trial.rank < self._best.rank:
            self._best = trial
        return trial

    def _tried(self, choice: Choice) -> Trial:
        if choice not in self._free:
            place = self._counted.get(choice, len(self._counted))
            if place >= self._limit:
                raise Enough
            self._counted[choice] = place
        return super()._tried(choice)
