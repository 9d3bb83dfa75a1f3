"""Text of ``workbench plan``, and of a sweep that would run."""

from __future__ import annotations

import shlex
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence

from workbench.core.bytesize import format_bytes
from workbench.core.readable import parameters
from workbench.core.spec import RunSpec, flat
from workbench.published import hardware as published
from workbench.runs.answer import Answer
from workbench.runs.planning import fits
from workbench.runs.progress import describe_model, describe_packs, describe_spec
from workbench.runs.remedy import remedy
from workbench.runs.store import Store
from workbench.runs.sweep import Sweep
from workbench.schedule.plan import Candidate

MOST_ROWS = 32
"""Candidates that a plan shows; all are in its JSON."""
DESCRIBED = {"method", "layers", "hidden", "batch", "seq", "steps", "dtype", "device"}
"""Values that the line of any run has."""
ASK_S = 10
"""How long the points of a sweep are asked whether they fit."""


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
        print(f"{mark} {plan.method:14s} {each.in_words(largest=largest)}")
        if each is not best or not plan.fits:
            continue  # -m METHOD tells more of one
        if plan.step_seconds:
            print(f"{'':17s}bound by {plan.binding}")
        shapes = () if answers[1:] else _table(plan.candidates)
        for note in (*describe_packs(plan.settings), *plan.notes, *shapes):
            print(f"{'':17s}{note}")
    for method, why in not_planned.items():
        print(f"  {method:14s} is not planned: {why}")


def print_points(sweep: Sweep) -> None:
    """A line for each point: in which values it differs from others, and whether it fits, as far as
    that is told soon, but for modules of the user's, none of whose code runs here."""
    told = [{name: str(value) for name, value in flat(p.spec).items()} for p in sweep.points]
    alike = set.intersection(*(set(each.items()) for each in told))
    until, unasked = time.monotonic() + ASK_S, 0
    for point, each in zip(sweep.points, told, strict=True):
        own = sorted(item for item in each.items() - alike if item[0] not in DESCRIBED)
        words = "".join(f"; {name} {value}" for name, value in own)
        why = ""
        if point.state == "pending" and not point.spec.model.custom:
            if time.monotonic() > until:
                unasked += 1
            else:
                why = _why_not(point.spec, sweep.store)
        print(f"{point.state:8s} {point.key} {describe_spec(point.spec)}{words}{why}")
    if unasked:
        print(f"not asked whether they fit, which takes more than {ASK_S} s: the last {unasked}")


def _why_not(spec: RunSpec, store: Store) -> str:
    try:
        return "" if fits(spec, store, soon=True) else "; does not fit"
    except ValueError as error:
        return f"; {error}"


def where(answer: Answer) -> str:
    """The machine of an answer, and whether it is this one."""
    if not answer.here:
        told = f"{answer.hardware}, which is not this machine ({answer.source} costs)"
        if answer.spec.host_memory is None and answer.source in ("datasheet", "benchmark"):
            assumed = format_bytes(published.machine(answer.hardware).host_bytes)
            told += f", host memory assumed: {assumed} (--host-memory says another)"
        return told
    return f"this machine ({answer.hardware}; {answer.source})"


def what_would_help(
    answers: list[Answer], not_planned: dict[str, str], store: Store, arguments: Namespace
) -> str:
    """The smallest change with which a method fits, and the command for it, in a sentence."""
    found, words = remedy(answers, store, arguments.machine), [*arguments.words]
    out = [method for method, why in not_planned.items() if why.startswith("--microbatches is")]
    kept = f" (--microbatches keeps {', '.join(out)} out)" if out else ""
    if found is None:
        return f"fewer layers (see --largest), more --ranks or a larger GPU would help{kept}"
    _, method, flag, value = found
    for each in ("-m", "--method", flag):
        for at in reversed([i for i, word in enumerate(words) if word.split("=")[0] == each]):
            del words[at : at + (1 if "=" in words[at] else 2)]
    command = shlex.join(["workbench", *words, "-m", method, flag, value])
    return f"with {flag} {value} {method} fits{kept}: {command}"


def _table(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Shapes that were compared, the best first, those that are refused last."""
    if candidates:
        yield f"{len(candidates)} shapes, as stages x replicas:"
    for row in candidates[:MOST_ROWS]:
        yield f"  {row.words()}"
    if len(candidates) > MOST_ROWS:
        yield f"  and {len(candidates) - MOST_ROWS} more, which --json shows"
