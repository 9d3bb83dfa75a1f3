"""Draws of how much longer passes and messages take than on the mean, as on shared machines.

Varuna's simulator (EuroSys 2022) adds a normal deviation to passes, which may be less than nothing,
and the size of one to messages. A draw belongs to a pass or a message by its name, not by when it
happens: all orders, and runs that are paced, meet the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.schedule.action import Kind

PASSES = (Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD)
MESSAGES = (Kind.SEND, Kind.SEND_GRAD)
Table = dict[Kind, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """Standard deviations in seconds, and the seed of the draws."""

    compute_s: float | tuple[float, ...] = 0.0
    """Passes of all stages, or of each."""
    network_s: float | tuple[float, ...] = 0.0
    """Messages of all links, or of each link between stages."""
    seed: int = 0

    def draws(self, stages: int, micros: int, copy: int = 0) -> Table:
        """Kind of pass or message -> [stages, micro-batches], in seconds, of one of the copies of a
        pipeline. Of a pass it is what is added, of a message too: row s is of the link between
        stages s and s + 1."""
        rng = np.random.default_rng([self.seed, copy])
        of_stage = np.zeros((stages, 1))
        of_stage[:, 0] = self.compute_s
        found = {kind: of_stage * rng.standard_normal((stages, micros)) for kind in PASSES}
        of_link = np.zeros((stages, 1))
        of_link[: stages - 1 or None, 0] = self.network_s
        for kind in MESSAGES:
            found[kind] = of_link * np.abs(rng.standard_normal((stages, micros)))
        return found
