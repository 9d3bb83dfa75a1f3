"""Chooses what a stage recomputes, so that it fits: the published way (Aceso, EuroSys'24 artifact).

Operators that are alike are a group. The group whose profiled activations are largest goes first:
each of its operators and the one after it are recomputed, which saves the first one's activations.
Where that frees more than is needed, only operators from the stage's front are taken. It never
looks at the time that it costs.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from workbench.methods.aceso.costs import MOST_KEPT, PROFILED, Costs
from workbench.methods.aceso.database import ACTIVATIONS
from workbench.methods.aceso.plan import Stage


class Chooser:
    """Flags of a stage for a limit of memory, which it remembers."""

    def __init__(self, costs: Costs, limit: float) -> None:
        self.costs, self.limit = costs, limit
        operators = costs.operators
        self.chosen = np.array([o.chosen for o in operators.operators])
        self._known: dict[tuple[object, ...], Stage] = {}

    def __call__(self, stage: Stage, first: int, micro: int, behind: int) -> Stage:
        """The stage, with flags that make it fit; with all that help, where nothing does."""
        bare = stage._replace(recompute=bytes(len(stage.tp)))
        key = (bare, first, micro, behind)
        if (known := self._known.get(key)) is None:
            if len(self._known) * len(self.costs.operators) >= MOST_KEPT:
                self._known.clear()
            self._known[key] = known = self._choose(bare, first, micro, behind)
        return known

    def _choose(self, stage: Stage, first: int, micro: int, behind: int) -> Stage:
        cost = self.costs.stage(stage, first, micro, behind=behind)
        excess = self.costs.excess(cost, self.limit)
        if excess <= 0:
            return stage
        count = len(stage.tp)
        columns = self.costs.columns(stage, first, micro)
        sizes, profiled = columns[ACTIVATIONS], columns[PROFILED]
        rows = self.costs.rows[first : first + count]
        weights = np.where(self.chosen[first : first + count], profiled, 0)
        totals = np.bincount(rows, weights=weights)
        flags = np.zeros(count, dtype=np.uint8)
        base, turns = excess, self.costs.turns(behind, micro)
        while excess > 0 and (row := int(totals.argmax())) >= 0 and totals[row] > 0:
            places = np.flatnonzero(rows == row)
            each = int(sizes[places[0]]) * turns
            if each * len(places) > excess:
                places = places[: ceil(excess / each)]
            flags[places] = 1
            after = places + 1
            after = after[after < count]
            flags[after] = 1
            totals[row] = 0
            if len(after):
                totals[rows[after[0]]] = 0
            saved, peak = self.costs.saved(flags, sizes, first)
            excess = base - saved * turns + peak
        return stage._replace(recompute=flags.tobytes())
