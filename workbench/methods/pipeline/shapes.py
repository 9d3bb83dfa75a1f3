"""The shape of a pipeline: how many stages, copies and samples of a micro-batch, in which order.

All shapes are looked at that the ranks allow: P stages of D copies with P x D <= ranks, and
micro-batches of the profiled sizes down to one sample, N = ceil(ceil(B / D) / m) of them. A step of
each takes milliseconds to foresee (quick.py, steps.py), and what it needs of a device is a formula
(balance.py). Whoever asks proves the best of them, in the order of their steps, until no other is
within `MARGIN` of the fastest that was proved, or `TRIALS` fit. Foreseen steps are too long by
1.1 % at most (tests/unit/pipeline/test_shapes.py), so a shape that is left out is slower. They may
be too short where sums take cores from passes, which costs a proof and no plan. The fastest wins;
of equals the one with fewer ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal, Protocol

from workbench.core.bytesize import format_bytes
from workbench.core.spec import MOST_PASSES
from workbench.methods.pipeline.balance import Balance, Stages
from workbench.methods.pipeline.draft import Pipeline
from workbench.methods.pipeline.orders import ORDERS, B, F, W, lists
from workbench.methods.pipeline.quick import Messages, Rule, timeline
from workbench.methods.pipeline.steps import Ending, Loan, Sum, step_seconds
from workbench.profile.unit_costs import Sizes
from workbench.schedule.event_loop import Contention
from workbench.schedule.plan import Candidate

MARGIN, TRIALS = 0.04, 12
CHUNKS = 2
"""Stages of a rank, in orders with several."""


class Network(Protocol):
    """Seconds of what is no pass, and of passes besides their own."""

    contention: Contention | None
    norm_s: float

    def pass_seconds(self, alone: float) -> float:
        """Seconds of a unit's pass that takes `alone` by itself."""

    def messages(self, nbytes: Sequence[int], replicas: int) -> Sequence[Messages]:
        """Messages of so many bytes between stages, for each copy whose links are unlike others."""

    def message_seconds(self, nbytes: int) -> float:
        """Seconds of a message between any two stages."""

    def sum_seconds(self, nbytes: int, replicas: int) -> float:
        """Seconds in which so many bytes are added up over copies."""

    def update_seconds(self, parameters: int) -> float:
        """Seconds of an update on the device."""

    def lacks(self, stages: int, replicas: int) -> str:
        """Why nothing can be said of such a shape; empty where it can."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked."""

    sizes: Sizes
    units: int
    ranks: int
    """Slots: processes that there may be."""
    batch: int
    micros: Sequence[int]
    """Samples of the micro-batches that were profiled, or of the one that is wanted."""
    device_bytes: int
    orders: Sequence[str]
    activations: Literal["auto", "keep", "recompute"] = "auto"
    """Fate of activations in orders whose lists say nothing about it."""
    chosen: bool = True
    """Whether `micros` leaves the choice of one."""
    replicas: int | None = None
    """Where they are given."""
    stages: Stages = ()
    """Units of each stage, where they are given."""
    clipped: bool = True


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The proof of a shape."""

    device_bytes: int
    seconds: float | None = None
    """Of a step; None where it is refused."""
    reason: str = ""
    """Why it is."""
    made: Any = None
    """What the prover wants to have back of the shape that is chosen."""


@dataclass(kw_only=True)
class _Look:
    """A candidate, and its cuts that are still to be tried: (seconds, bytes, pipeline)."""

    row: Candidate
    cuts: list[tuple[float, int, Pipeline]] = field(default_factory=list)
    made: Any = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The answer: all candidates, the one that is chosen first, those refused last."""

    candidates: tuple[Candidate, ...]
    made: Any = None
    """What the prover made of the first one; None where nothing fits."""


