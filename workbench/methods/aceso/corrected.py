"""Costs of our own: the published model of Aceso (EuroSys'24), corrected, and what it leaves out.

Beside passes, an iteration has sums of gradients over replicas and over copies of tied embeddings,
a norm, and an update. Messages lie beside passes, so an iteration follows from 1F1B's order: the
first micro-batches are traversed pass by pass, and all further ones take the period of the slowest
round trip through neighbouring stages. Tests hold this against the simulator, whose every message
and pass it is (simulated.py).

Sizes that were not profiled lie between those that were. Memory has no more micro-batches in flight
than there are, what one pass at a time works in, fragments of the allocator, and buffers of NCCL.
Updates work in no copy of the weights. A segment's last operators are not computed again where no
backward pass reads what they put out. Every constant says where it is from.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

import numpy as np

from workbench.methods.aceso.costs import MB, Costs, Share, StageCost
from workbench.methods.aceso.database import FORWARD, WEIGHTS, Database
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.timing import traversed
from workbench.model.operators import OperatorList
from workbench.profile.budgets import FRAGMENT_BYTES, FRAGMENTS

ADAM_PARAMS_PER_S = 17.75e9
"""Where profiles do not say. Measured: AdamW on a V100, clipping included (STRONGHOLD's log,
published/machines.json)."""
ADAM_BYTES = 28
"""Of a parameter, which AdamW reads and writes: gives a rate of memory (published/hardware.py)."""
NORM_PASSES = 5
"""Over gradients: finite, norm, a factor that is read and written (updates/step_end.py), zeros."""
NCCL_MB = 461.0
"""Of a group of devices. Measured: four groups took 1.8 GiB of each H200 (results/LOG.md)."""
FRAGMENT_MB = FRAGMENT_BYTES / 2**20
"""Assumed, as for all runs (profile/budgets.py): one part in `FRAGMENTS`, at most so much."""
FAILED_MS = 1e6
"""Of a collective that did not run, in profiles."""
READ_NOTHING = ("add-dropout", "add", "head")
"""Kinds of operators whose backward pass reads no tensor that a pass made: the head has made its
gradients before. Dropout, which would read masks, is 0 in profiles."""
READ_INPUTS = (
    "qkv", "cross-qkv", "grouped-qkv", "gate-up", "linear", "conv", "gelu", "swiglu", "context",
)  # fmt: skip
"""Kinds of operators whose backward pass reads none that they put out."""
TIED = ("embedding", "head")
"""Kinds of operators that share a weight, where there is a head: the runtime's default."""

Curve = tuple[np.ndarray, np.ndarray]
"""MB and milliseconds of a collective."""


