"""The number of micro-batches of a run whose spec leaves it open, chosen where the run trains.

The plans are those of ``workbench plan`` (planning.py), once the layers have been measured at the
sizes that are asked about: so both choose one number, which the run's record has. A run's key is of
the open number. An attempt that may find checkpoints of an earlier one takes that one's number, as
its events tell it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workbench.core import methods
from workbench.core.reporter import DIVIDING, Reporter
from workbench.core.spec import AUTO, RunSpec
from workbench.profile.dividing import best_division, divisions, in_words
from workbench.profile.store import profile_for
from workbench.runs.answer import Answer
from workbench.runs.events import EventReader, of_attempt
from workbench.runs.jobfile import JobFile
from workbench.runs.planning import answer, promised
from workbench.runs.store import Store

KIND = "divided"
"""Of the event that tells the number."""


def with_parts(spec: RunSpec, folder: Path, job: JobFile, report: Reporter) -> RunSpec:
    """The spec of a run with a number of micro-batches: that of an earlier attempt, or the one
    whose plan is the fastest. Where none can be planned, the method is left to say why."""
    if spec.microbatches != AUTO:
        return spec
    told = told_parts(folder, job)
    if told is None and methods.lookup(spec.method) is None:
        told = 1  # nobody plans for it
    elif told is None:
        report.phase(DIVIDING)
        told = _chosen(spec, folder, report)
    spec = spec.with_(microbatches=told)
    report.event(KIND, microbatches=told, text=in_words(spec))
    return spec


def told_parts(folder: Path, job: JobFile) -> int | None:
    """The number that this attempt has chosen, or an earlier one whose steps count; None where the
    spec says it, or nobody has come to choose."""
    every = EventReader(folder / "events.jsonl").read()
    events = every if job.resume else of_attempt(every, job.started)
    numbers = [event["microbatches"] for event in events if event["event"] == KIND]
    return numbers[-1] if numbers else None


def possible(spec: RunSpec) -> list[RunSpec]:
    """The spec with each number of micro-batches that its method takes. Raises the last ValueError
    where it takes none."""
    check = getattr(methods.load(spec.method), "check", None)
    found = []
    for each in divisions(spec):
        try:
            if check:
                check(each)
        except ValueError as error:
            refusal = error
        else:
            found.append(each)
    if not found:
        raise refusal
    return found


def _chosen(spec: RunSpec, folder: Path, report: Reporter) -> int:
    store, row = Store(folder.parents[1]), methods.lookup(spec.method)
    measure = getattr(methods.load(spec.method), "measure", profile_for)
    measures = row.driven == methods.PLANNED
    """Whether the method measures the layers whatever it has been told."""

    def ask(each: RunSpec) -> Answer:
        # Raises before anything is measured.
        found = None if measures else answer(each, store, rough=True)
        if found and found.spares and each.microbatches == spec.ranks == 1:
            return found
        try:
            measure(each, store.root, lambda text: report.event("profile", text=text))
        except RuntimeError as error:  # out of memory is one
            raise ValueError(f"{each.microbatch} samples cannot be timed: {error}") from error
        return answer(each, store, rough=True)

    try:
        found = best_division(spec, ask, lambda each, best: promised(each, store, best.spec))
        return found.spec.microbatches
    except ValueError:
        return possible(spec)[0].microbatches
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the plan has all of the budget
