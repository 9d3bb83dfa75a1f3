"""The shape of a run's pipeline, chosen from what was measured of its layers (shapes.py).

Steps of all shapes are predicted; schedules of the best are proved and simulated as those of every
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.core.division import packs_of
from workbench.core.spec import MOST_PASSES
from workbench.methods.pipeline.orders import ORDERS
from workbench.methods.pipeline.prediction import Question, line_of
from workbench.methods.pipeline.proofs import Ground
from workbench.methods.pipeline.shapes import Cut, search
from workbench.model import units_of
from workbench.schedule.plan import Candidate, DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, HOST_TIER


class ServerNetwork:
    """Messages, sums and updates of the devices of one server (profile/server.py)."""

    def __init__(self, ground: Ground) -> None:
        self._server, self._sizes, self._spec = ground.server, ground.sizes, ground.spec
        self.contention, self.by_stage = ground.costs(), False
        self._normalizes = ground.normalizes
        self._overhead = ground.server.action_overhead_s
        self.norm_s = self._overhead if ground.spec.clip is not None else 0.0

    def pass_seconds(self, alone: float) -> float:
        return self._overhead + self._server.pass_seconds(alone)

    def messages(
        self, nbytes: Sequence[int], positions: Sequence[int], replicas: int
    ) -> list[tuple[float, ...]]:
        return [tuple(self.message_seconds(each) for each in nbytes)]

    def message_seconds(self, nbytes: int) -> float:
        return self._overhead + self._server.message_seconds(nbytes)

    def sum_seconds(self, nbytes: int, replicas: int) -> float:
        return self._overhead + self._server.sum_seconds(nbytes, replicas)

    def update_seconds(self, unit: int) -> float:
        parameters = self._sizes.cost(unit, 1).parameters
        return self._overhead + parameters / self._server.device_adam_params_per_s

    def lacks(self, row: Candidate) -> str:
        passes = self._spec.model.layers * row.microbatches
        if passes > MOST_PASSES:
            return f"{passes} forward passes a step are more than can be planned, {MOST_PASSES}"
        if self._normalizes and self._spec.batch // row.replicas < row.microbatches:
            return "a replica would repeat a sample, and BatchNorm see it twice"
        return ""


def chosen(ground: Ground) -> Plan:
    """The fastest plan of all shapes that the spec leaves open. Raises DoesNotFit where none
    fits."""
    asked = question(ground)

    def prove(row: Candidate, cut: Cut) -> tuple[Candidate, Plan | None]:
        schedule, peak = ground.proved(line_of(asked, row, cut.stages))
        row = replace(row, device_bytes=peak[DEVICE])
        if tier := ground.budgets.lacking(peak):
            return replace(row, reason=ground.lacks(tier, peak[tier])), None
        plan = ground.plan(schedule, peak)
        return replace(row, seconds=plan.step_seconds), plan

    spec, sizes, there = ground.spec, ground.sizes, ground.budgets.host
    least = sum(sizes.weight_bytes(u) + sizes.state_bytes(u) for u in range(units_of(spec.model)))
    if least > there:
        raise ground.refusal(HOST_TIER, least)
    rows, plan = search(asked, ServerNetwork(ground), prove)
    if plan is None:
        raise DoesNotFit(_nothing(rows), tier=DEVICE)
    best = rows[0]
    notes = [f"the fastest of {len(rows)} shapes: {best.shape}"]
    if best.ranks < spec.ranks:
        spare = spec.ranks - best.ranks
        notes.append(f"{spare} of {spec.ranks} ranks spare: with them no shape is faster")
    settings = plan.settings | {"order": best.order, "micro": best.micro}
    return replace(plan, settings=settings, candidates=rows, notes=(*plan.notes, *notes))


def _nothing(refused: Sequence[Candidate]) -> str:
    """Why no shape fits: what the one says that needs the least."""
    least = min(refused, key=lambda row: (row.device_bytes is None, row.device_bytes))
    return f"no shape of {len(refused)} fits; the one that needs the least: {least.words()}"


def question(ground: Ground) -> Question:
    """The question that a run's spec leaves open."""
    spec = ground.spec
    asked, others = spec.options, [name for name in ORDERS if name != spec.method]
    return Question(
        sizes=ground.sizes,
        units=units_of(spec.model),
        ranks=spec.ranks,
        batch=spec.batch,
        micro_sizes=ground.profiled if asked.micro == "auto" else (asked.micro,),
        device_bytes=ground.budgets.device,
        orders=(spec.method, *others) if asked.order == "auto" else (spec.method,),
        activations=spec.activations,
        chosen=asked.micro == "auto",
        replicas=None if asked.replicas == "auto" else asked.replicas,
        stages=packs_of(asked.given_stages),
        clipped=spec.clip is not None,
        recorded_below_s=ground.recorded_below_s,
    )
