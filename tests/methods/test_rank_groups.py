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
from workbench.core.division import share_bytes
from workbench.runtime.checkpoint import checkpoint
from workbench.schedule import Kind, validate
from workbench.schedule.action import MEETING, format_name, parse_name
from workbench.schedule.buffers import gradients, on_rank
from workbench.training.rank_processes import RankTraining

COPIES = 2
ENDS = (Kind.GRAD_OUT, Kind.NORM, Kind.UPDATE)
"""Work that needs complete gradients."""


def replicated(schedule):
    """Copies of a pipeline, each with samples and messages (by their turns) of its own: copy c of
    rank r is rank r + 2c. Those of a rank add up gradients, and take a share each to the host."""
    ranks, actions, buffers = schedule.num_ranks, [], {}
    end = max(a.samples[1] for a in schedule.actions if a.samples)
    last = {a.unit: a.name for a in schedule.actions if a.kind is Kind.BACKWARD}

    def renamed(text, copy, **changes):
        said = parse_name(text)._asdict() | changes
        if said["kind"] in MEETING and said["kind"] is not Kind.REDUCE:
            said["turn"] = copy
        if said["kind"] is not Kind.NORM:
            said["rank"] += ranks * copy
        return format_name(said.pop("kind"), said.pop("unit"), said.pop("microbatch"), **said)

    def lay(text, copy, rank):
        """The buffer of a copy; a stash is of all its ranks, weights are everybody's."""
        what = text.rpartition(":")[2]
        owner = 0 if re.match(r"h[wo]", what) else ranks * copy if what[:3] == "hxs" else rank
        label, buffer = on_rank(owner, what), schedule.buffers[text]
        shared = share_bytes(buffer.nbytes, COPIES) if what[:2] == "hg" else buffer.nbytes
        buffers[label] = replace(buffer, rank=rank, nbytes=shared)
        return label

    def after(one, copy):
        for text in one.after:
            summed = one.kind in ENDS and text in last.values()
            changes = {"kind": Kind.REDUCE, "microbatch": None} if summed else {}
            all_of = one.kind is Kind.LOAD and parse_name(text).kind is Kind.UPDATE
            for other in range(COPIES) if all_of or one.kind is Kind.NORM else [copy]:
                yield renamed(text, other, **changes)

    for one in schedule.actions:
        for copy in range(1 if one.kind is Kind.NORM else COPIES):
            rank = one.rank + ranks * copy
            made = replace(
                one, rank=rank, after=tuple(after(one, copy)),
                turn=copy if one.kind in MEETING else one.turn,
                samples=one.samples and tuple(sample + end * copy for sample in one.samples),
                nbytes=share_bytes(one.nbytes, COPIES) if one.kind is Kind.GRAD_OUT else one.nbytes,
                **{key: tuple(lay(text, copy, rank) for text in getattr(one, key))
                   for key in ("takes", "uses", "frees")},
            )  # fmt: skip
            actions.append(made)
            if one.name == last.get(one.unit):
                label = lay(on_rank(one.rank, gradients(one.unit)), copy, rank)
                actions.append(replace(
                    made, kind=Kind.REDUCE, lane="net-out.2", microbatch=None, samples=None,
                    after=(made.name,), nbytes=buffers[label].nbytes, takes=(), uses=(label,),
                    frees=(),
                ))  # fmt: skip
    for text, buffer in schedule.buffers.items():
        if buffer.permanent and "hg" not in text:
            for copy in range(COPIES):
                lay(text, copy, buffer.rank + ranks * copy)
    return replace(
        schedule, num_ranks=COPIES * ranks, actions=tuple(actions), buffers=buffers
    )  # fmt: skip


def test_two_stages_of_two_replicas_train_as_plain_training_does(tmp_path):
    """The gradients of each stage are added up, on the device of those that stay too; tied ones of
    one stage are added to the other's on the host."""
    spec = spec_for(clipping="wait", steps=3)
    packs = replace(PACKS, minibatch=3, mirrored=True, resident=frozenset({1, 2, 4}))
    schedule = replicated(schedule_for(packs, spec))
    validate(schedule)
    with closing(RankTraining(spec, schedule, tmp_path, device="cpu", process=process(""))) as crew:
        crew.run(Silent())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
    assert_equals_plain(spec, crew, parameters)
    norms: list[float] = []
    plain.train(spec, norms=norms)
    assert crew.history.grad_norms == pytest.approx(norms, rel=1e-5)
