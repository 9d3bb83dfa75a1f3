"""Plans and their costs as tables for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.core.aligned import aligned
from workbench.methods.aceso.costs import PlanCost, StageCost
from workbench.methods.aceso.plan import Plan, Stage
from workbench.methods.aceso.searches import Outcome

WIDE = 60
"""Letters of the picture of a pipeline's stages."""
MEMORY_NOTE = "MB are of 2^20 bytes"


def cost_dict(plan: Plan, cost: PlanCost) -> dict[str, Any]:
    """Milliseconds of an iteration, and MB of a device."""
    count = cost.batches
    stages = [
        {
            "iteration_ms": time,
            "memory_mb": stage.memory,
            "normal_mb": stage.normal,
            "reserved_mb": stage.reserved,
            "forward_ms": stage.forward * count,
            "backward_ms": stage.backward * count,
            "recompute_ms": stage.recompute * count,
            "in_ms": stage.into * count,
            "out_ms": stage.out * count,
            "reshard_ms": stage.reshard * count,
            **(
                {"sums_ms": stage.sums, "norm_ms": stage.norm, "update_ms": stage.update}
                if stage.update
                else {}
            ),
        }
        for stage, time in zip(cost.stages, cost.times, strict=True)
    ]
    return {"iteration_ms": cost.time, "memory_mb": cost.memory, "stages": stages}


def cost_lines(plan: Plan, cost: PlanCost) -> list[str]:
    """A line a stage; ``*`` marks the slowest one."""
    head = ("stage", "GPUs", "operators", "tp x dp", "recomputed", "ms", "forward", "backward",
            "again", "in", "out", "MB", "normal", "reserved")  # fmt: skip
    rows, told = [head], cost_dict(plan, cost)["stages"]
    for index, (stage, each) in enumerate(zip(plan.stages, told, strict=True)):
        mark = "*" if each["iteration_ms"] == cost.time else ""
        names = ("iteration_ms", "forward_ms", "backward_ms", "recompute_ms", "in_ms", "out_ms",
                 "memory_mb", "normal_mb", "reserved_mb")  # fmt: skip
        numbers = tuple(f"{each[name]:,.0f}" for name in names)
        rows.append((f"{index}{mark}", str(stage.gpus), str(len(stage.tp)), shape(stage),
                     str(sum(stage.recompute)), *numbers))  # fmt: skip
    return [
        *aligned(rows),
        picture(plan, cost.stages),
        f"{headline(plan, cost)} ({MEMORY_NOTE}); estimated",
    ]


def headline(plan: Plan, cost: PlanCost) -> str:
    """The plan's iteration, in a line."""
    subject = plan.subject
    return (
        f"{subject.name}: {cost.time:,.2f} ms an iteration of {subject.batch} samples in "
        f"micro-batches of {plan.micro}, {subject.batch / cost.time * 1000:.2f} samples/s, "
        f"{cost.memory:,.2f} MB"
    )


def shape(stage: Stage) -> str:
    """``2x1``, or ``1x2 2x1`` where it changes."""
    pairs = dict.fromkeys(zip(stage.tp, stage.dp, strict=True))
    return " ".join(f"{tp}x{dp}" for tp, dp in pairs)


def picture(plan: Plan, stages: Sequence[StageCost]) -> str:
    """Stages side by side, as wide as their share of all operators: # where half or more of a
    letter's operators are recomputed."""
    total = sum(len(stage.tp) for stage in plan.stages)
    parts = []
    for stage in plan.stages:
        size = len(stage.tp)
        wide = max(1, round(WIDE * size / total))
        cuts = [size * i // wide for i in range(wide + 1)]
        spans = [stage.recompute[a : max(b, a + 1)] for a, b in zip(cuts, cuts[1:], strict=False)]
        parts.append("".join("#" if sum(span) * 2 >= len(span) else "." for span in spans))
    return f"|{'|'.join(parts)}|  # recomputed"


def search_lines(outcome: Outcome) -> list[str]:
    """A line a number of stages, as the published search prints them, in ms."""
    rows = [("stages", "ms", "samples/s", "MB", "micro-batch", "GPUs", "plans rated", "fits")]
    for count, found in outcome.found.items():
        plan, cost = found.best
        fits = outcome.space.fits(cost)
        rows.append((
            str(count), f"{cost.time:,.2f}", f"{plan.subject.batch / cost.time * 1000:.2f}",
            f"{cost.memory:,.2f}", str(plan.micro), " ".join(str(s.gpus) for s in plan.stages),
            str(found.explored), "yes" if fits else "no",
        ))  # fmt: skip
    return aligned(rows)
