"""Cache of what choices cost, whatever the budgets: bytes of every tier, and seconds of a step.

A search evaluates many choices, and several searches may ask of one model on one machine under
different budgets, so every evaluation is kept. Memory is known first, and cheaply; a choice is
simulated only where a search asks for its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from workbench.core.spec import RunSpec
from workbench.methods.offload.placement import Placement
from workbench.methods.offload.program import build
from workbench.methods.stronghold.choice import Choice, placement_of
from workbench.methods.stronghold.memory import device_bytes
from workbench.profile.cuda_graphs import replays
from workbench.profile.profile import Profile, ProfileCosts
from workbench.schedule.graph import unroll
from workbench.schedule.order import Order
from workbench.schedule.peak import worst_case
from workbench.schedule.schedule import DEVICE, TIERS, Schedule
from workbench.schedule.simulate import step_seconds

STEPS = 3
"""Steps of a schedule that are simulated, and proved: states that visit the device may be late from
the third on."""

BUILT = 8
"""Schedules that are kept."""


def go_on() -> None:
    """Let the work go on: the check of a search that nobody interrupts."""


class EvaluationCache:
    """Bytes and seconds of choices for one spec, its budgets aside, on one machine."""

    def __init__(
        self, spec: RunSpec, profile: Profile, *, check: Callable[[], None] = go_on
    ) -> None:
        """`check` is called before every schedule that is built, and may raise to end the work."""
        self.spec, self.profile, self._check = spec, profile, check
        recorded = replays(spec, profile)
        self._costs = {
            clips: ProfileCosts(profile, clips=clips, recorded=recorded) for clips in (False, True)
        }
        self._device: dict[Choice, int] = {}
        self._sums: dict[Choice, dict[str, int]] = {}
        self._proved: dict[tuple[Choice, str], int] = {}
        self._seconds: dict[Choice, tuple[float, float | None]] = {}
        self.estimated: dict[Choice, float] = {}
        """Seconds by arithmetic, which searches enter: each of them begins anew."""
        self._built: dict[Choice, Schedule] = {}
        """The last `BUILT` schedules, in the order in which they were asked for."""

    def known(self) -> frozenset[Choice]:
        """Choices whose time is known: asking for it again costs nothing."""
        return frozenset(self._seconds)

    def device_bytes(self, choice: Choice) -> int:
        """Bytes of the device tier; which layers are on the disk makes no difference."""
        key = _anywhere(choice)
        if key not in self._device:
            placement = placement_of(self.spec, self.profile, replace(key, eager="none"))
            if self.spec.clip is not None and key.eager != "none":
                placement = replace(placement, eager=placement.pulled)
            self._device[key] = device_bytes(placement, self.profile)
        return self._device[key]

    def peaks(self, choice: Choice, limits: Mapping[str, int]) -> dict[str, int]:
        """Tier -> bytes that no execution exceeds.

        The bytes of slots, of permanent buffers and of all other buffers together are a bound, and
        quickly known. A smaller one is proved only where that exceeds its limit and there are
        buffers without a slot.
        """
        if choice not in self._sums:
            schedule = self.schedule(choice)
            rest = dict.fromkeys(TIERS, 0)
            for buffer in schedule.buffers.values():
                if buffer.slot is None and not buffer.permanent:
                    rest[buffer.tier] += buffer.nbytes
            self._sums[choice] = {t: schedule.static_bytes(t) + n for t, n in rest.items()}
            for tier in TIERS:
                if not rest[tier]:
                    self._proved[choice, tier] = self._sums[choice][tier]
        peaks = self._sums[choice] | {DEVICE: self.device_bytes(choice)}
        tight = [t for t, limit in limits.items() if t != DEVICE and peaks[t] > limit]
        if any((choice, tier) not in self._proved for tier in tight):
            graph = unroll(self.schedule(choice), STEPS)
            order = Order(graph)
            for tier in tight:
                self._proved[choice, tier] = worst_case(graph, order, tier).nbytes
        return peaks | {tier: self._proved[choice, tier] for tier in tight}

    def step_seconds(self, choice: Choice) -> tuple[float, float | None]:
        """Seconds of a step whose gradients are not clipped, and of a clipped one: None where
        clipping makes no difference, or the user is sure that it does not happen. The mean of all
        simulated steps but the first."""
        if choice not in self._seconds:
            placement, graph = self._layout(choice), unroll(self.schedule(choice), STEPS)
            stands, clips = step_seconds(graph, self._costs[False]), None
            if placement.clipped and placement.eager and self.spec.options.clipping != "speculate":
                clips = step_seconds(graph, self._costs[True])
            self._seconds[choice] = stands, clips
        return self._seconds[choice]

    def schedule(self, choice: Choice) -> Schedule:
        """The choice's schedule. The last few are kept: memory, time and drawing of a choice need
        one schedule."""
        schedule = self._built.pop(choice, None)
        if schedule is None:
            self._check()
            schedule = build(self._layout(choice), self.profile)
        self._built[choice] = schedule
        if len(self._built) > BUILT:
            del self._built[next(iter(self._built))]
        return schedule

    def _layout(self, choice: Choice) -> Placement:
        return placement_of(self.spec, self.profile, choice)


def _anywhere(choice: Choice) -> Choice:
    """The choice without its settings that make no difference to the device: which layers are
    updated on the host, when, and from where. States that visit come once more where their updates
    do not wait."""
    eager = "none" if choice.eager == "none" else "some"
    return replace(choice, on_disk=0, eager=eager, moments_later=False)
