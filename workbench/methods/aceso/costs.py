"""Time and memory of a stage and of a plan, by the published model of Aceso (EuroSys'24 artifact).

A stage's time for a micro-batch is the sum of its operators' forward and backward passes, of what
is recomputed, of its messages and of the collectives where layouts change: all in a row. The
iteration lasts as long as its slowest stage, all micro-batches but one, and one pass of one through
all stages. Sums of gradients between replicas, updates and tied embeddings are left out.

Memory is weights, gradients, masters and states, activations of the micro-batches in flight, those
of the current one, and what the allocator reserves beyond. Times and sizes are sums of whole
numbers (database.py). A run of operators that are alike costs two reads of running sums, however
long it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import log2
from typing import ClassVar, NamedTuple

import numpy as np

from workbench.methods.aceso.database import (
    ACTIVATIONS,
    BACKWARD,
    BWD_RESERVED,
    FORWARD,
    FWD_RESERVED,
    INPUT,
    OUTPUT,
    UNIT,
    WEIGHTS,
    Database,
    Variant,
)
from workbench.methods.aceso.plan import Plan, Stage
from workbench.model.operators import Factors, OperatorList

HALVES = 2
"""Sizes are kept in halves of the database's unit, since some activations count one and a half."""
MB = UNIT * HALVES
NS_OF_MS = 1e6
UNKNOWN_MS = 1e5
"""Of a collective of a size that was not measured."""
PROFILED = 8
"""Column of activations as they were profiled, beside the corrected ones."""
COLUMNS = 9
NEVER = 10**14
"""Time and size of an operator that ran out of memory, or was not profiled: no plan has it."""
MOST_KEPT = 2 * 10**7
"""Operators of all stages whose costs are remembered."""


class StageCost(NamedTuple):
    """Of one stage: milliseconds of a micro-batch, and MB of a device."""

    forward: float
    backward: float
    recompute: float
    into: float
    """Of the message that comes, and of forward collectives between layouts."""
    out: float
    """Of the message that goes, and of backward collectives between layouts."""
    reshard: float
    """Of collectives between layouts; part of `into` and `out`."""
    weights: float
    input: float
    """Activations of one micro-batch: the stage's input, which is kept."""
    kept: float
    """Activations of one micro-batch that are kept, less what is recomputed."""
    peak_recompute: float
    """The most that is made again at a time."""
    reserved: float
    state: float
    """Weights, gradients, masters and optimizer states."""
    in_flight: float
    ahead: float = 0.0
    """Of forward collectives between layouts; part of `into`."""
    sums: float = 0.0
    """Once an iteration: sums of gradients over replicas, and over copies of a tied weight."""
    norm: float = 0.0
    """Once an iteration: the norm of the gradients, and clipping."""
    update: float = 0.0
    """Once an iteration: the optimizer's step."""
    beyond: float = 0.0
    """Fragments of the allocator, and buffers of libraries; part of `reserved`."""

    @property
    def time(self) -> float:
        """Of a micro-batch, in ms."""
        return self.forward + self.backward + self.into + self.out + self.recompute

    @property
    def peak(self) -> float:
        """Of the current micro-batch, in MB."""
        return self.input + self.kept + self.peak_recompute

    @property
    def normal(self) -> float:
        """Memory without what is reserved beyond, in MB."""
        return self.state + self.in_flight + self.peak

    @property
    def memory(self) -> float:
        """In MB."""
        return self.normal + self.reserved

    @property
    def tensors(self) -> float:
        """Memory of tensors alone, in MB."""
        return self.memory - self.beyond


class Share(NamedTuple):
    """A stage's part of an iteration, in ms: all have `once`, and the slowest one `steady`, too."""

    steady: float
    """All micro-batches but the one that `once` is of."""
    once: float
    link: float | None = None
    """Both messages of a micro-batch over the link before the stage, where passes hide them."""
    back: float = 0.0
    """Backward pass, and its message to the stage before."""
    sums: float = 0.0
    """What begins when the stage's backward passes have ended."""


