"""A time below which no plan's iteration is, whatever its stages, tp, dp and recomputation.

The slowest stage takes at least its devices' share of all work. Each operator's work is that of the
split which suits it best, without messages. What all devices hold together must fit: where the
activations of one micro-batch do not, beside weights and states, the rest is made again, of the
operators first that free most for their time.
"""

from __future__ import annotations

import numpy as np

from workbench.methods.aceso.costs import MB, NEVER, NS_OF_MS
from workbench.methods.aceso.database import ACTIVATIONS, BACKWARD, FORWARD, WEIGHTS
from workbench.methods.aceso.exact import splits
from workbench.methods.aceso.space import Space


def least_time(space: Space) -> float:
    """Milliseconds; 0 where no operator is profiled for any micro-batch."""
    return min((_of_micro(space, m) for m in space.micros if splits(space, m)), default=0.0)


def _of_micro(space: Space, micro: int) -> float:
    costs, devices = space.costs, space.cluster.gpus
    algos = range(costs.operators.partitions)
    tables, gpus = [], []
    for tp, dp in splits(space, micro):
        for algo in algos:
            if (micro // dp, tp, algo) in costs.database.rows:
                tables.append(costs.table(micro // dp, tp, algo)[0])
                gpus.append(tp * dp)
    each = np.array(tables, dtype=float) * np.array(gpus)[:, None, None]
    each[np.array(tables) >= NEVER] = np.inf
    work = (each[:, FORWARD] + each[:, BACKWARD]).min(axis=0)
    # Weights, gradients, masters and states, and as much reserved memory as weights at least.
    held = each[:, WEIGHTS] * (3 + costs.masters + costs.states) + each[:, ACTIVATIONS]
    excess = held.min(axis=0).sum() - devices * space.cluster.memory * MB
    again = _least_again(each[:, FORWARD], each[:, ACTIVATIONS], excess)
    return space.subject.batch // micro * (work.sum() + again) / devices / NS_OF_MS


def _least_again(times: np.ndarray, sizes: np.ndarray, excess: float) -> float:
    """Device-nanoseconds to save as many bytes, each operator's by itself."""
    if excess <= 0:
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where((sizes > 0) & np.isfinite(sizes), times / sizes, np.inf).min(axis=0)
    most = np.where(np.isfinite(sizes), sizes, 0).max(axis=0)
    order = np.argsort(rates, kind="stable")
    order = order[np.isfinite(rates[order])]
    before = np.cumsum(most[order]) - most[order]
    taken = np.clip(excess - before, 0, most[order])
    return float((taken * rates[order]).sum()) if taken.sum() >= excess - 1 else np.inf