class Corrected(Costs):
    """Costs of stages of one model, trained on `batch` samples an iteration by `gpus` devices."""

    hides, reserves_weights = True, False

    def __init__(
        self, operators: OperatorList, database: Database, *, half: bool, per_node: int, gpus: int,
        batch: int,
    ) -> None:  # fmt: skip
        super().__init__(operators, database, half=half, per_node=per_node)
        self.batch, self.across = batch, gpus > per_node
        self.group_mb = NCCL_MB if database.group_mb is None else database.group_mb
        self.masters = int(half)  # their other halves (updates/split.py)
        self.updated = database.updated or ADAM_PARAMS_PER_S
        self.params_of_mb = 2**20 / (2 if half else 4)
        kinds = [each.kind for each in operators.operators]
        self.tied = [i for i, kind in enumerate(kinds) if kind in TIED and "head" in kinds]
        self._nothing = np.array([kind in READ_NOTHING for kind in kinds])
        self._idle = self._nothing | np.array([kind in READ_INPUTS for kind in kinds])
        self._curves: dict[tuple[str, int, int], Curve | None] = {}

    def batches(self, batch: int, micro: int) -> float:
        """As `Costs.batches`; the last one may be a part."""
        return batch / micro

    def turns(self, behind: int, micro: int) -> int:
        """As `Costs.turns`; no more than there are."""
        return min(behind + 1, ceil(self.batch / micro))

    def times(self, stages: Sequence[StageCost], batches: float) -> list[float]:
        """As `Costs.times`: of all stages the iteration's, less what each waits for the slowest."""
        iteration = traversed([_shape(each) for each in stages], batches)
        shares = [self.share(s, len(stages) - 1 - i, batches).steady for i, s in enumerate(stages)]
        return [iteration - (max(shares) - each) for each in shares]

    def share(self, cost: StageCost, behind: int, batches: float) -> Share:
        """As `Costs.share`; passes that fill the stage's pipeline wait for nobody."""
        ahead, back, link, sums = _shape(cost)[:4]
        filled = min(behind, batches - 1) * min(ahead, back)
        return Share(
            (batches - 1) * (ahead + back) - filled, ahead + back + 2 * link, 2 * link,
            back + link, sums,
        )  # fmt: skip

    def room(self, left: float) -> float:
        """As `Costs.room`, less fragments."""
        return max(left / (1 + 1 / FRAGMENTS), left - FRAGMENT_MB)

    def excess(self, cost: StageCost, limit: float) -> int:
        """As `Costs.excess`: fragments shrink with what is saved."""
        room = self.room(limit - (cost.reserved - _fragments(cost.normal)))
        return ceil((cost.normal - room) * MB)

    def _stage(
        self, stage: Stage, first: int, micro: int, behind: int, from_node: bool, to_node: bool
    ) -> StageCost:
        cost = super()._stage(stage, first, micro, behind, from_node, to_node)
        last = first + len(stage.tp)
        summed = [each for each in self._summed(stage, first, micro) if each[1] > 1]
        sums = sum(self._sum(mb, dp, stage.gpus // dp) for mb, dp in summed)
        away = [i for i in self.tied if not first <= i < last]
        here = len(self.tied) > len(away) > 0
        if here:
            at = -1 if last == len(self.operators) else 0
            made, _ = self.table(micro // stage.dp[at], stage.tp[at], stage.algo[at])
            sums += len(away) * self.message(int(made[WEIGHTS, self.tied[-1]]) / MB, self.across)
        parameters = cost.weights * self.params_of_mb
        norm = NORM_PASSES * cost.weights * 2**20 / (ADAM_BYTES * self.updated) * 1000
        back = cost.reshard - cost.ahead
        groups = _groups(stage) + (here and len(away) > 0)
        beyond = groups * self.group_mb + _fragments(cost.normal)
        return cost._replace(
            into=cost.into if first else cost.ahead,
            out=cost.out if last < len(self.operators) else back,
            sums=sums, norm=norm, update=parameters / self.updated * 1000,
            reserved=cost.reserved + beyond, beyond=beyond,
        )  # fmt: skip

    def _summed(self, stage: Stage, first: int, micro: int) -> list[tuple[float, int]]:
        """MB of gradients that are added up at once, and over how many replicas."""
        columns = self.columns(stage, first, micro)[WEIGHTS]
        if stage.uniform:
            return [(int(columns.sum()) / MB, stage.dp[0])]
        dps = np.frombuffer(stage.dp, dtype=np.uint8)
        return [(int(columns[dps == dp].sum()) / MB, dp) for dp in sorted(set(stage.dp))]

    def _recomputed(self, stage: Stage, first: int, columns: np.ndarray) -> tuple[int, int, int]:
        """As `Costs._recomputed`. A segment is computed again up to what backward passes read: not
        its last operators, where these read none that they put out."""
        again, saved, peak = super()._recomputed(stage, first, columns)
        flags = np.frombuffer(stage.recompute, dtype=np.uint8).astype(bool)
        last = first + len(flags)
        ends = np.append(~flags[1:] | self.starts_layer[first + 1 : last], True)
        free = flags & ends & self._idle[first:last]
        before = np.append(free[1:] & self._nothing[first + 1 : last], False)
        free |= before & flags & ~ends & self._idle[first:last]
        return again - int(columns[FORWARD] @ free), saved, peak

    def least_again(self) -> np.ndarray:
        """As `Costs.least_again`."""
        before = self._idle & np.append((self._nothing | self.starts_layer)[1:], False)
        return 1.0 - np.array([before, self._idle])

    def scratch(self, reserved: np.ndarray) -> float:
        """As `Costs.scratch`, of all operators: one pass works at a time."""
        return reserved.max()

    def _sum(self, size: float, count: int, stride: int) -> float:
        """Milliseconds of a sum of MB over so many devices, of which one is `stride` after the
        other: as profiled of these, else of neighbours, else by a ring over links of a node."""
        for curve in (self._curve("all_reduce", count, stride), self._curve("all_reduce", count)):
            if curve is not None:
                return _on(curve, size)
        return 2 * (count - 1) * self.message(size / count, across=False)

    def message(self, size: float, across: bool) -> float:
        """As `Costs.message`, by the bandwidth between those of the sizes around it."""
        if size <= 0:
            return 0.0
        speeds = self.database.inter if across else self.database.intra
        return size / float(np.interp(log2(size), np.arange(len(speeds)), speeds))

    def _ahead(self, name: str, count: int, size: float) -> float:
        """As `Costs._ahead`; a gather by a device's share."""
        return self._collective(name, count, size / count if name == "all_gather" else size)

    def _collective(self, name: str, count: int, size: float) -> float:
        """As `Costs._collective`, between profiled sizes; larger ones at the largest's rate."""
        if not name:
            return 0.0
        if (curve := self._curve(name, count)) is None:
            piece = size if name == "all_gather" else size / count
            return (count - 1) * self.message(piece, across=False)
        return _on(curve, size)

    def _curve(self, name: str, count: int, stride: int = 1) -> Curve | None:
        key, database = (name, count, stride), self.database
        if key not in self._curves:
            near = database.collectives.get((name, count), {})
            found = near if stride == 1 else database.strided.get(key, {})
            rows = np.array(sorted((mb, ms) for mb, ms in found.items() if ms < FAILED_MS))
            self._curves[key] = (rows[:, 0], rows[:, 1]) if len(rows) else None
        return self._curves[key]


def _on(curve: Curve, size: float) -> float:
    """Milliseconds of MB."""
    sizes, times = curve
    beyond = max(1.0, size / max(sizes[-1], 1.0))
    return float(np.interp(size, sizes, times)) * beyond


def _shape(cost: StageCost) -> tuple[float, float, float, float, float, float]:
    """Forward pass, backward pass, a message into the stage, and what is done once an iteration."""
    back = cost.backward + cost.recompute + cost.reshard - cost.ahead
    return (
        cost.forward + cost.ahead,
        back,
        cost.into - cost.ahead,
        cost.sums,
        cost.norm,
        cost.update,
    )


def _fragments(normal: float) -> float:
    return min(normal / FRAGMENTS, FRAGMENT_MB)


def _groups(stage: Stage) -> int:
    """Groups of devices of which each device of a stage is in one."""
    uniform = stage.uniform
    whole = {"stage"} if not uniform and stage.gpus > 1 else set()
    shapes = zip(stage.tp, stage.dp, strict=True)
    for tp, dp in {next(shapes)} if uniform else {*shapes}:
        if tp > 1:
            whole.add("stage" if dp == 1 else f"row of {tp}")
        if dp > 1:
            whole.add("stage" if tp == 1 else f"replicas of {tp}")
    return len(whole)
