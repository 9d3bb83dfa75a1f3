"""STRONGHOLD (SC'22): what stays on the device, layer by layer.

The published system slides a window of W layers over the model and promises to find the smallest
device-resident share that hides all transfers (abstract; the inequalities of its section III are
not public in its artifact, which takes W from the command line). Here the choice is made by what
the schedule will do: every candidate is proved to fit and simulated, so the conditions that the
paper writes as inequalities (loads behind forward, loads and gradients behind backward, updates
before the next load, one serial link per direction) all hold or fail in the simulated timeline,
together.

What is chosen:

* ``window``: weight slots that slide over the streamed layers, 2 to n. A load runs window - 1
  layers ahead of compute.
* ``resident``: the first layers, whose weights and optimizer states never leave the device. They
  are the ones whose gradients come last and whose weights are needed first, so they shield the
  host updates of all others. With a given window they are as many as the window, as published;
  with ``auto`` as many as the device budget holds.
* ``pulled``: the layers after them, whose weights stay on the device while their states visit it to
  be updated: where the link has room, that is work the host need not do.
* ``kept``: the last layers, which keep their activations instead of recomputing them. Resident
  layers relieve the host, kept ones relieve compute, and both take device memory: the best split
  is where neither waits for the other. They are the last ones because their activations are gone
  when the gradients of the first layers, which take memory until the norm is known, appear.
* whether the inputs of the other layers wait for the backward pass on the host.
* which host updates are eager (methods/updates.py).

Unlike the published artifact: a slot is free once compute is done, parameters are ready once
updated (two promises, not one); clean weights are never written back; updates reach every
element, with one snapshot of the learning rate, and clipping is by the global norm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from workbench.methods.draft import Layout
from workbench.methods.evaluate import (
    STEPS,
    Budgets,
    Candidate,
    as_plan,
    evaluate,
    proved_peak,
)
from workbench.methods.plan import Plan
from workbench.methods.updates import eager_units
from workbench.profile.profile import Profile, ProfileCosts
from workbench.runs.spec import RunSpec
from workbench.schedule.schedule import DEVICE, HOST_TIER
from workbench.schedule.simulate import simulate

TOLERANCE = 0.01
"""A smaller window is preferred when it costs no more than this share of the step time."""
CLIPPED = "step_seconds_where_clipped"
FIRST_WINDOW = 2
"""The window with which the other choices are made, before windows are compared: the smallest, for
what fits with any fits with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the planner chose."""

    window: int
    resident: int
    pulled: int = 0
    kept: int = 0
    stash: bool = False
    eager: str = "some"
    """Which host updates run during the backward pass: ``some`` (what the host manages), ``all``
    (their gradients need little host memory then) or ``none``."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The fastest choice within the budgets; the smallest window where times are equal."""
    search = _Search(spec, profile)
    choice, best = search.run()
    return as_plan(
        best,
        search.budgets,
        method="stronghold",
        window=choice.window,
        resident=choice.resident,
        whole=choice.resident == spec.model.layers,
    )


def layout_of(spec: RunSpec, profile: Profile, choice: Choice) -> Layout:
    """The program of a choice."""
    layers, stay = spec.model.layers, choice.resident + choice.pulled
    streamed = list(range(stay + 1, layers + 1))
    kept = frozenset(range(layers + 1 - choice.kept, layers + 1))
    if choice.kept == layers:
        kept |= {0}
    eager: Iterable[int] = ()
    if choice.eager == "all":
        eager = streamed
    elif choice.eager == "some":
        eager = eager_units(profile, streamed, set(range(layers + 1)) - kept)
    return Layout(
        method=f"stronghold w{choice.window} r{choice.resident}"
        + (f" p{choice.pulled}" if choice.pulled else "")
        + (f" k{choice.kept}" if choice.kept else ""),
        resident=frozenset({0, layers + 1, *range(1, stay + 1)}),
        pulled=frozenset(range(choice.resident + 1, stay + 1)),
        slots=min(choice.window, len(streamed)),
        microbatches=spec.microbatches,
        kept=kept,
        stash=choice.stash,
        clipped=spec.clip is not None,
        eager=frozenset(eager),
        optimizer_tier=spec.optimizer_tier,
        host_workers=spec.host_workers,
    )


