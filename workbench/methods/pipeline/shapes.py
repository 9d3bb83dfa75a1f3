"""The shape of a pipeline: how many stages, copies and samples of a micro-batch, in which order.

All shapes are looked at that the ranks allow: P stages of D copies with P x D <= ranks, and
micro-batches of the profiled sizes down to one sample, N = ceil(ceil(B / D) / m) of them. A step of
each takes milliseconds to foresee (quick.py, steps.py), and what it needs of a device is a formula
(balance.py). Whoever asks proves the best of them, in the order of their steps, until no other is
within `MARGIN` of the fastest that was proved, or `TRIALS` fit. Foreseen steps are too long by
2 % at most (tests/unit/pipeline/test_shapes.py), so a shape that is left out is slower. They may
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
from workbench.methods.pipeline.jitter import Jitter, Table
from workbench.methods.pipeline.orders import ORDERS, B, F, W, lists
from workbench.methods.pipeline.quick import Messages, Rule, timeline
from workbench.methods.pipeline.steps import Ending, Loan, Sum, step_seconds
from workbench.profile.unit_costs import Sizes
from workbench.schedule.event_loop import Contention
from workbench.schedule.plan import Candidate

MARGIN, TRIALS = 0.04, 12
MOST_COPIES = 16
"""Copies that get draws; the slowest of more is hardly slower."""
STEADY = 48
"""Micro-batches after which a step grows evenly with further ones, in pipelines of few stages."""
CHUNKS = 2
"""Stages of a rank, in orders with several."""


class Network(Protocol):
    """Seconds of what is no pass, and of passes besides their own."""

    contention: Contention | None
    norm_s: float

    def pass_seconds(self, alone: float) -> float:
        """Seconds of a unit's pass that takes `alone` by itself."""

    def messages(self, nbytes: Sequence[int], ranks: int, replicas: int) -> Sequence[Messages]:
        """Messages of so many bytes between stages, of each copy; one of copies that are alike.
        Stage s lies on rank s % ranks of its copy."""

    def message_seconds(self, nbytes: int) -> float:
        """Seconds of a message between any two stages."""

    def sum_seconds(self, nbytes: int, replicas: int) -> float:
        """Seconds in which so many bytes are added up over copies."""

    def update_seconds(self, unit: int) -> float:
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
    even: bool = True
    """Whether the batch must divide into equal micro-batches."""


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


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """Stages of a shape, foreseen."""

    stages: Stages
    seconds: float
    device_bytes: int


@dataclass(kw_only=True)
class _Look:
    """A shape, and its cuts that were not refused yet."""

    row: Candidate
    cuts: list[_Cut] = field(default_factory=list)
    made: Any = None

    def best(self) -> Candidate:
        """The shape with the fastest cut, as foreseen."""
        cut = min(self.cuts, key=lambda each: each.seconds)
        return replace(self.row, seconds=cut.seconds, device_bytes=cut.device_bytes)


@dataclass(frozen=True, kw_only=True)
class Found:
    """The answer: all candidates, the one that is chosen first, those refused last."""

    candidates: tuple[Candidate, ...]
    made: Any = None
    """What the prover made of the first one; None where nothing fits."""


Prover = Callable[[Candidate, Stages, float], Verdict]
"""(shape, its stages, seconds of a step as foreseen) -> its proof."""


def search(question: Question, network: Network, prove: Prover) -> Found:
    """Look at all shapes, and have the best proved."""
    looks = [*_looks(question, network)]
    trials = [(cut, look) for look in looks for cut in look.cuts]
    trials.sort(key=lambda each: (each[0].seconds, each[1].row.ranks, each[0].device_bytes))
    best, fitted = float("inf"), 0
    for cut, look in trials:
        if cut.seconds * (1 - MARGIN) > best or fitted >= TRIALS:
            break
        verdict = prove(look.row, cut.stages, cut.seconds)
        if verdict.reason:
            look.cuts.remove(cut)
            if look.made is None:
                refused = replace(
                    look.row, seconds=cut.seconds, device_bytes=verdict.device_bytes, proved=True,
                    reason=verdict.reason,
                )  # fmt: skip
                look.row = look.best() if look.cuts else refused
            continue
        fitted += 1
        best = min(best, verdict.seconds)
        if look.made is None or verdict.seconds < look.row.seconds:
            look.made = verdict.made
            look.row = replace(
                look.row, seconds=verdict.seconds, device_bytes=verdict.device_bytes, proved=True
            )
    for look in looks:  # foreseen to need a little too much, and too slow to be worth a proof
        row = look.row
        if look.made is None and not row.reason and row.device_bytes > question.device_bytes:
            look.row = _too_large(question, row, row.device_bytes)
    looks.sort(key=lambda each: _merit(each.row))
    return Found(
        candidates=tuple(each.row for each in looks), made=looks[0].made if looks else None
    )


