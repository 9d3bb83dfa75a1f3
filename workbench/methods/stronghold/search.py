"""The search for the fastest choice that fits.

Three things are counted in layers and share the device's memory: resident, pulled and kept ones.
Two of them are searched, and the first follows: as many layers are resident as the others leave
room for. The step time is close to the largest of a few straight lines (compute, the host, either
way of the link), which has one valley; whole layers make steps in it, of up to the time that one
layer takes. So the search

* compares only choices that leave no room: what is left when no further layer can be resident is
  given to pulled layers, and then to kept ones, which takes most of the steps away;
* walks down the valley with strides that halve, from a start with as many pulled layers as fit and
  from one with none, first without and then with stashed inputs;
* ends with small strides in all directions, where room is given to kept layers only: a link that is
  busy has no use for pulled ones;
* widens the window as long as that helps;
* asks at last whether updates had better wait for the norm of all gradients, and whether fewer
  layers had better stay than could: what is best with less memory is possible with more.

Every choice that is compared is simulated, and known to fit: on the device by memory.py, elsewhere
by the sum of what could ever be there, or where that is too much by the proof (schedule/peak.py).
What is left to the planner, for the chosen one alone: the proof of all tiers, the rules of
schedule/validate.py that concern order, which hold for every layout of one program builder, and
more steps than it takes to tell two choices apart.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from workbench.core.spec import RunSpec
from workbench.methods.stronghold.choice import Choice
from workbench.methods.stronghold.evaluation_cache import STEPS, EvaluationCache
from workbench.methods.stronghold.options import Options
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile
from workbench.schedule.schedule import DISK, HOST_TIER

EQUAL = 1e-4
"""A smaller window is preferred when it costs no more than this share of the step time."""
MOST_ACTIONS, FEWEST = 400_000, 4
"""Actions of all schedules that one search tries, some ten seconds' worth, and schedules that it
tries at least; the best so far is the answer then. A model of 300 layers takes fewer."""
FIRST_WINDOW = 2
"""The window with which the other choices are made, before windows are compared: the smallest, for
what fits with any fits with it."""
STRAIGHT_TRIES = 6
FINE = 2
"""The stride from which on the search looks in all directions."""
ALONG = ((1, 0), (0, 1), (-1, 0), (0, -1))
ACROSS = ((1, -1), (-1, 1), (1, 1), (-1, -1))
"""Directions of a step, in (pulled, kept) layers."""


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


def objective(spec: RunSpec, stands: float, clips: float | None) -> float:
    """Seconds to make small: the mean of a step whose gradients are not clipped and one whose are,
    unless there is no difference or the user is sure.
    """
    sure = spec.options.clipping == "speculate"
    return stands if clips is None or sure else (stands + clips) / 2


class Search:
    """One spec's search. It remembers what it has tried, so that one which was interrupted can be
    run again and is soon where it was."""

    steps = STEPS
    """Steps of a simulation."""

    def __init__(
        self,
        spec: RunSpec,
        profile: Profile,
        budgets: Budgets,
        cache: EvaluationCache | None = None,
    ) -> None:
        """`cache` is the one of an earlier question that differed in nothing but its budgets."""
        self.spec, self.profile, self.budgets = spec, profile, budgets
        self.asked: Options = spec.options
        asked = self.asked
        self.layers = spec.model.layers
        self.cache = EvaluationCache(spec, profile) if cache is None else cache
        self.axes = {
            "pulled": {asked.resident, asked.window, asked.pulled} == {"auto"},
            "kept": spec.activations == "auto" and asked.kept == "auto",
        }
        """Axes of the search, besides the resident layers."""
        actions = self.layers * (4 + 3 * spec.microbatches)  # about
        self._tries = max(FEWEST, MOST_ACTIONS // actions)
        self.tried: dict[Choice, Trial] = {}
        self._asked: dict[tuple[Choice, tuple[str, ...]], Trial] = {}

    def run(self, start: Choice | None = None) -> Choice:
        """The fastest choice within the budgets, with the smallest window where times are equal;
        where nothing fits, what lacks least. `start` is one that a quicker search found.
        """
        if (least := self._least()).lacking:
            return least.choice
        with suppress(Enough):
            return self._searched(start).choice
        return min(self.tried.values(), key=lambda trial: trial.rank).choice

    def _searched(self, start: Choice | None) -> Trial:
        best = self._trial(self._start(), fill=("pulled", "kept"))
        if start is not None:
            start = replace(start, window=self._start().window)
            best = min(best, self._exact(start), key=lambda trial: trial.rank)
        for stash in self._stashes():
            # Visits may pay only from some number on: there is a valley on either side.
            for choice, fill in ((best.choice, ("pulled", "kept")), (self._start(), ("kept",))):
                start = self._trial(replace(choice, stash=stash), fill)
                found = self._walk(start, self.layers // 4, least=FINE, fill=fill)
                best = min(best, found, key=lambda trial: trial.rank)
        best = self._walk(best, FINE, least=1, fill=("kept",))
        best = self._walk(best, self.layers // 8, least=1, fill=())
        if self.asked.window == "auto":
            best = self._widened(best)
        return self._fewer(self._patient(best))

    def _patient(self, best: Trial) -> Trial:
        """Where no layer is updated before the norm is known, none is ever updated twice: the
        better of that and the best so far, if the choice is the planner's."""
        if self.spec.clip is None or self.asked.clipping != "auto":
            return best
        waiting = self._trial(replace(best.choice, eager="none"), fill=())
        waiting = self._walk(waiting, FINE, least=1, fill=("kept",))
        return min(best, waiting, key=lambda trial: trial.rank)

    def _fewer(self, best: Trial) -> Trial:
        """Fewer residents than there is room for, which is what less memory would allow: updates of
        a layer that stays are compute's work."""
        stride = best.choice.resident if self.asked.resident == "auto" else 0
        while stride:
            fewer = replace(best.choice, resident=max(0, best.choice.resident - stride))
            trial = self._exact(fewer)
            if trial.rank < best.rank:
                best = trial
            else:
                stride //= 2
        return best

    def fits(self) -> bool:
        """Whether any choice is within the budgets; much quicker than the search."""
        return any(not self._placed(self._settled(choice))[1] for choice in self._smallest())

    def _least(self) -> Trial:
        """The choice with the smallest needs."""
        trials = (self._trial(choice, fill=()) for choice in self._smallest())
        return min(trials, key=lambda trial: trial.rank)

    def _smallest(self) -> list[Choice]:
        """Candidates for the smallest needs: nothing kept, and as many layers resident as fit, for
        what stays on the device the host need not hold."""
        return [replace(self._start(), stash=stash) for stash in self._stashes()]

    def _stashes(self) -> tuple[bool, ...]:
        return {"auto": (False, True), "host": (True,)}.get(self.spec.activations, (False,))

    def _start(self) -> Choice:
        spec, asked = self.spec, self.asked
        kept = {"keep": self.layers, "auto": 0 if asked.kept == "auto" else asked.kept}
        return Choice(
            window=min(FIRST_WINDOW if asked.window == "auto" else asked.window, self.layers),
            resident=0,
            pulled=0 if asked.pulled == "auto" else asked.pulled,
            kept=kept.get(spec.activations, 0),
            stash=spec.activations == "host",
        )

    def _eager(self) -> str:
        if self.spec.clip is not None:
            return "none" if self.asked.clipping == "wait" else "some"
        return "all" if self.asked.optimizer_tier == DISK else "some"

    def _walk(self, best: Trial, stride: int, *, least: int, fill: tuple[str, ...]) -> Trial:
        """Down the valley from a trial, with strides that halve, down to `least`."""
        while True:
            directions = ALONG if stride > FINE else ALONG + ACROSS
            before = None
            while best is not before:
                before = best
                for pulled, kept in directions:
                    best = self._run(best, pulled * stride, kept * stride, fill)
            if stride <= least:
                return best
            stride = max(least, stride // 2)

    def _run(self, best: Trial, pulled: int, kept: int, fill: tuple[str, ...]) -> Trial:
        """As far in one direction as it gets better."""
        if (pulled and not self.axes["pulled"]) or (kept and not self.axes["kept"]):
            return best
        while True:
            here = best.choice
            there = replace(
                here,
                pulled=min(max(here.pulled + pulled, 0), self.layers),
                kept=min(max(here.kept + kept, 0), self.layers),
            )
            trial = self._trial(there, fill) if there != here else best
            if trial.rank >= best.rank:
                break
            best = trial
        return best

    def _widened(self, best: Trial) -> Trial:
        """Wider windows, until two in a row were no better; the smallest where times are equal."""
        trials, worse = [best], 0
        for window in self._windows():
            if worse == 2 or best.choice.resident + best.choice.pulled == self.layers:
                break
            trial = self._trial(replace(best.choice, window=window), fill=("kept",))
            worse = 0 if trial.rank < min(other.rank for other in trials) else worse + 1
            trials.append(trial)
        least = min(trials, key=lambda trial: trial.rank)
        limit = least.lacking, least.seconds * (1 + EQUAL)
        return next(trial for trial in trials if trial.rank <= limit)

    def _windows(self) -> list[int]:
        """3, 4, 6, 8, 12, 16, ... and all layers."""
        grid = {start << power for start in (2, 3) for power in range(self.layers.bit_length())}
        return [*sorted(w for w in grid if FIRST_WINDOW < w < self.layers), self.layers]

    def _trial(self, choice: Choice, fill: tuple[str, ...]) -> Trial:
        """The choice with as many resident layers as asked for, or as fit (up to the window if that
        is given); then with more layers of the kinds in `fill`, as far as they fit beside those.
        """
        key = choice, fill
        if key not in self._asked:
            choice = self._settled(choice)
            for kind in fill:
                if self.axes[kind]:
                    choice = self._filled(choice, kind)
            self._asked[key] = self._exact(choice)
        return self._asked[key]

    def _exact(self, choice: Choice) -> Trial:
        """The choice as it is."""
        if choice not in self.tried:
            if len(self.tried) >= self._tries:
                raise Enough
            self.tried[choice] = self._tried(choice)
        return self.tried[choice]

    def _spilled(self, choice: Choice, nbytes: int) -> Choice:
        """The choice with more layers on the disk, where the planner may, so that the host needs so
        much less."""
        asked, block = self.asked, self.profile.units[1]
        may = asked.optimizer_tier == "auto" and asked.disk_layers == "auto"
        if not (may and self.spec.disk_memory):
            return choice
        more = -(-nbytes // (block.parameters * self.profile.state_bytes))
        streamed = self.layers - choice.resident - choice.pulled
        return replace(choice, on_disk=min(choice.on_disk + more, streamed))

    def _settled(self, choice: Choice) -> Choice:
        asked = self.asked
        pinned = self.layers if asked.optimizer_tier == DISK else asked.disk_layers
        eager = "none" if choice.eager == "none" else self._eager()
        choice = replace(choice, on_disk=0 if pinned == "auto" else pinned, eager=eager)
        if asked.resident != "auto":
            pulled = min(choice.pulled, self.layers - asked.resident)
            return replace(choice, resident=asked.resident, pulled=pulled)
        most = self.layers if asked.window == "auto" else min(choice.window, self.layers)
        choice = replace(choice, resident=0, pulled=min(choice.pulled, self.layers))
        most = min(most, self.layers - choice.pulled)
        return self._most(choice, "resident", most)

    def _filled(self, choice: Choice, kind: str) -> Choice:
        return self._most(choice, kind, self.layers - (choice.resident if kind == "pulled" else 0))

    def _most(self, choice: Choice, kind: str, most: int) -> Choice:
        """The choice with as many layers of a kind as fit, at least as many as it has.

        Each costs nearly the same, so the number is looked for where a straight line says, and in
        the middle should that take long.
        """

        def excess(count: int) -> int:
            return self._device_bytes(replace(choice, **{kind: count})) - self.budgets.device

        low, high = getattr(choice, kind), most
        if high <= low or (least := excess(low)) > 0:
            return choice
        if (beyond := excess(high)) <= 0:
            return replace(choice, **{kind: high})
        tries = 0
        while high - low > 1:
            place = least / (least - beyond) if tries < STRAIGHT_TRIES else 0.5
            count = min(max(low + int(place * (high - low)), low + 1), high - 1)
            if (found := excess(count)) <= 0:
                low, least = count, found
            else:
                high, beyond = count, found
            tries += 1
        return replace(choice, **{kind: low})

    def _device_bytes(self, choice: Choice) -> int:
        return self.cache.device_bytes(choice)

    def _tried(self, choice: Choice) -> Trial:
        choice, lacking = self._placed(choice)
        seconds = objective(self.spec, *self.cache.step_seconds(choice, self.steps))
        return Trial(choice=choice, lacking=lacking, seconds=seconds)

    def _placed(self, choice: Choice) -> tuple[Choice, int]:
        """The choice with more updates eager or more layers on the disk, where the host has no room
        and the planner may; and the bytes by which it exceeds the budgets."""
        lacking = self._lacking(choice)
        over = lacking.get(HOST_TIER, 0)
        if over > 0 and self.spec.clip is None and choice.eager == "some":
            return self._placed(replace(choice, eager="all"))
        if over > 0 and (more := self._spilled(choice, over)) != choice:
            return self._placed(more)
        return choice, sum(lacking.values())

    def _lacking(self, choice: Choice) -> dict[str, int]:
        """Tier -> bytes by which the choice exceeds its budget."""
        limits = self.budgets.to_dict()
        peaks = self.cache.peaks(choice, limits)
        return {t: peaks[t] - limit for t, limit in limits.items() if peaks[t] > limit}
