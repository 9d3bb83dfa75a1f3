"""Plans of Harmony's published settings, made from the published profiles.

    python -m workbench.published.harmony_answers FOLDER [8 10 17 stored]

writes ``harmony_plans.csv`` (`harmony_plans.py`) again, or the rows of some figures: minutes each,
and `17`, whose models have up to 204 layers, the most of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

from workbench.core import host
from workbench.core.division import DP
from workbench.methods.harmony import search as ours
from workbench.methods.harmony.faithful import packs_of
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.problem import MicroBatchSizes, PackingProblem
from workbench.methods.harmony.published import search as theirs
from workbench.methods.harmony.published.build import build
from workbench.methods.harmony.published.estimate import estimate
from workbench.methods.harmony.published.packing import manual
from workbench.methods.harmony.published.profile_file import load
from workbench.methods.harmony.published.profiles import Direction, Measured, PublishedProfile
from workbench.methods.harmony.published.sizes import PublishedSizes, published_server
from workbench.methods.harmony.published.tasks import Configuration, Mode
from workbench.methods.harmony.published.timing import Server
from workbench.profile.server import ServerCosts
from workbench.published.harmony import GIB, MODELS
from workbench.published.harmony_plans import (
    CARD_BYTES,
    OURS,
    PUBLISHED,
    Question,
    Row,
    questions,
    write,
)
from workbench.schedule.action import COMPUTE, Kind
from workbench.schedule.graph import unroll
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE, Schedule
from workbench.schedule.simulate import step_seconds
from workbench.schedule.validate import validate

DEFAULT_CAP_BYTES = 10 * GIB
"""Cap of a pack in the authors' searches, where they name no other."""
RULES = ("balanced_time", theirs.REUSE)
"""Rules of the authors' scripts: one rule, and forward packs like the backward ones."""
STEPS = 2
MOST_PASSES = 300_000
"""Most passes of a plan that is simulated: more take minutes and gigabytes."""
VOLUMES = {
    Kind.LOAD: "weights_in",
    Kind.GRAD_OUT: "gradients_out",
    Kind.FETCH: "activations_in",
    Kind.STASH: "activations_out",
    Kind.SEND: "p2p",
    Kind.SEND_GRAD: "p2p",
    Kind.REDUCE: "all_reduced",
}


def answers(question: Question, folder: Path) -> list[Row]:
    """Plan it by each planner, from the profiles in a folder.

    Raises OSError and ValueError for a profile that is missing or wrong.
    """
    profile = profile_of(question.model, folder)
    return [_PLANNERS[planner](question, profile) for planner in question.planners]


def profile_of(model: str, folder: Path) -> PublishedProfile:
    """A published profile. GPT-2 of 30 billion has none of its own: all of them are the profile of
    one block, repeated."""
    if model != "gpt2_30b":
        return load(folder / f"profile_{model}.json")
    return with_blocks(load(folder / "profile_gpt2_10b.json"), 150)


def with_blocks(model: PublishedProfile, blocks: int) -> PublishedProfile:
    """The model with its one kind of block so many times; one layer comes before them, three
    after."""

    def repeated(values: tuple) -> tuple:
        return (values[0], *[values[1]] * blocks, *values[-3:])

    def measured(each: Measured) -> Measured:
        return replace(each, seconds=repeated(each.seconds), peak_bytes=repeated(each.peak_bytes))

    names = ("weight_bytes", "buffer_bytes", "state_bytes", "input_bytes", "update_seconds")
    each = {name: repeated(getattr(model, name)) for name in names}
    return replace(
        model, forward=measured(model.forward), backward=measured(model.backward), **each
    )


def _published(question: Question, profile: PublishedProfile) -> Row:
    """The published choice: its estimate, and what our simulator says of it."""
    before = process_time()
    chosen, found = _chosen(question, profile)
    search_s = None if found is None else process_time() - before
    graph = build(chosen)
    serial, overlapped = (
        estimate(graph, profile, Server(), prefetch=prefetch).seconds for prefetch in (False, True)
    )
    packs = packs_of(chosen)
    told = {
        "search_s": search_s,
        "candidates": found,
        "estimate_s": serial,
        "estimate_prefetch_s": overlapped,
    }
    passes = sum(len(task.units) * len(task.micros) for task in packs.tasks)
    if passes > MOST_PASSES:
        note = f"not simulated: {passes} passes over layers of one micro-batch each"
        return Row(**_place(question, PUBLISHED), **_words(packs), note=note, **told)
    schedule = ours.scheduled(packs, _setting(question, profile), PublishedSizes(profile))
    return _row(question, profile, PUBLISHED, packs, schedule, **told)


