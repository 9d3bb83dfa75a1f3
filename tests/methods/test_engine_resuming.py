"""A checkpoint brings back all that torch's optimizer would, and is refused under other settings;
an engine says what it does, and what a loop of torch's has to leave out."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from torch.optim import lr_scheduler

from tests.methods.harness import half
from tests.methods.loops import LR, Net, batches, in_groups, loss_of, net
from workbench.runtime.checkpoint.continues import FROZEN, NO_DECAY
from workbench.runtime.checkpoint.manifest import Saved


@pytest.mark.parametrize(
    ("method", "other", "late"),
    half(
        (*pair, late)
        for pair in (("plain", "stronghold"), ("stronghold", "harmony-pp"), ("varuna",) * 2)
        for late in (False, True)
    ),
)
def test_load_brings_the_learning_rate_back(engine, tmp_path, method, other, late) -> None:
    """Before the first step of the other engine, and after one. The first scheduler multiplies the
    last rate, the second one keeps more in the optimizer."""
    makes = (
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.5),
        lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=9, cycle_momentum=False),
    )
    given, make = [*batches(4)], makes[method == "plain"]
    with engine(method, clip=None) as made:
        scheduler, losses = make(made.optimizer), []
        for batch in given:
            losses.append(made.step(batch, loss_of))
            scheduler.step()
            if made.steps == 2:
                made.save(tmp_path)
                state, saved = copy.deepcopy(scheduler.state_dict()), made.optimizer.state_dict()
    with engine(other, clip=None) as made:
        scheduler, later = make(made.optimizer), []
        if late:
            made.step(given[0], loss_of)
        scheduler.load_state_dict(state)
        assert made.load(tmp_path) == 2
        assert made.optimizer.state_dict() == saved
        for batch in given[2:]:
            later.append(made.step(batch, loss_of))
            scheduler.step()
    assert later == pytest.approx(losses[2:], rel=1e-6)


@pytest.mark.parametrize("method", ["plain", "varuna"])
def test_a_checkpoint_of_other_settings_is_refused_by_what_the_caller_gave(
    engine, tmp_path, method
) -> None:
    batch, grouped = next(batches()), net()
    with engine(method, clip=None) as made:
        made.step(batch, loss_of)
        made.save(tmp_path)
    groups = [{**each, "weight_decay": 0.01 * n} for n, each in enumerate(in_groups(grouped))]
    for words, (module, config, how) in {
        "with dtype fp32, this engine has bf16: .* set dtype": (net(), None, {"dtype": "bf16"}),
        "with seed 0, this engine has 3": (net(), None, {"seed": 3}),
        "with clip None, this engine has 0.5": (net(), None, {"clip": 0.5}),
        "with the second of betas 0.999, this": (net(), {"lr": LR, "betas": (0.9, 0.9)}, {}),
        "blocks.1.inner.weight is not trained, and here it is": (net(frozen=False), None, {}),
        "where .* is decayed, and here it is not": (grouped, {"lr": LR, "params": groups}, {}),
        "of (a|another) module(,| with other)": (Net(hidden=16), None, {}),
    }.items():
        with engine(method, module, config, **{"clip": None, **how}) as made:
            assert made.load(tmp_path) == 1
            with pytest.raises(ValueError, match=f"checkpoint .* {words}"):
                made.step(batch, loss_of)


def test_an_older_checkpoint_that_tells_less_is_taken(engine, tmp_path) -> None:
    first, second = batches(2)
    with engine("plain", clip=None) as made:
        made.step(first, loss_of)
        path = made.save(tmp_path)
        wanted = made.step(second, loss_of)
    manifest = Saved.read(path).manifest
    assert manifest.settings == {"lr": LR}
    told = manifest.continues.pop(FROZEN), manifest.continues.pop(NO_DECAY)
    assert told == (["module.blocks.1.inner.weight"], [])
    replace(manifest, settings={}).write(path)
    with engine("plain", clip=None) as made:
        assert made.load(tmp_path) == 1
        assert made.step(second, loss_of) == wanted


def test_an_engine_says_what_it_does_unless_it_is_to_be_quiet(engine, capsys, monkeypatch) -> None:
    words = ("cutting", "comparing", "profiling", "planning", "laying out", "first step")
    for how in ({}, {"quiet": True}):
        with engine("stronghold", **how) as made:
            assert made.plan is None
            made.step(next(batches()), loss_of)
            assert made.plan.fits
            told = made.plan.in_words()
        said = capsys.readouterr().err.splitlines()
        found = [any(line.startswith(f"workbench: {word}") for line in said) for word in words]
        assert found == [not how] * len(words), said
        assert len([line for line in said if f"planning ... {told}; " in line]) == (not how)
        assert all(line.endswith(" s") for line in said)
    monkeypatch.setenv("RANK", "1")
    engine("plain")._report.phase("only the first process speaks")
    assert not capsys.readouterr().err


def test_habits_of_torchs_loops_are_told_what_to_do_instead(engine) -> None:
    with engine("plain") as made:
        scheduler = lr_scheduler.ExponentialLR(made.optimizer, 0.5)
        loss = made.step(next(batches()), loss_of)
        assert loss.item() == loss
        for words, habit in {
            "leave loss.backward": loss.backward,
            "leave engine.optimizer.step": made.optimizer.step,
            "an engine always trains": made.train,
            "for another mode": made.eval,
            "for parameters, call": made.parameters,
            "leave other calls": lambda: made(next(batches())),
            "leave engine.backward": lambda: made.backward(loss),
        }.items():
            with pytest.raises(ValueError, match=words):
                habit()
        made.optimizer.zero_grad()
        scheduler.step()
        assert made.optimizer.param_groups[0]["lr"] == LR / 2
