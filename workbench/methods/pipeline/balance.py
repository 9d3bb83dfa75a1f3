"""Stages of a pipeline, cut so that the slowest is as fast as possible, and what passes take.

A stage's seconds are those of all passes over its units; its bytes are predicted by what it keeps
for each micro-batch in flight. The proof has the last word on memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate

from workbench.methods.pipeline.definition import AHEAD, Pipeline, room
from workbench.methods.pipeline.orders import B, F, I, R, W
from workbench.partition.stages import min_max_stages
from workbench.profile.unit_costs import Sizes, pass_costs
from workbench.profile.units import RECORDED
from workbench.schedule.action import Kind

Stages = tuple[range, ...]
Taken = Callable[[float], float]
"""Seconds of a unit's pass by itself -> those that it takes in a run."""
SLOWER = 0.1
"""Share by which the slowest stage of a cut may be slower than that of the best cut, for less
memory."""
OVER, CHUNKED_OVER = 0.06, 0.6
"""Share by which predicted bytes may be too many, where positions have one stage, or several."""
RUNGS = 32
"""Budgets for which cuts are made between one number of bytes and twice as many."""


class Balance:
    """Units of a pipeline whose stages are not cut yet."""

    def __init__(self, line: Pipeline, sizes: Sizes, units: int, micros: int | None = None) -> None:
        """`micros` is how many micro-batches there are, where the line is of fewer."""
        self._line = line
        self._halved, self._listed = I in line.kinds, R in line.kinds
        inner = range(1, units - 1)
        costs = pass_costs(sizes, units, line.micro_size, line.replay)
        self._recorded = [line.replay and cost.variant(RECORDED) is not None for cost in costs]
        if line.activations == "checkpoint":
            costs = [c.from_checkpoint() if u in inner else c for u, c in enumerate(costs)]
        self._costs = costs
        recomputes = line.activations == "recompute" and not self._listed
        self._again = [recomputes and unit in inner for unit in range(units)]
        self._in_last = [c.recompute_s + c.backward_s for c in costs] if self._listed else None
        self._seconds = [
            (c.forward_s if self._listed or again else 0.0)
            + c.recompute_s
            + (sum(c.halves.seconds) if self._halved else c.backward_s)
            for c, again in zip(costs, self._again, strict=True)
        ]
        self._lent = {
            (unit, sizes.owner(unit)): sizes.visit_bytes(unit) - sizes.weight_bytes(unit)
            for unit in range(units)
            if sizes.owner(unit) != unit
        }
        self._doubled = sizes.doubled
        self._stages, self._micros = len(line.positions), micros or line.micros
        self._several = self._stages > line.depth
        flights = map(line.in_flight, range(self._stages))
        self._flights = [self._micros if n == line.micros else n for n in flights]
        samples = line.micro_size * self._micros
        self._permanent = sizes.library_bytes + sizes.token_bytes(samples)
        works = [
            max(
                c.recompute_scratch_bytes,
                c.forward_scratch_bytes,
                c.backward_scratch_bytes + sizes.fresh_bytes(u),
                0,
            )
            for u, c in enumerate(costs)
        ]
        always = [2 * sizes.visit_bytes(u) + sizes.state_bytes(u) for u in range(units)]
        inputs = [sizes.input_bytes(unit, line.micro_size) for unit in range(units)]
        self._inputs = [*inputs, 0]
        self._forward = [c.forward_scratch_bytes for c in costs]
        each = [
            inputs[unit] + (0 if again else c.kept_bytes) + (c.halves.nbytes if self._halved else 0)
            for unit, (c, again) in enumerate(zip(costs, self._again, strict=True))
        ]
        self._always, self._each = ([*accumulate(those, initial=0)] for those in (always, each))

        @cache
        def beside(start: int, stop: int) -> int:
            """Bytes that a micro-batch takes at most in passes over units, less what it keeps there
            in all: in a unit's own passes nothing is kept for the units behind it."""
            most = max(self._each[unit + 1] + works[unit] for unit in range(start, stop))
            return most - self._each[stop]

        self._beside = beside

    # -- stages ---------------------------------------------------------------------------------

    def least_bytes(self, stage: int, units: range) -> int:
        """Bytes that a stage of these units needs of its device, at least."""
        flight, waiting = self._flights[stage], 0
        if self._listed:  # places of inputs, which wait there, and activations of one micro-batch
            waiting = self._room(stage) * self._inputs[units.start] if stage else 0
            flight = 1
        always, each = (sums[units.stop] - sums[units.start] for sums in (self._always, self._each))
        twice = sum(n for a, b, n in self._doubled if a in units and b in units)
        return waiting + always - twice + flight * each

    def _room(self, stage: int) -> int:
        return min(self._micros, room([stage], self._stages))

    def predicted_bytes(self, stage: int, units: range) -> int:
        """Bytes that it needs with what passes work in, and messages that come and go: within
        `OVER` of what is proved."""
        first, end = self._inputs[units.start] if units.start else 0, self._inputs[units.stop]
        first = 0 if self._listed else first  # among those that it needs
        held = 0 if self._listed else self._flights[stage]  # outputs, by autograd
        places = min(AHEAD, self._micros)  # of messages that come, and that go
        more = places * (first + end) + (places + held) * end
        more += self._beside(units.start, units.stop)
        if self._listed and stage < self._stages - 1 and self._micros > 1:
            more += max(self._forward[units.start : units.stop])  # begun on the other lane
        for pair, nbytes in self._lent.items():
            more += nbytes * (len({*pair} & {*units}) == 1)
        return self.least_bytes(stage, units) + more

    def device_bytes(self, stages: Stages) -> int:
        """Bytes of the fullest device, as predicted, with all stages that it has."""
        found = [0] * self._line.depth
        for stage, units in enumerate(stages):
            found[self._line.positions[stage]] += self.predicted_bytes(stage, units)
        return max(found) + self._permanent

    def _cut(self, fits: Callable[[int, range], bool]) -> Stages | None:
        """The cut whose slowest stage is fastest among those that fit, None where none does; where
        a position has several stages, among all."""
        every = (lambda stage, units: True) if self._several else fits
        return min_max_stages(self._seconds, self._stages, every, self._in_last)

    def fastest_within(self, device_bytes: int) -> Stages:
        """The cut that needs no more than so many bytes at least, or else the best of all."""
        found = self._cut(lambda stage, units: self.least_bytes(stage, units) <= device_bytes)
        return found or self.fastest()

    def fastest(self) -> Stages:
        """The best cut of all."""
        return self._cut(lambda stage, units: True)

    def cuts(self, device_bytes: int) -> list[Stages]:
        """Cuts that may need no more than these bytes, each predicted to need less than the one
        before. Budgets below come out of a row that is always the same, so that more memory takes
        no cut away."""
        best = self.fastest()
        if self._several:
            return [best] if self.device_bytes(best) <= device_bytes * (1 + CHUNKED_OVER) else []

        predicted = cache(self.predicted_bytes)

        def cut(nbytes: int) -> Stages | None:
            room = int(nbytes * (1 + OVER)) - self._permanent
            return self._cut(lambda stage, units: predicted(stage, units) <= room)

        fits = self.device_bytes(best) <= device_bytes * (1 + OVER)
        found: list[Stages] = []
        this = best if fits else cut(_rung(device_bytes + 1))
        while this is not None:
            if found and self._slowest(this) > (1 + SLOWER) * self._slowest(best):
                break
            found.append(this)
            this = cut(_rung(int(self.device_bytes(this) / (1 + OVER))))
        last = None if found else cut(device_bytes)
        return found or ([last] if last else [])

    def _slowest(self, stages: Stages) -> float:
        seconds = [self._seconds] * (len(stages) - 1) + [self._in_last or self._seconds]
        return max(sum(own[u] for u in units) for own, units in zip(seconds, stages, strict=True))

    # -- passes ---------------------------------------------------------------------------------

    def unit_seconds(self, unit: int, last: bool, taken: Taken) -> dict[Kind, float]:
        """Kind of pass -> seconds of one over a unit, in the last stage or before."""
        cost = self._costs[unit]
        listed = self._listed and not last
        halves = cost.halves.seconds if unit else (0.0, cost.backward_s)
        again = cost.recompute_s if self._again[unit] else 0.0
        found = {
            F: cost.forward_s if listed or self._again[unit] else cost.recompute_s,
            R: cost.recompute_s,
            B: again + cost.backward_s + cost.gradient_copy_s,
            I: again + halves[0],
            W: halves[1],
        }
        # Recorded passes were timed one behind the other.
        return found if self._recorded[unit] else {k: taken(s) for k, s in found.items()}

    def pass_seconds(self, stages: Stages, taken: Taken) -> list[dict[Kind, float]]:
        """Stage -> kind of pass -> seconds."""
        found = []
        for stage, units in enumerate(stages):
            last = stage == len(stages) - 1
            each = [self.unit_seconds(unit, last, taken) for unit in units]
            found.append({kind: sum(one[kind] for one in each) for kind in (F, R, B, I, W)})
        return found


def _rung(nbytes: int) -> int:
    """The next budget below that is some 32nds of a power of two."""
    step = max(1, (1 << max(0, (nbytes - 1).bit_length() - 1)) // RUNGS)
    return (nbytes - 1) // step * step