def search(
    question: Question,
    network: Network,
    prove: Callable[[Pipeline, float], Verdict],
    *,
    every_depth: bool = False,
) -> Found:
    """Look at all shapes; `prove` is told a pipeline, and its step as foreseen. `every_depth` asks
    for the best of each number of stages to be proved, too."""
    looks = [*_looks(question, network)]
    trials = [(cut, look) for look in looks for cut in look.cuts]
    trials.sort(key=lambda each: (each[0][0], each[1].row.ranks, each[0][1]))
    best, depths = float("inf"), set()
    fitted = 0
    for (seconds, _, line), look in trials:
        far = seconds * (1 - MARGIN) > best or fitted >= TRIALS
        if far and not (every_depth and line.ranks not in depths):
            continue
        if look.row.proved and not look.row.reason:  # with stages that take more memory, and fit
            continue
        verdict = prove(line, seconds)
        row = replace(look.row, proved=True, device_bytes=verdict.device_bytes)
        if verdict.reason:
            look.row = replace(row, reason=verdict.reason)
            continue
        look.row, look.made = replace(row, seconds=verdict.seconds, reason=""), verdict.made
        best = min(best, verdict.seconds)
        depths.add(line.ranks)
        fitted += 1
    looks.sort(key=lambda each: _merit(each.row))
    return Found(
        candidates=tuple(each.row for each in looks), made=looks[0].made if looks else None
    )


def _merit(row: Candidate) -> tuple:
    """What was proved comes before what was foreseen: that is further from the best."""
    seconds = float("inf") if row.seconds is None else row.seconds
    return bool(row.reason), not row.proved, seconds, row.ranks, row.stages


def refusal(batch: int, replicas: int, micro: int) -> str:
    """Why a batch cannot be divided so; empty where it can."""
    if batch < replicas:
        return f"a batch of {batch} leaves some of {replicas} replicas without a sample"
    if batch % (replicas * micro):
        return (
            f"a batch of {batch} does not divide into micro-batches of {micro} on each of "
            f"{replicas} replicas"
        )
    return ""


def micro_sizes(question: Question, replicas: int) -> list[int]:
    """Samples of the micro-batches to try with so many copies: 1, 2, 4, ... and what was profiled,
    up to the largest of these, or to the share of a copy."""
    if not question.chosen:
        return [*question.micros]
    most = min(max(question.micros), ceil(question.batch / replicas))
    powers = (1 << k for k in range(most.bit_length()))
    return sorted({each for each in (*powers, *question.micros, most) if each <= most})


def _looks(question: Question, network: Network) -> Iterator[_Look]:
    """All shapes: refused, or with the cuts that may be tried."""
    for row in _rows(question):
        reason = _reason(question, network, row)
        if reason:
            yield _Look(row=replace(row, reason=reason))
            continue
        chunks = CHUNKS if ORDERS[row.order].chunked else 1
        line = Pipeline(
            method=row.order,
            passes=lists(row.order, row.stages, row.microbatches, chunks),
            stages=question.stages,
            micro=row.micro,
            replicas=row.replicas,
            activations=row.activations,
            clipped=question.clipped,
        )
        balance = Balance(line, question.sizes, question.units)
        cuts = [question.stages] if question.stages else balance.cuts(question.device_bytes)
        seen = []
        for stages in cuts:
            cut = replace(line, stages=stages)
            seen.append((foreseen(cut, balance, question, network), balance.most(stages), cut))
        if seen:
            seconds, nbytes, _ = min(seen, key=lambda each: each[0])
            yield _Look(row=replace(row, seconds=seconds, device_bytes=nbytes), cuts=seen)
            continue
        nbytes = balance.most(balance.best())
        told, there = format_bytes(nbytes), format_bytes(question.device_bytes)
        reason = f"about {told} of device memory are needed, {there} are there"
        yield _Look(row=replace(row, device_bytes=nbytes, reason=reason))


