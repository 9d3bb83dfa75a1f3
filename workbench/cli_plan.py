"""Text of ``workbench plan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.core.bytesize import format_bytes
from workbench.runs.planning import Answer
from workbench.runs.progress import describe_model, describe_packs, format_step, parameters
from workbench.schedule.plan import Candidate

MOST_ROWS = 32
"""Candidates that a plan shows; all are in its JSON."""


def print_plans(
    answers: list[Answer], best: Answer, not_planned: dict[str, str], *, largest: bool
) -> None:
    """Each plan, the best one marked; a machine that is not this one stands in the headline."""
    spec = best.spec
    hidden = f"largest models of hidden size {spec.model.hidden}"
    what = hidden if largest else f"{describe_model(spec.model)}, {parameters(best.parameters)}"
    print(f"{what}, batch {spec.batch}, on {where(best)}")
    if best.basis:
        print(f"  {best.basis}")
    for each in answers:
        plan = each.plan
        mark = "*" if each is best and plan.fits else " "
        if not plan.fits:
            print(f"{mark} {plan.method:14s} does not fit: {plan.binding}")
            continue
        time = format_step(plan.step_seconds, plan.step_seconds_range)
        if largest:
            time = f"{each.spec.model.layers} layers, {parameters(each.parameters)}; {time}"
        time += f", {each.tokens_per_second:,.0f} tokens/s" if each.tokens_per_second else ""
        time += ", --activations keep" * (each.spec.activations == "keep")
        window = f", window {plan.window}" if plan.window is not None else ""
        peaks = ", ".join(f"{format_bytes(n)} {tier}" for tier, n in plan.peak_bytes.items() if n)
        print(f"{mark} {plan.method:14s} {time}{window}; peak {peaks}")
        if plan.step_seconds:
            print(f"{'':17s}bound by {plan.binding}")
        for note in (*describe_packs(plan.settings), *plan.notes, *_table(plan.candidates)):
            print(f"{'':17s}{note}")
    for method, why in not_planned.items():
        print(f"  {method:14s} is not planned: {why}")


def where(answer: Answer) -> str:
    """The machine of an answer, and whether it is this one."""
    if not answer.here:
        return f"{answer.hardware}, which is not this machine ({answer.source} costs)"
    return f"this machine ({answer.hardware}; {answer.source})"


def _table(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Shapes that were compared, the best first, those that are refused last."""
    if candidates:
        yield f"{len(candidates)} shapes, as stages x replicas:"
    for row in candidates[:MOST_ROWS]:
        yield f"  {row.words()}"
    if len(candidates) > MOST_ROWS:
        yield f"  and {len(candidates) - MOST_ROWS} more, which --json shows"