class _Search:
    """One spec's search; it remembers what it has evaluated."""

    def __init__(self, spec: RunSpec, profile: Profile) -> None:
        self.spec, self.profile = spec, profile
        self.budgets = Budgets.of(spec, profile, allocated=True)
        self.layers = spec.model.layers
        self._seen: dict[Choice, Candidate] = {}
        self._most: dict[Choice, int] = {}

    def run(self) -> tuple[Choice, Candidate]:
        """Activations first, with one window; then the window."""
        window = FIRST_WINDOW if self.spec.window == "auto" else self.spec.window
        start = Choice(
            window=min(window, self.layers),
            resident=0,
            pulled=0 if self.spec.pulled == "auto" else self.spec.pulled,
            eager=self._eager(),
        )
        inputs = {"auto": (False, True), "host": (True,)}.get(self.spec.activations, (False,))
        choice = self._best([self._best_kept(replace(start, stash=stash)) for stash in inputs])
        free = {self.spec.resident, self.spec.window, self.spec.pulled} == {"auto"}
        if free and self._lacking(choice) is None and choice.resident < self.layers:
            choice = self._valley(choice, "pulled")
            if choice.pulled and self._chooses_kept:
                choice = self._valley(choice, "kept")
        if self.spec.window == "auto":
            others = (replace(choice, window=window) for window in self._windows())
            choice = self._best([self._settled(other) for other in others])
        return choice, self._evaluate(choice)

    def _eager(self) -> str:
        clipped = self.spec.clip is not None
        if clipped and (self.spec.optimizer_tier == "disk" or self.spec.clipping == "wait"):
            return "none"
        return "all" if self.spec.optimizer_tier == "disk" else "some"

    def _windows(self) -> list[int]:
        """2, 3, 4, 6, 8, 12, 16, ... and all layers."""
        grid = {start << power for start in (2, 3) for power in range(self.layers.bit_length())}
        return [*sorted(w for w in grid if w < self.layers), self.layers]

    @property
    def _chooses_kept(self) -> bool:
        return self.spec.activations == "auto" and self.spec.kept == "auto"

    def _best_kept(self, start: Choice) -> Choice:
        """The number of layers that keep activations, and with it the resident ones."""
        spec = self.spec
        if self._chooses_kept:
            return self._valley(start, "kept")
        kept = {"keep": self.layers, "auto": spec.kept}.get(spec.activations, 0)
        return self._settled(replace(start, kept=kept))

    def _valley(self, start: Choice, name: str) -> Choice:
        """The best number of layers of a kind, each number with the resident layers it leaves room
        for.

        Few kept (or pulled) layers bring little, many take the room of resident ones: the step time
        has one valley, which a grid finds and halving strides follow down.
        """
        grid = sorted({0, 1, 2, *(self.layers * share // 8 for share in range(1, 9))})
        tried = [self._settled(replace(start, **{name: count})) for count in grid]
        best = self._best([start, *tried] if start in self._seen else tried)
        stride = max(1, self.layers // 16)
        while True:
            count = getattr(best, name)
            near = {max(0, count - stride), min(self.layers, count + stride)}
            tried = [self._settled(replace(best, **{name: other})) for other in near]
            best = self._best([best, *tried])
            if stride == 1:
                return best
            stride = max(1, stride // 2)

    def _settled(self, choice: Choice) -> Choice:
        """The choice with as many resident layers as asked for, or as fit (up to the window if that
        is given)."""
        spec = self.spec
        if spec.resident != "auto":
            pulled = min(choice.pulled, self.layers - spec.resident)
            choice = replace(choice, resident=spec.resident, pulled=pulled)
        else:
            most = self.layers if spec.window == "auto" else min(choice.window, self.layers)
            choice = replace(choice, pulled=min(choice.pulled, self.layers))
            most = min(most, self.layers - choice.pulled)
            choice = replace(choice, resident=self._most_resident(choice, most))
        if spec.clip is None and choice.eager == "some" and self._lacks_host(choice):
            return replace(choice, eager="all")
        return choice

    def _most_resident(self, choice: Choice, most: int) -> int:
        """As many as the device holds: each more costs it memory and relieves the host.

        Memory is nearly linear in their number, so the line through two of them points at the
        answer, and a step or two to either side finds it.
        """
        key = replace(choice, resident=0)
        if key not in self._most:
            self._most[key] = self._search_resident(key, most)
        return self._most[key]

    def _search_resident(self, choice: Choice, most: int) -> int:
        def peak(resident: int) -> int:
            layout = layout_of(self.spec, self.profile, replace(choice, resident=resident))
            return proved_peak(layout, self.profile)[DEVICE]

        budget, low, high = self.budgets.device, 0, most
        high_peak = peak(high)
        if high_peak <= budget:
            return high
        low_peak = peak(low)
        while low_peak <= budget and high - low > 1:
            slope = (high_peak - low_peak) / (high - low)
            guess = low + int((budget - low_peak) / slope) if slope > 0 else (low + high) // 2
            guess = min(max(guess, low + 1), high - 1)
            found = peak(guess)
            if found <= budget:
                low, low_peak = guess, found
            else:
                high, high_peak = guess, found
        return low

    def _lacking(self, choice: Choice) -> str | None:
        return self.budgets.lacking(self._evaluate(choice).peak)

    def _lacks_host(self, choice: Choice) -> bool:
        layout = layout_of(self.spec, self.profile, choice)
        return proved_peak(layout, self.profile)[HOST_TIER] > self.budgets.host

    def _evaluate(self, choice: Choice) -> Candidate:
        if choice not in self._seen:
            layout = layout_of(self.spec, self.profile, choice)
            settings = {
                "slots": layout.slots,
                "pulled_layers": choice.pulled,
                "kept_layers": choice.kept,
                "stashed_inputs": choice.stash,
                "eager_updates": len(layout.eager),
                "optimizer_tier": layout.optimizer_tier,
                "host_workers": layout.host_workers,
            }
            found = evaluate(layout, self.profile, self.budgets, settings)
            if layout.clipped and layout.eager:
                costs = ProfileCosts(self.profile, clips=True)
                fires = simulate(found.schedule, costs, steps=STEPS).step_seconds
                settings = {**settings, CLIPPED: fires}
                found = replace(found, schedule=replace(found.schedule, settings=settings))
            self._seen[choice] = found
        return self._seen[choice]

    def _seconds(self, candidate: Candidate) -> float:
        """What is made small: the mean of a step whose gradients are clipped and one whose are not,
        unless the user is sure.
        """
        fires = candidate.schedule.settings.get(CLIPPED)
        if fires is None or self.spec.clipping == "speculate":
            return candidate.step_seconds
        return (candidate.step_seconds + fires) / 2

    def _best(self, choices: list[Choice]) -> Choice:
        """The smallest window among the fastest that fit; where nothing fits, the smallest."""
        found = [(choice, self._evaluate(choice)) for choice in dict.fromkeys(choices)]
        fitting = [pair for pair in found if self.budgets.lacking(pair[1].peak) is None]
        if not fitting:
            return min(found, key=lambda pair: sum(pair[1].peak.values()))[0]
        fastest = min(self._seconds(candidate) for _, candidate in fitting)
        windows = {choice.window for choice, _ in fitting}
        limit = fastest * (1 + (TOLERANCE if len(windows) > 1 else 0.0))
        return min(
            (pair for pair in fitting if self._seconds(pair[1]) <= limit),
            key=lambda pair: (pair[0].window, self._seconds(pair[1])),
        )[0]
