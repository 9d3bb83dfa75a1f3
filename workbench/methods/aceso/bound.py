"""A time below which no plan's iteration is, whatever its stages, tp, dp and recomputation.

A stage of some devices, with some micro-batches in flight, takes at least the least sum over its
operators of time and of `price` times memory, less `price` times what there is of it: Lagrange's
bound, at any price. Each operator has the split that suits it best, keeps its activations or is
made again, and messages and layouts between cost as little as they can. Such sums over the first
operators of a model tell of any stage by their difference, since two stages are together no cheaper
than one. They grow with a stage, so those stages take all operators soonest of which each in turn
takes as many as it can: the least time for which they do is a bound for these devices, and the
least one of all micro-batches, numbers of stages and devices is one for all plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, product

import numpy as np

from workbench.methods.aceso.costs import MB, NEVER, NS_OF_MS
from workbench.methods.aceso.database import (
    ACTIVATIONS,
    BACKWARD,
    BWD_RESERVED,
    FORWARD,
    FWD_RESERVED,
    OUTPUT,
    WEIGHTS,
)
from workbench.methods.aceso.exact import dealings, splits
from workbench.methods.aceso.space import MOST_STAGES, SIZES, Space

PRICES = 40
"""That are tried, of nanoseconds for a part of memory; the best one counts."""
MOST_DEALINGS = 100
"""Ways to deal devices that are told apart, for a number of stages; of more, all at once."""
FINE = 1e-3
"""Part of a time to which it is found, from below."""


def least_time(space: Space) -> float:
    """Milliseconds; 0 where no operator is profiled for any micro-batch."""
    best = float("inf")
    most = min(space.cluster.gpus, MOST_STAGES, len(space.costs.operators))
    for micro in space.micros:
        if not splits(space, micro) or space.costs.batches(space.subject.batch, micro) < 1:
            continue
        sums = _Sums(space, micro, most)
        for count in range(1, most + 1):
            each = [*islice(dealings(space, count), MOST_DEALINGS + 1)]
            each = [tuple((size,) for size in gpus) for gpus in each]
            for dealt in each if len(each) <= MOST_DEALINGS else [(SIZES,) * count]:
                best = sums.least(dealt, best)
    return float(best) if best < float("inf") else 0.0


class _Sums:
    """Least sums over the first operators, of one micro-batch."""

    def __init__(self, space: Space, micro: int, most: int) -> None:
        self.space, self.costs, self.micro = space, space.costs, micro
        self.batches = space.costs.batches(space.subject.batch, micro)
        self.total = len(space.costs.operators)
        first = np.unique(self.costs.rows, return_index=True)[1]
        tables: dict[int, list[np.ndarray]] = {}
        for (tp, dp), algo in product(
            splits(space, micro), range(space.costs.operators.partitions)
        ):
            if (key := (micro // dp, tp, algo)) in self.costs.database.rows:
                made = self.costs.table(*key)[0][:, first].astype(float)  # [columns, rows]
                tables.setdefault(tp * dp, []).append(np.where(made >= NEVER, np.inf, made))
        self.row = np.searchsorted(self.costs.rows[first], self.costs.rows)
        turns = sorted({self.costs.turns(behind, micro) for behind in range(most)})
        self.at = {key: i for i, key in enumerate(product(tables, turns))}
        self.work = {g: self._least(each, FORWARD, BACKWARD) for g, each in tables.items()}
        self.never = {g: np.append(0, np.cumsum(np.isinf(each))) for g, each in self.work.items()}
        both = FWD_RESERVED, BWD_RESERVED
        self.reserved = {g: np.array([self._least(each, c) for c in both])
                         for g, each in tables.items()}  # fmt: skip
        self.message = self._least_message(tables)
        self.prices = np.array([self._prices(tables[g], t) for g, t in self.at])  # [pairs, prices]
        self.sums = self._summed(tables)

    def _least(self, tables: list[np.ndarray], *columns: int) -> np.ndarray:
        """Of each operator, by the split that has least of some columns."""
        return np.min([sum(made[c] for c in columns) for made in tables], axis=0)[self.row]

    def _least_message(self, tables: dict[int, list[np.ndarray]]) -> float:
        """Milliseconds of a message, where passes do not hide it."""
        if self.costs.hides:
            return 0.0
        sizes = {float(each) / MB for every in tables.values() for made in every
                 for each in made[OUTPUT] if np.isfinite(each)}  # fmt: skip
        return min(self.costs.message(size, across) for size in sizes for across in (False, True))

    def _prices(self, tables: list[np.ndarray], turns: int) -> np.ndarray:
        made = tables[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = made[FORWARD] / (made[ACTIVATIONS] * turns)
        rates = rates[np.isfinite(rates) & (rates > 0)]
        if not len(rates):
            return np.zeros(PRICES)
        inner = np.geomspace(rates.min() / 2, rates.max() * 2, PRICES - 3)
        return np.array([0.0, *inner, inner[-1] * 100, inner[-1] * 1e4])

    def _summed(self, tables: dict[int, list[np.ndarray]]) -> np.ndarray:
        """[operators + 1, pairs, 2, prices], in ns. Reserved memory is no less than weights, where
        costs say so, and no less than operators': the first and the second of the two. An operator
        that no split has counts nothing."""
        held = 2 + self.costs.masters + self.costs.states
        also = self.costs.room(1.0) * self.costs.reserves_weights
        factors = np.array([held + also, held])[:, None]
        rows = tables[next(iter(tables))][0].shape[1]
        shape = (3, rows, len(self.at), 2, PRICES)
        costs = np.full(shape, np.inf)  # kept; made again; made again as a segment's last, and kept
        for (gpus, turns), pair in self.at.items():
            prices = self.prices[pair]
            for row, made in product(range(rows), tables[gpus]):
                if np.isfinite(made[:, row]).all():
                    again = made[FORWARD, row]
                    bare = again + made[BACKWARD, row] + prices * (factors * made[WEIGHTS, row])
                    full = bare + prices * (turns * made[ACTIVATIONS, row])
                    here = np.array([full, bare + again, full + again])
                    costs[:, row, pair] = np.minimum(costs[:, row, pair], here)
        kept, again, ends = np.where(np.isinf(costs), 0.0, costs)
        starts = np.append(self.costs.starts_layer[1:], False)
        goes_on = ~(starts & self.costs.plain)
        sums = np.zeros((self.total + 1, *shape[2:]))
        never = np.full(shape[2:], np.inf)
        closed, opened = sums[0], never
        for i, row in enumerate(self.row):
            after = np.minimum(closed + kept[row], opened + ends[row])
            opened = np.minimum(closed, opened) + again[row] if goes_on[i] else never
            closed = sums[i + 1] = after
        return sums

    def least(self, dealt: Sequence[Sequence[int]], best: float) -> float:
        """Milliseconds of an iteration of stages that may have such devices; `best` where it is
        more."""
        work = [self.work[each] for each in {*chain(*dealt)} if each in self.work]
        if not work:
            return best
        once = np.min(work, axis=0).sum() / NS_OF_MS + 2 * (len(dealt) - 1) * self.message
        high = best - once
        if high <= 0 or (high < float("inf") and not self._takes_all(dealt, high)):
            return best
        low, high = 0.0, high if high < float("inf") else self._enough(dealt)
        if high == float("inf"):
            return best
        while high - low > FINE * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self._takes_all(dealt, middle) else (middle, high)
        return min(best, low + once)

    def _enough(self, dealt: Sequence[Sequence[int]]) -> float:
        """A time that suffices, by doubling; infinite where none does."""
        high = 1.0 + self.batches * self.sums[-1, :, 0, 0].max() / NS_OF_MS
        for _ in range(12):
            if self._takes_all(dealt, high):
                return high
            high *= 2
        return float("inf")

    def _takes_all(self, dealt: Sequence[Sequence[int]], most: float) -> bool:
        """Whether stages whose part in an iteration is up to `most` ms can take all operators."""
        reached, count = {0: 0}, len(dealt)  # operators, by devices of the stages so far
        for index, sizes in enumerate(dealt):
            behind = count - 1 - index
            full = self.batches - 1
            if self.costs.hides:
                full -= min(behind, full) / 2  # while the pipeline fills, the shorter pass is free
            messages = ((index > 0) + (behind > 0)) * self.message
            limit = (most / full - messages) * NS_OF_MS if full > 0 else float("inf")
            before, reached = reached, {}
            for (used, first), size in product(before.items(), sizes):
                if size in self.work and self.space.may_have(used, size, behind):
                    last = self._reach(first, size, self.costs.turns(behind, self.micro), limit)
                    reached[used + size] = max(last, reached.get(used + size, 0))
            if self.total in reached.values():
                return True
        return False

    def _reach(self, first: int, gpus: int, turns: int, limit: float) -> int:
        """The operator after the last one that a stage can have."""
        pair = self.at[gpus, turns]
        prices, sums, reserved = self.prices[pair], self.sums[:, pair], self.reserved[gpus]
        whole, never = self.space.cluster.memory, self.never[gpus]

        def fits(last: int) -> bool:
            if never[last] > never[first]:
                return False
            most = self.costs.scratch(reserved[:, first:last]) / MB
            rooms = np.array([self.costs.room(whole), self.costs.room(whole - most)]) * MB
            least = sums[last] - sums[first] - prices * rooms[:, None]
            return bool(least.max() <= limit)

        low, high = first, self.total + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
