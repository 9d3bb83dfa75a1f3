"""Several ranks train as plain training does, and end together whatever happens to one of them."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import closing
from dataclasses import replace

import psutil
import pytest
import torch

from tests.methods import plain
from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.plain import made_up_profile
from tests.methods.rank_server import process
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.profile.unit_costs import ProfiledSizes
from workbench.ranks.failures import RankFailed
from workbench.runtime.checkpoint import checkpoint
from workbench.schedule import validate
from workbench.schedule.action import Kind
from workbench.schedule.build.ring import aligned
from workbench.training.rank_processes import RankTraining

MODEL = ModelSpec(layers=4, hidden=32, heads=4, seq=16, vocab=256, dropout=0.1, tied=True)
PACKS = Packs(
    mode="pp",
    ranks=2,
    minibatch=6,
    forward_size=2,
    backward_size=2,
    forward=packs_of([2, 2]),
    backward=packs_of([2, 2, 2]),
)

UNEVEN = replace(
    PACKS,
    ranks=3,
    forward_size=4,
    backward_size=1,
    forward=packs_of([1] * 5),
    backward=packs_of([3, 2, 1]),
)


def spec_for(**changes):
    return plain.spec_for(
        **{"model": MODEL, "batch": 6, "steps": 6, "lr_decay_steps": 20, **changes}
    )


def sizes_for(spec):
    profile = made_up_profile(spec.with_(microbatches=spec.batch))
    model = spec.model
    tied = {model.layers + 1: (0, model.vocab * model.hidden)} if model.tied else {}
    return ProfiledSizes({1: profile}, tied=tied)


def schedule_for(packs, spec, **how):
    """With rings of two packs."""
    sizes = sizes_for(spec)
    largest = max(
        sum(aligned(sizes.visit_bytes(unit)) for unit in pack)
        for pack in (*packs.forward, *packs.backward)
    )
    rings = [Rings(weights=2 * largest, gradients=largest)] * packs.ranks
    guesses = getattr(spec.options, "clipping", "auto") != "wait"
    clipped = spec.clip is not None
    schedule = build(packs, sizes, rings=rings, clipped=clipped, guesses=guesses, **how)
    validate(schedule)
    return schedule


def crew_of(packs, spec, folder, what="", *, forked=False, **kw):
    if forked:
        kw["process"] = process(what)
    elif what:
        kw["process"] = (sys.executable, "-m", "tests.methods.rank_driver", what)
    return closing(RankTraining(spec, schedule_for(packs, spec), folder, device="cpu", **kw))


def trained(packs, spec, folder, what=""):
    with crew_of(packs, spec, folder, what, forked=True) as crew:
        crew.run(Silent())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
        return crew, parameters


def test_no_step_takes_less_than_nothing_where_the_systems_time_is_set_back(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 4e9)  # before; the ranks have the time after it
    crew, _ = trained(PACKS, spec_for(steps=3), tmp_path)
    assert min(crew.history.step_seconds) > 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed, its parameters and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return *trained(PACKS, spec_for(save_every=3), folder), folder


def test_a_rank_killed_in_that_thread_is_named(tmp_path):
    with (
        pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"),
        crew_of(PACKS, spec_for(), tmp_path, "together 1:RECV:3:kill", forked=True) as crew,
    ):
        crew.run(Silent())


def test_a_replica_alone_moves_what_is_planned(tmp_path):
    """Of widths that no share of gradients divides by: there are no shares."""
    spec = spec_for(model=replace(MODEL, hidden=36), steps=2)
    crew, _ = trained(replace(PACKS, mode="dp", ranks=1), spec, tmp_path)
    assert_moved(crew, spec.steps)


@pytest.mark.parametrize("clip", [0.5, pytest.param(None, marks=pytest.mark.thorough)])
def test_layers_that_share_weights_stay_together(clip, tmp_path):
    """The embedding and the head on one rank: no weights and no gradients cross the link. What they
    saved goes on without layers that stay."""
    packs = replace(PACKS, mirrored=True, resident=frozenset(range(MODEL.layers + 2)))
    spec = spec_for(clip=clip, save_every=3)
    crew, parameters = trained(packs, spec, tmp_path, "delays")
    assert_equals_plain(spec, crew, parameters)
    assert_moved(crew, spec.steps)
    assert not {Kind.LOAD, Kind.GRAD_OUT} & {action.kind for action in crew.schedule.actions}
    shutil.rmtree(tmp_path / "checkpoints/step-00000006")
    again, parameters = trained(PACKS, spec, tmp_path)
    assert again.results()[0]["steps"] == 3
    assert_equals_plain(spec, again, parameters)


@pytest.mark.parametrize("stay", [{0, 1}, {5}])
def test_layers_that_share_weights_do_not_part(stay):
    packs = replace(PACKS, mirrored=True, resident=frozenset(stay))
    with pytest.raises(ValueError, match="units 0 and 5 share weights; either stay together"):
        schedule_for(packs, spec_for())


def assert_moved(crew, steps):
    """Ranks moved what the schedule says, in so many steps."""
    moved = crew.schedule.moved_bytes()
    for way in ("load", "store"):
        counted = sum(result["moved_bytes"][way] for result in crew.results())
        assert counted == moved[way] * steps


def test_a_rank_that_is_done_does_not_disturb_the_others(tmp_path):
    """Nothing is clipped, so the last rank ends while the second waits for the first one."""
    packs, spec = replace(PACKS, ranks=3), spec_for(clip=None, steps=2)
    crew, parameters = trained(packs, spec, tmp_path, "0:SEND:1:wait")
    assert_equals_plain(spec, crew, parameters)


def test_a_killed_rank_is_named_nothing_is_left_and_the_run_goes_on(whole, tmp_path):
    spec = spec_for(save_every=3)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with (
        pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"),
        crew_of(PACKS, spec, tmp_path, "1:RECOMPUTE:4:kill", forked=True) as crew,
    ):
        crew.run(Silent())
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before
    undisturbed, expected, _ = whole
    assert_equals_plain(spec, undisturbed, expected)
    again, parameters = trained(PACKS, spec, tmp_path)
    assert again.history.losses == undisturbed.history.losses
    assert all(torch.equal(parameters[name], value) for name, value in expected.items())


def test_a_checkpoint_continues_on_replicas_and_on_another_number_of_ranks(whole, tmp_path):
    """With random delays around every action."""
    *_, folder = whole
    shutil.copytree(
        folder / "checkpoints" / "step-00000003", tmp_path / "checkpoints/step-00000003"
    )
    packs = replace(PACKS, mode="dp", ranks=3, forward=packs_of([3]), backward=packs_of([3, 3]))
    spec = spec_for(save_every=3)
    again, parameters = trained(packs, spec, tmp_path, "delays")
    assert again.results()[0]["steps"] == 3
    assert_equals_plain(spec, again, parameters)
    assert_moved(again, 3)