def _rows(question: Question) -> Iterator[Candidate]:
    """Shapes that the ranks allow. With one stage all orders are alike, and called as the first."""
    most = min(question.ranks, question.units)
    depths = [len(question.stages)] if question.stages else range(1, most + 1)
    for order, stages in ((order, stages) for order in question.orders for stages in depths):
        copies = range(1, question.ranks // stages + 1)
        if question.replicas is not None:
            copies = [question.replicas] if question.replicas in copies else []
        kinds = _fates(question, order, stages)
        if stages == 1 and order != question.orders[0]:
            kinds = [kind for kind in kinds if kind == "checkpoint" and order == "1f1b"]
        for replicas in copies:
            for micro in micro_sizes(question, replicas):
                micros = ceil(ceil(question.batch / replicas) / micro)
                for kind in kinds:
                    yield Candidate(
                        order=order, stages=stages, replicas=replicas, micro=micro,
                        microbatches=micros, activations=kind,
                    )  # fmt: skip


def _fates(question: Question, order: str, stages: int) -> list[str]:
    """What may become of activations."""
    row = ORDERS[order]
    if row.recomputes:
        return ["recompute" if stages > 1 else "keep"]
    given = {"keep": ["keep"], "recompute": [row.again]}
    return given.get(question.activations, ["keep", row.again])


def _reason(question: Question, network: Network, row: Candidate) -> str:
    """Why a shape is not even looked at; empty where it is."""
    order, passes = ORDERS[row.order], question.units * row.microbatches
    if reason := refusal(question.batch, row.replicas, row.micro):
        return reason
    if passes > MOST_PASSES:
        return f"{passes} forward passes a step are more than can be planned, {MOST_PASSES}"
    if order.chunked and row.stages * CHUNKS > question.units:
        return f"{row.stages * CHUNKS} stages need a unit each, and the model has {question.units}"
    if order.chunked and row.microbatches % row.stages:
        return f"{row.microbatches} micro-batches are no multiple of {row.stages} ranks"
    if order.halved and not question.sizes.cost(question.units - 1, row.micro).input_half_s:
        return f"halves of backward passes were not profiled; a run of {row.order} does it"
    return network.lacks(row.stages, row.replicas)


def foreseen(line: Pipeline, balance: Balance, question: Question, network: Network) -> float:
    """Seconds of a step, without its schedule."""
    sizes, stages = question.sizes, line.stages
    seconds = balance.pass_seconds(stages, network.pass_seconds)
    nbytes = [sizes.input_bytes(stage.start, line.micro) for stage in stages[1:]]
    turns = line.ranks > 1 and ORDERS[line.method].recomputes
    copies = [
        timeline(
            line.passes, seconds, messages, Rule(turns=turns, early=turns),
            contention=network.contention,
        )
        for messages in network.messages(nbytes, line.replicas)
    ]  # fmt: skip
    return step_seconds(copies, ending(line, balance, question, network))


def ending(line: Pipeline, balance: Balance, question: Question, network: Network) -> Ending:
    """What comes after the passes of a step."""
    sizes, parameters = (
        question.sizes,
        [question.sizes.cost(unit, line.micro).parameters for unit in range(question.units)],
    )
    halved = ORDERS[line.method].halved
    stage_of = {unit: stage for stage, units in enumerate(line.stages) for unit in units}
    sums, updates, loans = [], [], []
    for stage, units in enumerate(line.stages):
        last = stage == len(line.stages) - 1
        taken = {u: balance.unit_seconds(u, last) for u in units}
        left, late, updated, passed = 0.0, 0.0, 0.0, 0.0
        of_stage: list[Sum] = []
        for unit in units:
            added = network.sum_seconds(sizes.visit_bytes(unit), line.replicas)
            of_stage.append(
                Sum(unit=unit, before_s=left, seconds=added if line.replicas > 1 else 0)
            )
            left += network.pass_seconds(taken[unit][W if halved else B])
            updated += network.update_seconds(parameters[unit])
            late = max(late, updated - passed)
            passed += network.pass_seconds(taken[unit][F])
            owner = sizes.owner(unit)
            if stage_of[owner] != stage:
                lent = sizes.visit_bytes(unit) - sizes.weight_bytes(unit)
                loans.append(
                    Loan(
                        unit=unit, owner=owner, stages=(stage, stage_of[owner]),
                        seconds=network.message_seconds(lent),
                    )
                )  # fmt: skip
        sums.append(of_stage[::-1])
        updates.append(late)
    return Ending(sums=sums, norm_s=network.norm_s, updates_s=updates, loans=loans)
