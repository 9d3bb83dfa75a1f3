"""The shape of a pipeline: how many stages, copies and samples of a micro-batch, in which order.

All shapes are compared that the ranks allow: P stages of D copies with P x D <= ranks, and
micro-batches of the profiled sizes down to one sample, N = ceil(ceil(B / D) / m) of them. A step of
each takes milliseconds to predict (prediction.py), and what it needs of a device is a formula
(balance.py). The best are proved, in the order of their steps, until no other is within `MARGIN` of
the fastest that was proved, or `TRIALS` fit. Predicted steps are too long by 2 % at most
(tests/unit/pipeline/test_shapes.py), so a shape that is left out is slower. They may be too short
where sums take cores from passes, which costs a proof and no plan. The fastest wins; of equals the
one with fewer ranks. Of more than `PRUNED_ABOVE` shapes, those are not predicted that cannot take
less than `PRUNED_FACTOR` times the seconds of one that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, inf
from typing import Any, NamedTuple

from workbench.core.bytesize import format_bytes
from workbench.methods.pipeline.balance import Stages
from workbench.methods.pipeline.orders import ORDERS
from workbench.methods.pipeline.prediction import CHUNKS, Network, Prediction, Question
from workbench.profile.units import HALVES
from workbench.schedule.plan import Candidate

MARGIN, TRIALS = 0.04, 12
PRUNED_ABOVE, PRUNED_FACTOR = 250, 1.3


class Cut(NamedTuple):
    """Stages of a shape, and what is predicted of them."""

    seconds: float
    device_bytes: int
    stages: Stages


Prover = Callable[[Candidate, Cut], tuple[Candidate, Any]]
"""Returns the shape with what was proved, or with the reason why it is refused; and what the prover
wants to have back if this shape is chosen."""


@dataclass(kw_only=True)
class Shape:
    """A candidate, with its cuts that were not refused yet."""

    row: Candidate
    cuts: list[Cut] = field(default_factory=list)
    made: Any = None
    """What the prover made of its fastest cut that fits."""

    @property
    def sort_key(self) -> tuple:
        """By which shapes are sorted."""
        row = self.row
        seconds = inf if row.seconds is None else row.seconds
        return bool(row.reason), seconds, row.ranks, row.stages

    def predict(self) -> None:
        """Enter what is predicted of the fastest cut."""
        cut = min(self.cuts)
        self.row = replace(self.row, seconds=cut.seconds, device_bytes=cut.device_bytes)

    def refuse(self, nbytes: int, there: int) -> None:
        """Refuse a shape that needs more than there is."""
        needed = f"about {format_bytes(nbytes)} of device memory are needed"
        reason = f"{needed}, {format_bytes(there)} are there"
        self.row = replace(self.row, device_bytes=nbytes, reason=reason)


def search(
    question: Question, network: Network, prove: Prover, factor: float = PRUNED_FACTOR
) -> tuple[tuple[Candidate, ...], Any]:
    """All shapes: the one that is chosen, which is the fastest of those that are proved, the others
    by their seconds, and those that are refused; and what the prover made of the first one, None
    where nothing fits."""
    found = [*all_shapes(question, network, factor)]
    trials = [(cut, shape) for shape in found for cut in shape.cuts]
    trials.sort(key=lambda each: (each[0].seconds, each[1].row.ranks, each[0].device_bytes))
    best, fitted = inf, 0
    for cut, shape in trials:
        if cut.seconds * (1 - MARGIN) > best or fitted >= TRIALS:
            break
        row, made = prove(shape.row, cut)
        if row.reason:
            shape.cuts.remove(cut)
            if shape.cuts and shape.made is None:
                shape.predict()
            elif shape.made is None:
                shape.row = replace(row, proved=True)
            continue
        fitted += 1
        best = min(best, row.seconds)
        if shape.made is None or row.seconds < shape.row.seconds:
            shape.row, shape.made = replace(row, proved=True), made
    if not fitted and any(shape.row.least for shape in found):
        return search(question, network, prove, inf)
    there = question.device_bytes
    for shape in found:  # predicted to need a little too much, and too slow to be worth a proof
        nbytes = shape.row.device_bytes or 0
        if shape.made is None and not shape.row.reason and nbytes > there:
            shape.refuse(nbytes, there)
    proved = (shape for shape in found if shape.made is not None)
    chosen = min(proved, key=lambda shape: shape.sort_key, default=None)
    found.sort(key=lambda shape: (shape is not chosen, shape.sort_key))
    return tuple(shape.row for shape in found), found[0].made if found else None


def all_shapes(question: Question, network: Network, factor: float = inf) -> Iterator[Shape]:
    """All shapes: refused, with the cuts that may be tried, or far slower than another one."""
    rows, least, best = [*_rows(question)], least_seconds(question), inf
    if many := len(rows) > PRUNED_ABOVE and factor < inf:
        rows.sort(key=least)
    there = question.device_bytes
    for row in rows:
        shape = Shape(row=row)
        if reason := _reason(question, row) or network.lacks(row):
            shape.row = replace(row, reason=reason)
        elif many and least(row) > factor * best:
            shape.row = replace(row, seconds=least(row), least=True)
        else:
            prediction = Prediction.of(question, network, row)
            balance = prediction.balance
            for stages in [question.stages] if question.stages else balance.cuts(there):
                cut = Cut(prediction.seconds(stages), balance.device_bytes(stages), stages)
                shape.cuts.append(cut)
            if shape.cuts:
                shape.predict()
                fits = (cut.seconds for cut in shape.cuts if cut.device_bytes <= there)
                best = min([best, *fits])
            else:
                shape.refuse(balance.device_bytes(balance.fastest()), there)
        yield shape


def least_seconds(question: Question) -> Callable[[Candidate], float]:
    """Of a shape, the seconds below which no step can be, whatever its cut, messages and order: the
    last stage waits for a micro-batch's way to it and back, another one for nobody but itself."""

    @cache
    def passes(samples: int) -> tuple[float, float]:
        """Seconds of passes of so many samples through all units, forward and backward, and forward
        again."""
        once = again = 0.0
        for unit in range(question.units):
            c = question.sizes.cost(unit, samples)
            r = c.as_recorded()
            forward = (c.forward_s, c.recompute_s, r.forward_s)
            backward = (c.backward_s, sum(c.halves.seconds), r.backward_s)
            again += min(filter(None, forward), default=0.0)
            once += min(filter(None, backward), default=0.0)
        return once + again, again

    def least(row: Candidate) -> float:
        micros, stages = row.microbatches, row.stages
        once, again = passes(ceil(question.batch / row.replicas) // micros or 1)
        if stages == 1 or ORDERS[row.order].chunked:
            return micros * once / stages
        others = micros / (stages - 1)  # times the seconds of all stages but the last
        if once and row.activations in ("recompute", "checkpoint"):
            others *= 1 + again / once
        last = max(0.0, once * (others - 1) / (micros - 1 + others))  # of a micro-batch, at best
        return micros * last + once - last

    return least


def _rows(question: Question) -> Iterator[Candidate]:
    """Shapes that the ranks allow. With one stage all orders are alike, and called as the first."""
    most = min(question.ranks, question.units)
    depths = [len(question.stages)] if question.stages else range(1, most + 1)
    for order, stages in ((order, stages) for order in question.orders for stages in depths):
        kinds = _treatments(question, order, stages)
        if stages == 1 and order != question.orders[0]:
            kinds = [kind for kind in kinds if kind == "checkpoint" and order == "1f1b"]
        for replicas in range(1, question.ranks // stages + 1):
            if question.replicas not in (None, replicas):
                continue
            for micro_size in _micro_sizes(question, replicas):
                micros = ceil(ceil(question.batch / replicas) / micro_size)
                for kind in kinds:
                    yield Candidate(
                        order=order, stages=stages, replicas=replicas, micro=micro_size,
                        microbatches=micros, activations=kind,
                    )  # fmt: skip


def _micro_sizes(question: Question, replicas: int) -> list[int]:
    """Samples of the micro-batches to try with so many copies: 1, 2, 4, ... and what was profiled,
    up to the largest of these, or to the share of a copy."""
    if not question.chosen:
        return [*question.micro_sizes]
    most = min(max(question.micro_sizes), ceil(question.batch / replicas))
    powers = (1 << k for k in range(most.bit_length()))
    return sorted({each for each in (*powers, *question.micro_sizes, most) if each <= most})


def _treatments(question: Question, order: str, stages: int) -> list[str]:
    """Treatments that activations may have."""
    row = ORDERS[order]
    if row.recomputes:
        return ["recompute" if stages > 1 else "keep"]
    given = {"keep": ["keep"], "recompute": [row.again]}
    return given.get(question.activations, ["keep", row.again])


def _reason(question: Question, row: Candidate) -> str:
    """Why a shape cannot be; empty where it can."""
    order = ORDERS[row.order]
    if question.batch < row.replicas:
        return f"a batch of {question.batch} leaves some of {row.replicas} replicas without any"
    if order.chunked and row.stages * CHUNKS > question.units:
        return f"{row.stages * CHUNKS} stages need a unit each, and the model has {question.units}"
    if order.chunked and row.microbatches % row.stages:
        return f"{row.microbatches} micro-batches are no multiple of {row.stages} ranks"
    if order.halved and question.sizes.cost(question.units - 1, row.micro).variant(HALVES) is None:
        return f"halves of backward passes were not profiled; a run of {row.order} does it"
    return ""
