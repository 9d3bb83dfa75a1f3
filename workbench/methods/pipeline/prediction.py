"""Predicted seconds of a step of a pipeline of some shape, without its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, Protocol

import numpy as np

from workbench.methods.pipeline.balance import Balance, Stages
from workbench.methods.pipeline.definition import Pipeline, as_recorded
from workbench.methods.pipeline.jitter import Jitter, Table
from workbench.methods.pipeline.orders import ORDERS, B, F, R, W, lists
from workbench.methods.pipeline.quick import Links, Messages, Rule, Timed, timeline
from workbench.methods.pipeline.steps import Loan, Sum, step_seconds
from workbench.profile.unit_costs import Sizes
from workbench.schedule.action import Kind
from workbench.schedule.event_loop import Contention
from workbench.schedule.plan import Candidate

MOST_COPIES = 16
"""Copies that get draws; the slowest of more is hardly slower."""
STEADY = 72
"""Micro-batches after which a step grows evenly with further ones, in pipelines of few stages."""
CHUNKS = 2
"""Stages of a position, in orders with several."""


class Network(Protocol):
    """Seconds of what is no pass, and of passes besides their own."""

    contention: Contention | None
    norm_s: float
    by_stage: bool
    """Whether gradients are added up a stage at once, when it has drained; else unit by unit."""

    def pass_seconds(self, alone: float) -> float:
        """Seconds of a unit's pass that takes `alone` by itself."""

    def messages(
        self, nbytes: Sequence[int], positions: Sequence[int], replicas: int
    ) -> Sequence[Messages]:
        """Messages of so many bytes between stages at these positions, of each copy; one of copies
        that are alike."""

    def message_seconds(self, nbytes: int) -> float:
        """Seconds of a message between any two stages."""

    def sum_seconds(self, nbytes: int, replicas: int) -> float:
        """Seconds in which so many bytes are added up over copies."""

    def update_seconds(self, unit: int) -> float:
        """Seconds of an update on the device."""

    def lacks(self, row: Candidate) -> str:
        """Why nothing is said of a shape; empty where it is."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about shapes."""

    sizes: Sizes
    units: int
    ranks: int
    """Slots: processes that there may be."""
    batch: int
    micro_sizes: Sequence[int]
    """Samples of the micro-batches that were profiled, or of the one that is wanted."""
    device_bytes: int
    orders: Sequence[str]
    activations: Literal["auto", "keep", "recompute"] = "auto"
    """Treatment of activations in orders whose lists say nothing about it."""
    chosen: bool = True
    """Whether `micro_sizes` leaves the choice of one."""
    replicas: int | None = None
    """Where they are given."""
    stages: Stages = ()
    """Units of each stage, where they are given."""
    clipped: bool = True
    recorded_below_s: float = 0.0
    """Blocks are recorded where their forward passes take less than so many seconds."""


