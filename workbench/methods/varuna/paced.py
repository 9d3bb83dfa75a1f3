"""Paced runs: a pipeline whose passes and messages take given seconds, on any machine.

Two cores cannot time four ranks that compute; they can time four that sleep. Passes of a tiny
module are padded to their seconds, and messages count as come only after theirs, with the draws of
jitter that the simulator has for the same passes (section 3.4 of the specification's tables).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.methods.pipeline.jitter import Jitter
from workbench.schedule.action import Action, Kind

SENT_AS = {Kind.RECV: Kind.SEND, Kind.RECV_GRAD: Kind.SEND_GRAD}
"""A receive -> the kind of its sending, by which draws are named."""


@dataclass(kw_only=True)
class Pace:
    """Seconds of a stage's passes and messages; `perturb` and `latency` of a pipeline."""

    seconds: Mapping[Kind, float]
    """Kind of pass -> seconds."""
    link_s: float
    """Seconds of a message between two stages."""
    jitter: Jitter
    stages: int
    micros: int
    _began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draws = self.jitter.draws(self.stages, self.micros)

    def perturb(self, action: Action, step: int) -> None:
        """Called before a pass and after it, where it sleeps for what is left of its seconds."""
        if action.kind not in self.seconds:
            return
        began = self._began.pop(action.name, None)
        if began is None:
            self._began[action.name] = time.monotonic()
            return
        drawn = self._draws[action.kind][action.unit, action.microbatch]
        left = began + max(0.0, self.seconds[action.kind] + drawn) - time.monotonic()
        time.sleep(max(0.0, left))

    def latency(self, action: Action) -> float:
        """Seconds by which a message comes after its sending; link s is behind stage s."""
        link = action.unit - 1
        return self.link_s + self._draws[SENT_AS[action.kind]][link, action.microbatch]