def _chosen(question: Question, profile: PublishedProfile) -> tuple[Configuration, int | None]:
    """The given setting, or what the authors' search with its cap finds among so many."""
    mode = Mode(question.mode.upper())
    if question.sizes is not None:
        packs = manual(profile.layers, question.pack)
        given = Configuration(
            mode=mode,
            gpus=question.ranks,
            minibatch=question.minibatch,
            u_forward=question.sizes[0],
            forward=packs[:-1],
            u_backward=question.sizes[1],
            backward=packs,
        )
        return given, None
    # Stored searches had the default cap, and for the smallest model all rules.
    stored = question.figure == "stored"
    cap = DEFAULT_CAP_BYTES if stored else MODELS[question.model].cap_bytes
    every = stored and question.model == "bert_large_seq512"
    rules = {} if every else {"forward_rules": RULES, "backward_rules": RULES[:1]}
    settings = theirs.SearchSettings(
        mode=mode, gpus=question.ranks, minibatch=question.minibatch, memory_cap=cap,
        rank_fit_normally=stored, **rules
    )  # fmt: skip
    result = theirs.search(profile, settings, Server())
    return result.best[0].candidate.configuration, result.candidates


def _ours(question: Question, profile: PublishedProfile) -> Row:
    """Our search, with memory as a constraint."""
    server = published_server(profile, question.ranks, CARD_BYTES)
    setting, sizes = _setting(question, profile), PublishedSizes(profile)
    before = process_time()
    try:
        found = ours.search(setting, sizes, profile.layers, server, most_work=inf)
    except DoesNotFit as refusal:
        return Row(**_place(question, OURS), note=str(refusal))
    search_s = process_time() - before
    told = {"search_s": search_s, "candidates": found.trials}
    return _row(question, profile, OURS, found.packs, found.schedule, **told)


_PLANNERS: dict[str, Callable[[Question, PublishedProfile], Row]] = {
    PUBLISHED: _published,
    OURS: _ours,
}


def _setting(question: Question, profile: PublishedProfile) -> PackingProblem:
    return PackingProblem(
        mode=question.mode,
        ranks=question.ranks,
        minibatch=question.minibatch,
        device_bytes=CARD_BYTES,
        host_bytes=1 << 40,
        clipping=None,  # the authors update each pack as soon as its gradients are out
        forward=MicroBatchSizes(largest=profile.sizes(Direction.FORWARD)[-1]),
        backward=MicroBatchSizes(largest=profile.sizes(Direction.BACKWARD)[-1]),
    )


def _row(
    question: Question,
    profile: PublishedProfile,
    planner: str,
    packs: Packs,
    schedule: Schedule,
    **told: Any,
) -> Row:
    server = published_server(profile, question.ranks, CARD_BYTES)
    costs = ServerCosts(PublishedSizes(profile), server, shared_updates=question.mode == DP)
    seconds = step_seconds(unroll(schedule, STEPS), costs)
    peaks = validate(schedule).peak_bytes.values()
    needed = max(peak[DEVICE] for peak in peaks)
    moved, busy = dict.fromkeys(VOLUMES.values(), 0), [0.0] * question.ranks
    for action in schedule.actions:
        if action.kind in VOLUMES:
            moved[VOLUMES[action.kind]] += action.nbytes
        if action.lane == COMPUTE:
            busy[action.rank] += costs.seconds(action)
    return Row(
        **_place(question, planner),
        **_words(packs),
        seconds=seconds,
        device_bytes=needed,
        fits=needed <= CARD_BYTES,
        busy=" ".join(f"{each / seconds:.4f}" for each in busy),
        **moved,
        **told,
    )


def _words(packs: Packs) -> dict[str, str]:
    counts = f"{len(packs.forward)} and {len(packs.backward)} packs"
    return {"setting": f"{packs.forward_size}/{packs.backward_size}, {counts}"}


def _place(question: Question, planner: str) -> dict[str, Any]:
    """Columns of a row that name its question."""
    given = ""
    if question.sizes is not None and planner == PUBLISHED:
        given = f"{question.sizes[0]}/{question.sizes[1]}, packs of {question.pack}"
    return {
        "figure": question.figure,
        "model": question.model,
        "method": f"harmony-{question.mode}",
        "ranks": question.ranks,
        "minibatch": question.minibatch,
        "planner": planner,
        "given": given,
        "planned": datetime.now(UTC).date().isoformat(),
        "machine": f"{host.cpu_model()}, {host.available_cores()} cores",
    }


def main(words: list[str]) -> int:
    """Plan everything, or some figures' settings, from the profiles of a folder, saying what was
    found. What is planned again takes the place of what was kept, at once."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the published profiles are")
    parser.add_argument("figures", nargs="*", help="those of these figures only: 8 10 17 stored")
    given = parser.parse_args(words)
    folder, figures = given.folder, given.figures or [None]
    if not folder.is_dir():
        parser.error(f"there is no folder {str(folder)!r}")
    asked = [question for figure in figures for question in questions(figure)]
    for number, question in enumerate(asked, 1):
        found = answers(question, folder)
        write(found)
        told = ", ".join(
            f"{row.planner} {row.seconds:.4g} s" if row.seconds else f"{row.planner}: {row.note}"
            for row in found
        )
        sys.stdout.write(f"{number} of {len(asked)}: {question.words}: {told}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