class PlanCost(NamedTuple):
    """Of a plan: each stage's cost, and its milliseconds of an iteration."""

    stages: tuple[StageCost, ...]
    times: tuple[float, ...]
    batches: float
    """Micro-batches of an iteration."""

    @property
    def time(self) -> float:
        """Of an iteration, in ms: its slowest stage's."""
        return max(self.times)

    @property
    def memory(self) -> float:
        """Of the fullest stage, in MB."""
        return max(stage.memory for stage in self.stages)


class Costs:
    """The cost of any stage of one model, from one database."""

    hides: ClassVar[bool] = False
    """Whether messages lie beside passes."""
    reserves_weights: ClassVar[bool] = True
    """Whether what is reserved is no less than the weights."""

    def __init__(
        self, operators: OperatorList, database: Database, *, half: bool, per_node: int
    ) -> None:
        self.operators, self.database, self.per_node = operators, database, per_node
        # Bytes of masters and of optimizer states, each to one byte of weights.
        self.masters, self.states = (2, 4) if half else (0, 2)
        self.starts_layer = np.array([o.starts_layer for o in operators.operators])
        self.plain = np.array([o.kept == 1.0 for o in operators.operators])
        self.rows = np.array(operators.rows)
        self.kept = np.array([round(HALVES * o.kept) for o in operators.operators])
        self._tables: dict[Variant, tuple[np.ndarray, np.ndarray]] = {}
        self._known: dict[tuple[object, ...], StageCost] = {}
        self._layouts: dict[tuple[int, int, int, int, int], Factors] = {}

    def table(self, samples: int, tp: int, algo: int) -> tuple[np.ndarray, np.ndarray]:
        """[columns, operators] of a variant, and running sums of it. Activations are corrected."""
        key = (samples, tp, algo)
        if key not in self._tables:
            count = len(self.operators)
            rows = self.database.rows.get(key)
            if rows is None:
                made = np.full((COLUMNS, count), NEVER, dtype=np.int64)
            else:
                made = rows[[*range(PROFILED), ACTIVATIONS]][:, self.rows]
                never = made[FORWARD] < 0
                made[ACTIVATIONS] *= self.kept
                made[[INPUT, OUTPUT, WEIGHTS, FWD_RESERVED, BWD_RESERVED, PROFILED]] *= HALVES
                made[:, never] = NEVER
            sums = np.zeros((COLUMNS, count + 1), dtype=np.int64)
            np.cumsum(made, axis=1, out=sums[:, 1:])
            self._tables[key] = made, sums
        return self._tables[key]

    def plan(self, plan: Plan) -> PlanCost:
        """Of all stages, and of the iteration."""
        before, found = 0, []
        for index, stage in enumerate(plan.stages):
            found.append(self.of_stage(plan, index, before))
            before += stage.gpus
        batches = self.batches(plan.subject.batch, plan.micro)
        return PlanCost(tuple(found), tuple(self.times(found, batches)), batches)

    def batches(self, batch: int, micro: int) -> float:
        """Micro-batches of an iteration; what is left of the batch is not counted."""
        return batch // micro

    def turns(self, behind: int, micro: int) -> int:
        """Micro-batches whose activations a stage keeps, with `behind` stages after it."""
        return behind + 1

    def times(self, stages: Sequence[StageCost], batches: float) -> list[float]:
        """Milliseconds of an iteration by stage; the iteration takes as long as the slowest."""
        times = [each.time for each in stages]
        once = sum(times)
        return [each * (batches - 1) + once for each in times]

    def share(self, cost: StageCost, behind: int, batches: float) -> Share:
        """A stage's part of an iteration, in which `behind` stages follow it."""
        return Share(cost.time * (batches - 1), cost.time)

    def room(self, left: float) -> float:
        """MB for tensors where so many are left beside reserved ones."""
        return left

    def excess(self, cost: StageCost, limit: float) -> int:
        """Parts of bytes that a stage must save to fit into `limit` MB; 0 or less where it fits."""
        return round((cost.memory - limit) * MB)

    def of_stage(self, plan: Plan, index: int, before: int) -> StageCost:
        """Of a plan's stage, with as many devices `before` it."""
        stage = plan.stages[index]
        after = before + stage.gpus
        return self.stage(
            stage, plan.starts[index], plan.micro, behind=len(plan.stages) - 1 - index,
            from_node=before > 0 and before % self.per_node == 0,
            to_node=after % self.per_node == 0,
        )  # fmt: skip

    def stage(
        self, stage: Stage, first: int, micro: int, *, behind: int, from_node: bool = False,
        to_node: bool = False,
    ) -> StageCost:  # fmt: skip
        """Of a stage that begins with operator `first`, with `behind` micro-batches in flight
        beside the current one; `from_node`, `to_node`: its messages cross nodes."""
        key = (stage, first, micro, behind, from_node, to_node)
        if (known := self._known.get(key)) is None:
            if len(self._known) * len(self.operators) >= MOST_KEPT:
                self._known.clear()
            known = self._stage(stage, first, micro, behind, from_node, to_node)
            self._known[key] = known
        return known

    def _stage(
        self, stage: Stage, first: int, micro: int, behind: int, from_node: bool, to_node: bool
    ) -> StageCost:
        last = first + len(stage.tp)
        totals, columns = self._sums(stage, first, last, micro)
        recompute = saved = peak = 0
        if any(stage.recompute):
            recompute, saved, peak = self._recomputed(stage, first, columns)
        arrives, leaves = int(columns[INPUT, 0]), self._leaves(stage, first, last, micro)
        in_ms = self.message(arrives / MB, from_node)
        out_ms = self.message(leaves / MB, to_node)
        ahead, back = self._resharding(stage, first, columns)
        weights = int(totals[WEIGHTS])
        most = int(self.scratch(columns[[FWD_RESERVED, BWD_RESERVED]]))
        kept = int(totals[ACTIVATIONS]) - saved
        return StageCost(
            forward=int(totals[FORWARD]) / NS_OF_MS, backward=int(totals[BACKWARD]) / NS_OF_MS,
            recompute=recompute / NS_OF_MS, into=in_ms + ahead, out=out_ms + back,
            reshard=ahead + back, weights=weights / MB, input=arrives / MB, kept=kept / MB,
            peak_recompute=peak / MB, reserved=max(most, weights * self.reserves_weights) / MB,
            state=weights * (2 + self.masters + self.states) / MB,
            in_flight=(arrives + kept) * (self.turns(behind, micro) - 1) / MB, ahead=ahead,
        )  # fmt: skip

    def scratch(self, reserved: np.ndarray) -> float:
        """Of a stage's operators, whose forward and backward passes reserve so much [2, operators]:
        the most of all but the last one."""
        return reserved[:, :-1].max(axis=1).sum() if reserved.shape[1] > 1 else 0.0

    def _sums(
        self, stage: Stage, first: int, last: int, micro: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Totals by column, and [columns, operators]."""
        if stage.uniform:
            made, sums = self.table(micro // stage.dp[0], stage.tp[0], stage.algo[0])
            return sums[:, last] - sums[:, first], made[:, first:last]
        columns = self.columns(stage, first, micro)
        return columns.sum(axis=1), columns

    def columns(self, stage: Stage, first: int, micro: int) -> np.ndarray:
        """[columns, operators] of a stage."""
        if stage.uniform:
            made, _ = self.table(micro // stage.dp[0], stage.tp[0], stage.algo[0])
            return made[:, first : first + len(stage.tp)]
        parts, begin, count = [], 0, len(stage.tp)
        variants = list(zip(stage.dp, stage.tp, stage.algo, strict=True))
        for end in range(1, count + 1):
            if end == count or variants[end] != variants[begin]:
                dp, tp, algo = variants[begin]
                made, _ = self.table(micro // dp, tp, algo)
                parts.append(made[:, first + begin : first + end])
                begin = end
        return np.concatenate(parts, axis=1)

    def _recomputed(self, stage: Stage, first: int, columns: np.ndarray) -> tuple[int, int, int]:
        flags = np.frombuffer(stage.recompute, dtype=np.uint8)
        saved, peak = self.saved(flags, columns[ACTIVATIONS], first)
        return int(columns[FORWARD] @ flags), saved, peak

    def saved(self, flags: np.ndarray, sizes: np.ndarray, first: int) -> tuple[int, int]:
        """Activations that need not be kept, and the most that is made again at a time.

        An operator's are made again where it and the next one are recomputed. A layer's start
        keeps its input: it ends a segment, and the operator before keeps its output, unless that
        counts one and a half times, or not at all.
        """
        last = first + len(flags)
        both = flags[:-1] & flags[1:]
        ends = self.starts_layer[first + 1 : last] & self.plain[first : last - 1]
        held = sizes[:-1] * both
        saved = int(held[~ends].sum())
        sums = np.concatenate(([0], np.cumsum(held)))
        cuts = np.flatnonzero((both == 0) | ends) + 1
        bounds = np.concatenate(([0], cuts, [len(held)]))
        return saved, int(np.diff(sums[bounds]).max())

    def _leaves(self, stage: Stage, first: int, last: int, micro: int) -> int:
        """Size of a stage's output: the published model looks it up with its first tp."""
        made, _ = self.table(micro // stage.dp[-1], stage.tp[0], stage.algo[-1])
        return int(made[OUTPUT, last - 1])

    def message(self, size: float, across: bool) -> float:
        """Milliseconds of a message of MB. The place in the table of bandwidths is the published
        one: a small message counts from the table's end."""
        if size <= 0:
            return 0.0
        speeds = self.database.inter if across else self.database.intra
        place = int(log2(size))
        place = max(min(place - (place >= 1), len(speeds) - 1), -len(speeds))
        return size / speeds[place]

    def _resharding(self, stage: Stage, first: int, columns: np.ndarray) -> tuple[float, float]:
        """Milliseconds of collectives between layouts, forward and backward."""
        ahead = back = 0.0
        if not self.operators.reshards or stage.gpus == 1:
            return ahead, back
        if stage.uniform and stage.algo[0] == 0:
            return ahead, back  # the usual partitions of neighbours fit each other
        tp, dp, algo = stage.tp, stage.dp, stage.algo
        for i in range(1, len(tp)):
            left = self._layout(first + i - 1, 1, algo[i - 1], tp[i - 1], dp[i - 1])
            right = self._layout(first + i, 0, algo[i], tp[i], dp[i])
            if left != right:
                forward, backward, count = change(left, right)
                size = int(columns[INPUT, i]) / MB
                ahead += self._ahead(forward, count, size)
                back += self._collective(backward, count, size)
        return ahead, back

    def _layout(self, index: int, side: int, algo: int, tp: int, dp: int) -> Factors:
        key = (index, side, algo, tp, dp)
        if (known := self._layouts.get(key)) is None:
            made = self.operators.operators[index].layout(side, algo=algo, tp=tp, dp=dp)
            self._layouts[key] = known = made
        return known

    def _ahead(self, name: str, count: int, size: float) -> float:
        """Milliseconds of a forward collective whose outcome is MB of a device: the published model
        looks up a gather by them, too, though each device brings but its share."""
        return self._collective(name, count, size)

    def _collective(self, name: str, count: int, size: float) -> float:
        if not name:
            return 0.0
        times = self.database.collectives.get((name, count), {})
        key = round(size)
        return times.get(key, times.get(key - 1, UNKNOWN_MS))


@cache
def change(left: Factors, right: Factors) -> tuple[str, str, int]:
    """Collectives, forward and backward, of devices that turn a layout into another; empty where
    each device cuts its own copy."""
    if left.replicas > right.replicas:
        return "", "all_gather", left.replicas // right.replicas
    for more, less in zip(left.split, right.split, strict=True):
        if more > less:
            if right.replicas > left.replicas:
                return "all_gather", "", more // less
            return "all_to_all", "all_to_all", more // less
    return "", "", 1
