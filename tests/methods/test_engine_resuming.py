"""A checkpoint brings back all that torch's optimizer would, and is refused under other settings;
an engine says what it does, and what a loop of torch's has to leave out."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.methods.loops import LR, Net, batches, in_groups, loss_of, net
from workbench.methods.continues import FROZEN, NO_DECAY
from workbench.runtime.manifest import Saved

SCHEDULES = {
    "last rate times": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.5),
    "cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=9, cycle_momentum=False),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("method", "other", "schedule"),
    [
        ("plain", "stronghold", "cycle"),
        ("stronghold", "harmony-pp", "last rate times"),
        ("varuna", "varuna", "last rate times"),
    ],
)
def test_load_brings_the_learning_rate_back(
    engine, tmp_path, method, other, schedule, late
) -> None:
    """Before the first step of the other engine, and after one."""
    given, make = [*batches(4)], SCHEDULES[schedule]
    with engine(method, clip=None) as made:
        scheduler, losses = make(made.optimizer), []
        for batch in given:
            losses.append(made.step(batch, loss_of))
            scheduler.step()
            if made.steps == 2:
                made.save(tmp_path)
                state, saved = copy.deepcopy(scheduler.state_dict()), made.optimizer.state_dict()
    with engine(other, clip=None) as made:
        scheduler = make(made.optimizer)
        if late:
            made.step(given[0], loss_of)
        scheduler.load_state_dict(state)
        assert made.load(tmp_path) == 2
        assert made.optimizer.state_dict() == saved
        later = []
        for batch in given[2:]:
            later.append(made.step(batch, loss_of))
            scheduler.step()
    assert later == pytest.approx(losses[2:], rel=1e-6)


def other_groups(module: nn.Module) -> dict:
    decaying, others = in_groups(module)
    return {"lr": LR, "params": [{**decaying, "weight_decay": 0.01}, others]}


@pytest.mark.parametrize("method", ["plain", "varuna"])
def test_a_checkpoint_of_other_settings_is_refused_by_what_the_caller_gave(
    engine, tmp_path, method
) -> None:
    batch, trained, grouped = next(batches()), net(frozen=False), net()
    with engine(method, clip=None) as made:
        made.step(batch, loss_of)
        made.save(tmp_path)
    no_decay = "blocks.0.inner.bias has weight decay, and here it has no weight decay"
    for words, (module, config, how) in {
        "with dtype fp32, this engine has bf16: .*; give dtype fp32": (
            net(),
            None,
            {"dtype": "bf16"},
        ),
        "with seed 0, this engine has 3": (net(), None, {"seed": 3}),
        "with clip None, this engine has 0.5": (net(), None, {"clip": 0.5}),
        "with the second of betas 0.999, this": (net(), {"lr": LR, "betas": (0.9, 0.9)}, {}),
        "blocks.1.inner.weight is not trained, and here it is trained": (trained, None, {}),
        no_decay: (grouped, other_groups(grouped), {}),
        "of another (Net|module)": (Net(hidden=16), None, {}),
    }.items():
        with engine(method, module, config, **{"clip": None, **how}) as made:
            assert made.load(tmp_path) == 1
            with pytest.raises(ValueError, match=f"checkpoint .* {words}") as raised:
                made.step(batch, loss_of)
        assert not {"seq", "hidden", "layers"} & {*str(raised.value).split()} - {"layers"}


def test_an_older_checkpoint_that_tells_less_is_taken(engine, tmp_path) -> None:
    first, second = batches(2)
    with engine("plain", clip=None) as made:
        made.step(first, loss_of)
        path = made.save(tmp_path)
        wanted = made.step(second, loss_of)
    manifest = Saved.read(path).manifest
    assert manifest.settings == {"lr": LR}
    assert (manifest.continues.pop(FROZEN), manifest.continues.pop(NO_DECAY)) == (
        ["module.blocks.1.inner.weight"],
        [],
    )
    replace(manifest, settings={}).write(path)
    with engine("plain", clip=None) as made:
        assert made.load(tmp_path) == 1
        assert made.step(second, loss_of) == wanted


def test_an_engine_says_what_it_does_unless_it_is_to_be_quiet(engine, capsys, monkeypatch) -> None:
    for how, told in (({}, True), ({"quiet": True}, False)):
        with engine("stronghold", **how) as made:
            made.step(next(batches()), loss_of)
        said = capsys.readouterr().err.splitlines()
        words = ("cutting", "comparing", "profiling", "planning", "laying out", "first step")
        found = [any(line.startswith(f"workbench: {word}") for line in said) for word in words]
        assert found == [told] * len(words), said
        assert all(line.endswith(" s") for line in said if "..." in line)
    monkeypatch.setenv("RANK", "1")
    with engine("plain") as made:
        made._report.phase("only the first process speaks")
    assert not capsys.readouterr().err


def test_habits_of_torchs_loops_are_told_what_to_do_instead(engine) -> None:
    with engine("plain") as made:
        scheduler = lr_scheduler.ExponentialLR(made.optimizer, 0.5)
        loss = made.step(next(batches()), loss_of)
        assert loss.item() == loss == json.loads(json.dumps(loss))
        for words, habit in {
            "leave loss.backward": loss.backward,
            "leave engine.optimizer.step": made.optimizer.step,
            "an engine always trains": made.train,
            "model.eval": made.eval,
            "engine.state_dict": made.parameters,
            r"engine.step\(batch, loss_fn\) makes": lambda: made(next(batches())),
            "and update, and returns": lambda: made.backward(loss),
        }.items():
            with pytest.raises(ValueError, match=words):
                habit()
        made.optimizer.zero_grad()
        scheduler.step()
        assert made.optimizer.param_groups[0]["lr"] == LR / 2
        assert torch.tensor([loss]).item() == pytest.approx(loss)