class Prediction:
    """Steps of a pipeline that is not cut yet. Where its micro-batches are many, pipelines of two
    smaller numbers of them are timed, between which a step grows as it does with all further ones.
    """

    def __init__(
        self, lines: Sequence[Pipeline], network: Network, sizes: Sizes, units: int, micros: int = 0
    ) -> None:
        """`lines`: the pipeline itself, or the two of fewer micro-batches than its `micros`."""
        self._lines, self._network, self._sizes, self._units = lines, network, sizes, units
        self._micros = micros or lines[-1].micros
        self.balance = Balance(lines[-1], sizes, units, self._micros)

    @classmethod
    def of(cls, question: Question, network: Network, row: Candidate) -> Prediction:
        """Steps of a shape."""
        half = row.stages * ceil(max(STEADY, 2 * row.stages) / row.stages)
        few = row.microbatches <= 2 * half
        counts = [row.microbatches] if few else [half, 2 * half]
        lines = [line_of(question, row, micros=count) for count in counts]
        return cls(lines, network, question.sizes, question.units, row.microbatches)

    def seconds(self, stages: Stages, jitter: Jitter | None = None) -> float:
        """Seconds of a step with these stages; with jitter of one seed."""
        first, *more = (self.step(replace(line, stages=stages), jitter) for line in self._lines)
        if not more:
            return first
        few, many = (line.micros for line in self._lines)
        return more[0] + (self._micros - many) * ((more[0] - first) / (many - few))

    def step(self, line: Pipeline, jitter: Jitter | None = None) -> float:
        """Seconds of a step of one line."""
        network, turns = self._network, R in line.kinds
        seconds = self.balance.pass_seconds(line.stages, network.pass_seconds)
        nbytes = [self._sizes.input_bytes(each.start, line.micro_size) for each in line.stages[1:]]
        rule = Rule(turns=turns, early=turns)
        copies = [
            timeline(
                line.passes, seconds, messages, rule, self._uneven(line, seconds, draws),
                network.contention, line.positions,
            )
            for messages, draws in self._copies(line, nbytes, jitter)
        ]  # fmt: skip
        return self._ended(line, copies)

    def _copies(
        self, line: Pipeline, nbytes: Sequence[int], jitter: Jitter | None
    ) -> Iterator[tuple[Messages, Table | None]]:
        """Messages and draws of each copy; without jitter only those that take longest."""
        messages = self._network.messages(nbytes, line.positions, line.replicas)
        if jitter is None:
            yield max(messages, key=_total), None
            return
        for copy in range(min(line.replicas, MOST_COPIES)):
            draws = jitter.draws(len(line.stages), line.micros, copy)
            yield messages[copy % len(messages)], draws

    def _uneven(
        self, line: Pipeline, seconds: list[dict[Kind, float]], draws: Table | None
    ) -> Table | None:
        """Draws, and by how much passes over a sample less are shorter."""
        spans = (line.span(0, micro) for micro in range(line.micros))
        short = np.array([end - first < line.micro_size for first, end in spans])
        if not short.any():
            return draws
        found = draws or Jitter().draws(len(seconds), line.micros)
        smaller = replace(line, micro_size=line.micro_size - 1)
        balance = Balance(smaller, self._sizes, self._units)
        less = balance.pass_seconds(line.stages, self._network.pass_seconds)
        for stage, (one, full) in enumerate(zip(less, seconds, strict=True)):
            for kind in full:
                found[kind][stage, short] += one[kind] - full[kind]
        return found

    def _ended(self, line: Pipeline, copies: Sequence[Sequence[Timed]]) -> float:
        """Seconds of a step with sums, norm and updates after its passes."""
        network, sizes, replicas = self._network, self._sizes, line.replicas
        stage_of = {unit: stage for stage, units in enumerate(line.stages) for unit in units}
        back = W if W in line.kinds else B
        sums: list[list[Sum]] = []
        updates, loans = [], []

        def added(nbytes: int) -> float:
            return network.sum_seconds(nbytes, replicas) if replicas > 1 else 0.0

        for stage, units in enumerate(line.stages):
            left, late, updated, passed = 0.0, 0.0, 0.0, 0.0
            sums.append([])
            for unit in units:
                nbytes = sizes.visit_bytes(unit)
                if not network.by_stage:
                    sums[-1].insert(0, Sum(unit=unit, before_s=left, seconds=added(nbytes)))
                last = stage == len(line.stages) - 1
                taken = self.balance.unit_seconds(unit, last, network.pass_seconds)
                left += taken[back]
                updated += network.update_seconds(unit)
                late = max(late, updated - passed)
                passed += taken[F]
                owner = sizes.owner(unit)
                if line.home_of[owner] != line.home_of[unit]:
                    lent = network.message_seconds(nbytes - sizes.weight_bytes(unit))
                    pair = stage, stage_of[owner]
                    loans.append(Loan(unit=unit, owner=owner, stages=pair, seconds=lent))
            if network.by_stage:
                nbytes = sum(map(sizes.visit_bytes, units))
                sums[-1].append(Sum(unit=units.start, seconds=added(nbytes)))
            updates.append(late)
        norm_s = network.norm_s
        return step_seconds(copies, sums, norm_s=norm_s, updates_s=updates, loans=loans)


def _total(messages: Messages) -> float:
    """Seconds of a message over each link."""
    if isinstance(messages, Links):
        return sum(messages.seconds) + sum(messages.wire_s)
    return sum(messages)


def line_of(
    question: Question, row: Candidate, stages: Stages = (), micros: int | None = None
) -> Pipeline:
    """The pipeline of a shape, with as many micro-batches as it has, or fewer, full ones."""
    chunks = CHUNKS if ORDERS[row.order].chunked else 1
    share, every = ceil(question.batch / row.replicas), micros in (None, row.microbatches)
    line = Pipeline(
        method=row.order,
        passes=lists(row.order, row.stages, micros or row.microbatches, chunks),
        stages=stages,
        micro_size=ceil(share / row.microbatches),
        samples=share if every else 0,
        replicas=row.replicas,
        activations=row.activations,
        clipped=question.clipped,
    )
    return as_recorded(line, question.sizes, question.units, question.recorded_below_s)