def _merit(row: Candidate) -> tuple:
    """What was proved comes before what was foreseen: that is further from the best."""
    seconds = float("inf") if row.seconds is None else row.seconds
    return bool(row.reason), not row.proved, seconds, row.ranks, row.stages


def refusal(question: Question, replicas: int, micro: int) -> str:
    """Why a batch cannot be divided so; empty where it can."""
    batch = question.batch
    if batch < replicas:
        return f"a batch of {batch} leaves some of {replicas} replicas without a sample"
    if question.even and batch % (replicas * micro):
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
        lines = [line_of(question, row, micros=count) for count in _counts(row)]
        balance = Balance(lines[-1], question.sizes, question.units, row.microbatches)
        cuts = [question.stages] if question.stages else balance.cuts(question.device_bytes)
        seen = [
            _Cut(
                stages=stages,
                seconds=_seconds(row, lines, stages, balance, question, network),
                device_bytes=balance.most(stages),
            )
            for stages in cuts
        ]
        look = _Look(row=row, cuts=seen)
        if seen:
            look.row = look.best()
        else:
            look.row = _too_large(question, row, balance.most(balance.best()))
        yield look


def _too_large(question: Question, row: Candidate, nbytes: int) -> Candidate:
    told, there = format_bytes(nbytes), format_bytes(question.device_bytes)
    reason = f"about {told} of device memory are needed, {there} are there"
    return replace(row, device_bytes=nbytes, reason=reason)


def line_of(
    question: Question, row: Candidate, stages: Stages = (), micros: int | None = None
) -> Pipeline:
    """The pipeline of a shape, with as many micro-batches as it has, or fewer."""
    chunks = CHUNKS if ORDERS[row.order].chunked else 1
    return Pipeline(
        method=row.order,
        passes=lists(row.order, row.stages, micros or row.microbatches, chunks),
        stages=stages,
        micro=row.micro,
        replicas=row.replicas,
        activations=row.activations,
        clipped=question.clipped,
    )


def _counts(row: Candidate) -> list[int]:
    """How many micro-batches are looked at: all, or of many two smaller numbers, between which a
    step grows as it does with all further ones."""
    half = row.stages * ceil(max(STEADY, 2 * row.stages) / row.stages)
    return [row.microbatches] if row.microbatches <= 2 * half else [half, 2 * half]


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
    if reason := refusal(question, row.replicas, row.micro):
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


def foreseen(
    question: Question,
    network: Network,
    row: Candidate,
    stages: Stages,
    jitter: Jitter | None = None,
) -> float:
    """Seconds of a step of a shape, without its schedule; with jitter of one seed."""
    lines = [line_of(question, row, micros=count) for count in _counts(row)]
    balance = Balance(lines[-1], question.sizes, question.units, row.microbatches)
    return _seconds(row, lines, stages, balance, question, network, jitter)


def _seconds(
    row: Candidate,
    lines: Sequence[Pipeline],
    stages: Stages,
    balance: Balance,
    question: Question,
    network: Network,
    jitter: Jitter | None = None,
) -> float:
    """Seconds of a step, from those of lines with fewer micro-batches where there are two."""
    cut = [replace(line, stages=stages) for line in lines]
    steps = [_step(line, balance, question, network, jitter) for line in cut]
    if len(lines) == 1:
        return steps[0]
    each = (steps[1] - steps[0]) / (lines[1].micros - lines[0].micros)
    return steps[1] + (row.microbatches - lines[1].micros) * each


def _step(
    line: Pipeline,
    balance: Balance,
    question: Question,
    network: Network,
    jitter: Jitter | None,
) -> float:
    sizes, stages = question.sizes, line.stages
    seconds = balance.pass_seconds(stages, network.pass_seconds)
    nbytes = [sizes.input_bytes(stage.start, line.micro) for stage in stages[1:]]
    turns = line.ranks > 1 and ORDERS[line.method].recomputes
    rule = Rule(turns=turns, early=turns)
    copies = [
        timeline(line.passes, seconds, messages, rule, table, network.contention)
        for messages, table in _disturbed(network, nbytes, line, jitter)
    ]
    return step_seconds(copies, _ending(line, balance, question, network))


def _disturbed(
    network: Network, nbytes: Sequence[int], line: Pipeline, jitter: Jitter | None
) -> Iterator[tuple[Messages, Table | None]]:
    """Messages and draws of each copy: without jitter of those that are unlike, with it of
    `MOST_COPIES`."""
    messages = network.messages(nbytes, line.ranks, line.replicas)
    if jitter is None:
        yield from ((each, None) for each in dict.fromkeys(messages))
        return
    for copy in range(min(line.replicas, MOST_COPIES)):
        draws = jitter.draws(len(line.stages), line.micros, copy)
        yield messages[copy % len(messages)], draws


def _ending(line: Pipeline, balance: Balance, question: Question, network: Network) -> Ending:
    """What comes after the passes of a step."""
    sizes = question.sizes
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
            updated += network.update_seconds(unit)
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
