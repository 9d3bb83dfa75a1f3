"""An iteration of a plan as the simulator sees it: its schedule, with the costs of its stages.

The schedule is the run's (run.py): a unit is a stage, in 1F1B. What the run does after the passes
is in it, too: each stage adds up its gradients, all agree on the norm, and each updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from workbench.methods.aceso.costs import StageCost
from workbench.methods.aceso.plan import Plan
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.schedule.action import Action, Kind
from workbench.schedule.graph import unroll
from workbench.schedule.simulate import step_seconds

STEPS = 3
MESSAGES = (Kind.SEND, Kind.RECV, Kind.SEND_GRAD, Kind.RECV_GRAD)


def simulated(plan: Plan, stages: Sequence[StageCost]) -> float:
    """Milliseconds from an iteration's beginning to the next one's."""
    batches = plan.subject.batch / plan.micro
    schedule = stage_schedule(
        "1f1b", lists("1f1b", len(stages), ceil(batches)), replicas=2, clipped=True
    )
    return step_seconds(unroll(schedule, STEPS, 0), _Seconds(stages, batches)) * 1000


class _Seconds:
    """Durations of actions. Messages, sums and updates are of lanes that disturb nobody."""

    def __init__(self, stages: Sequence[StageCost], batches: float) -> None:
        self.stages, self.batches = stages, batches

    def seconds(self, action: Action) -> float:
        """As `schedule.simulate.Costs`; the last micro-batch may be a part."""
        cost, kind = self.stages[action.unit], action.kind
        if kind is Kind.NORM:
            return max(each.norm for each in self.stages) / 1000
        if kind is Kind.REDUCE:
            return cost.sums / 1000
        if kind is Kind.UPDATE:
            return cost.update / 1000
        back = cost.reshard - cost.ahead
        if kind in MESSAGES:
            whole = cost.into - cost.ahead
        elif kind is Kind.FORWARD:
            whole = cost.forward + cost.ahead
        else:
            whole = cost.backward + cost.recompute + back
        return whole * min(1.0, self.batches - action.microbatch) / 1000

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        """As `schedule.simulate.Costs`."""
        return 1.0
