"""Replicas of a pipeline's ranks: sums are over those that name them, not over all."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import pytest

from tests.methods import plain
from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.rank_server import process
from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from workbench.methods.harmony.crew import Crew
from workbench.methods.harmony.draft import share_bytes
from workbench.runtime import checkpoint
from workbench.schedule import buffers as name
from workbench.schedule import validate
from workbench.schedule.action import NET_OUT, Action, Kind, format_name, parse_name

COPIES = 2
ENDS = (Kind.GRAD_OUT, Kind.NORM, Kind.UPDATE)
"""What gradients are complete for."""


def replicated(schedule):
    """Copies of a pipeline, each with samples of its own: copy c of rank r is rank r + 2c. Those
    that have a unit add its gradients up, and each takes a share of them to the host."""
    micros, ranks = schedule.num_microbatches, schedule.num_ranks
    end = max(a.samples[1] for a in schedule.actions if a.samples)
    last = {a.unit: a.name for a in schedule.actions if a.kind is Kind.BACKWARD}
    actions, buffers = [], {}

    def renamed(text, copy, **changes):
        said = parse_name(text)._asdict()
        if said["kind"] is not Kind.NORM:
            said["rank"] += ranks * copy
        if said["microbatch"] is not None:
            said["microbatch"] += micros * copy
        said |= changes
        return format_name(said.pop("kind"), said.pop("unit"), said.pop("microbatch"), **said)

    def lay(text, copy, rank):
        """The buffer of a copy; a stash is of all its ranks, weights are everybody's."""
        buffer, what = schedule.buffers[text], text.rpartition(":")[2]
        if name.is_scratch(text):
            label = name.scratch(renamed(text[2:], copy))
        elif re.fullmatch(r"h[wo]\d+", text):
            label = text
        else:
            what = re.sub(r"\.(\d+)", lambda m: f".{int(m[1]) + micros * copy}", what)
            label = name.on_rank(ranks * copy if what.startswith("hxs") else rank, what)
        if what.startswith("hg"):
            buffer = replace(buffer, nbytes=share_bytes(buffer.nbytes, COPIES))
        buffers[label] = replace(buffer, rank=rank if buffer.tier == "device" else 0)
        return label

    def after(one, copy):
        for text in one.after:
            summed = one.kind in ENDS and text in last.values()
            changes = {"kind": Kind.REDUCE, "microbatch": None} if summed else {}
            loads = one.kind is Kind.LOAD and parse_name(text).kind is Kind.UPDATE
            for other in range(COPIES) if loads or one.kind is Kind.NORM else [copy]:
                yield renamed(text, other, **changes)

    for one in schedule.actions:
        for copy in range(1 if one.kind is Kind.NORM else COPIES):
            rank = one.rank + ranks * copy
            changes = {
                key: tuple(lay(text, copy, rank) for text in getattr(one, key))
                for key in ("takes", "uses", "frees")
            } | {"rank": rank, "after": tuple(after(one, copy))}
            if one.microbatch is not None:
                changes["microbatch"] = one.microbatch + micros * copy
            if one.samples:
                changes["samples"] = tuple(sample + end * copy for sample in one.samples)
            if one.kind is Kind.GRAD_OUT:
                changes["nbytes"] = share_bytes(one.nbytes, COPIES)
            actions.append(replace(one, **changes))
            if one.name == last.get(one.unit):
                label = lay(name.on_rank(one.rank, name.gradients(one.unit)), copy, rank)
                actions.append(Action(
                    kind=Kind.REDUCE, unit=one.unit, lane=NET_OUT + ".2", rank=rank,
                    after=(actions[-1].name,), nbytes=buffers[label].nbytes, uses=(label,),
                ))  # fmt: skip
    for text, buffer in schedule.buffers.items():
        if buffer.permanent and "hg" not in text:
            for copy in range(COPIES):
                lay(text, copy, buffer.rank + ranks * copy)
    return replace(
        schedule, num_microbatches=COPIES * micros, num_ranks=COPIES * ranks,
        actions=tuple(actions), buffers=buffers,
    )  # fmt: skip


def test_two_stages_of_two_replicas_train_as_plain_training_does(tmp_path):
    """The gradients of each stage are added up, on the device of those that stay too; tied ones of
    one stage are added to the other's on the host."""
    spec = spec_for(clipping="wait", steps=3)
    packs = replace(PACKS, minibatch=3, mirrored=True, resident=frozenset({1, 2, 4}))
    schedule = replicated(schedule_for(packs, spec))
    validate(schedule)
    with closing(Crew(spec, schedule, tmp_path, device="cpu", process=process(""))) as crew:
        crew.run(Silent())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
    assert_equals_plain(spec, crew, parameters)
    norms: list[float] = []
    plain.train(spec, norms=norms)
    assert crew.history.grad_norms == pytest.approx(norms, rel=1e-5)
