"""Choices that a spec leaves to the planner, and which of them fit.

Three kinds of layers share the device's memory: resident, pulled and kept ones. What fits the
device is found by memory.py; the host's and the disk's need is the sum of what could ever be there,
or where that is too much the proof (schedule/peak.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from workbench.methods.stronghold.choice import Choice
from workbench.methods.stronghold.evaluation_cache import EvaluationCache
from workbench.methods.stronghold.options import Options
from workbench.profile.budgets import Budgets
from workbench.schedule.schedule import DISK, HOST_TIER

FIRST_WINDOW = 2
"""The window with which the other choices are made, before windows are compared: the smallest, for
what fits with any fits with it."""
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, -1), (-1, 1), (1, 1), (-1, -1))
"""Directions of a step, in layers of two kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierChoice:
    """The choice for an earlier question."""

    choice: Choice
    layers: int


class SearchSpace:
    """Choices for one spec within its budgets."""

    def __init__(self, budgets: Budgets, cache: EvaluationCache) -> None:
        """`cache` knows the spec and the profile, and what choices cost."""
        self.budgets, self.cache = budgets, cache
        self.spec, self.profile = cache.spec, cache.profile
        spec, self.layers = cache.spec, cache.spec.model.layers
        asked: Options = spec.options
        self.asked = asked
        self.axes = {
            "resident": asked.resident == "auto",
            "pulled": {asked.resident, asked.window, asked.pulled} == {"auto"},
            "kept": spec.activations == "auto" and asked.kept == "auto",
        }
        """Kinds of layers -> whether the planner may choose their number."""
        self.stashes = {"auto": (False, True), "host": (True,)}.get(spec.activations, (False,))
        may_wait = spec.clip is not None and asked.clipping == "auto"
        clips = spec.clip is not None and asked.clipping != "speculate"
        self.later = (False, True) if clips else (False,)
        """Whether moments may follow weights: where a step that is clipped matters."""
        self.hosted = False
        """Whether the host updates the embedding and the head."""
        self.eager = ("none", "some") if may_wait else (self.start().eager,)
        self.hosted = asked.ends == "host"
        if asked.ends == "auto":
            least = (replace(self.start(), stash=stash) for stash in self.stashes)
            self.hosted = all(cache.device_bytes(one) > budgets.device for one in least)
        self.slopes = {stash: self._slope(stash) for stash in self.stashes}

    def start(self) -> Choice:
        """The choice without anything that the planner may choose."""
        spec, asked = self.spec, self.asked
        kept = {"keep": self.layers, "auto": 0 if asked.kept == "auto" else asked.kept}
        on_disk = self.layers if asked.optimizer_tier == DISK else asked.disk_layers
        waits = spec.clip is not None and asked.clipping == "wait"
        at_once = spec.clip is None and asked.optimizer_tier == DISK
        resident = 0 if asked.resident == "auto" else asked.resident
        return Choice(
            window=min(FIRST_WINDOW if asked.window == "auto" else asked.window, self.layers),
            resident=resident,
            pulled=0 if asked.pulled == "auto" else min(asked.pulled, self.layers - resident),
            kept=kept.get(spec.activations, 0),
            stash=spec.activations == "host",
            hosted=self.hosted,
            on_disk=0 if on_disk == "auto" else on_disk,
            eager="none" if waits else "all" if at_once else "some",
        )

    def smallest(self) -> list[Choice]:
        """Candidates for the smallest needs: nothing kept, and as many layers resident as fit, for
        what stays on the device the host need not hold."""
        return [self._settled(replace(self.start(), stash=stash)) for stash in self.stashes]

    def as_before(self, before: EarlierChoice) -> Choice:
        """A choice like that for another question, in proportion where the depth has changed."""
        past, start, scale = before.choice, self.start(), self.layers / before.layers
        found = replace(
            start,
            pulled=round(past.pulled * scale) if self.axes["pulled"] else start.pulled,
            kept=round(past.kept * scale) if self.axes["kept"] else start.kept,
            stash=past.stash if past.stash in self.stashes else start.stash,
            window=min(past.window, self.layers) if self.asked.window == "auto" else start.window,
        )
        return self._settled(found)

    def windows(self) -> list[int]:
        """2, 3, 4, 6, 8, 12, 16, ... and all layers."""
        grid = {start << power for start in (2, 3) for power in range(self.layers.bit_length())}
        return [*sorted(w for w in grid if w < self.layers), self.layers]

    def moved(
        self, choice: Choice, kinds: tuple[str, str], strides: Iterable[int]
    ) -> Iterator[Choice]:
        """The choice, and those with a stride more or fewer layers of one or both of two kinds."""
        yield choice
        for stride, steps in product(strides, DIRECTIONS):
            counts = {
                kind: getattr(choice, kind) + step * stride
                for kind, step in zip(kinds, steps, strict=True)
                if step
            }
            if all(self.axes[kind] and 0 <= n <= self.layers for kind, n in counts.items()):
                yield replace(choice, **counts)

    # -- what fits ---------------------------------------------------------------------------------

    def fits(self) -> bool:
        """Whether any choice is within the budgets; much quicker than the search."""
        return any(not self.placed(choice)[1] for choice in self.smallest())

    def _slope(self, stash: bool) -> dict[str, float]:
        """Bytes of device memory that one layer more of each kind takes, about; one at least, for a
        layer of a user's module may keep nothing beside its input."""
        none = replace(self.start(), resident=0, pulled=0, kept=0, stash=stash)
        half, least = max(1, self.layers // 2), self.cache.device_bytes(none)
        return {
            kind: max(1, (self.cache.device_bytes(replace(none, **{kind: half})) - least) / half)
            for kind in self.axes
        }

    def _settled(self, choice: Choice) -> Choice:
        """The choice with as many resident layers as fit, as it is where nothing fits."""
        return self.with_residents(choice) or choice

    def fitted(self, choice: Choice) -> Choice | None:
        """The choice with as many resident layers as fit, and as many kept ones as fit beside them;
        None where it does not fit."""
        fitted = self.with_residents(choice)
        if fitted is None or not self.axes["kept"]:
            return fitted
        return self.most(fitted, "kept", fitted.kept, self.layers)

    def with_residents(self, choice: Choice) -> Choice | None:
        """The choice with as many resident layers as fit; None where it does not fit."""
        if self.axes["resident"]:
            return self.most(choice, "resident", 0, self.most_resident(choice))
        return choice if self.cache.device_bytes(choice) <= self.budgets.device else None

    def most_resident(self, choice: Choice) -> int:
        """Up to the window, if that is given."""
        most = self.layers if self.asked.window == "auto" else choice.window
        return min(most, self.layers - choice.pulled)

    def most(self, choice: Choice, kind: str, least: int, most: int) -> Choice | None:
        """The choice with as many layers of a kind as fit, found from a number that is about right;
        None where not even the least number fits."""
        fits, beyond = least - 1, most + 1
        count, slope = getattr(choice, kind), self.slopes[choice.stash][kind]
        while beyond - fits > 1:
            count = min(max(count, fits + 1), beyond - 1)
            there = replace(choice, **{kind: count})
            over = self.cache.device_bytes(there) - self.budgets.device
            if over <= 0:
                fits, count = count, count + max(1, int(-over // slope))
            else:
                beyond, count = count, count - max(1, ceil(over / slope))
        return replace(choice, **{kind: fits}) if fits >= least else None

    def placed(self, choice: Choice) -> tuple[Choice, int]:
        """The choice with what the host needs room for, and the bytes by which it exceeds the
        budgets, of all tiers together."""
        limits = self.budgets.to_dict()
        peaks = self.cache.peaks(choice, limits)
        lacking = {t: peaks[t] - limit for t, limit in limits.items() if peaks[t] > limit}
        if HOST_TIER in lacking:
            roomier = self.roomier(choice, lacking[HOST_TIER])
            if roomier != choice:
                return self.placed(roomier)
        return choice, sum(lacking.values())

    def roomier(self, choice: Choice, nbytes: int) -> Choice:
        """The choice with more updates eager or more layers on the disk, where the planner may, so
        that the host needs so much less."""
        if self.spec.clip is None and choice.eager == "some":
            return replace(choice, eager="all")
        asked = self.asked
        may = asked.optimizer_tier == "auto" and asked.disk_layers == "auto"
        if not (may and self.spec.disk_memory):
            return choice
        more = -(-nbytes // (self.profile.units[1].parameters * self.profile.state_bytes))
        streamed = self.layers - choice.resident - choice.pulled
        return replace(choice, on_disk=min(choice.on_disk + more, streamed))
