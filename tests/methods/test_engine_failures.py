"""Steps that fail have changed nothing, or no other one is made before a load."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.methods.harness import half
from tests.methods.loops import CLIP, WAYS, batches, by_torch, distance, loss_of, near, net, normed
from workbench import Engine
from workbench.schedule.action import COMPUTE, Kind


def stop_after(calls: int) -> Callable:
    """Presses a notebook's button for stopping."""
    left = iter(range(calls))

    def press(*_: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return press


def check_refuses(engine: Engine, batch: dict[str, Tensor], folder: Path) -> None:
    """No call is left but a load."""
    calls = (lambda: engine.step(batch, loss_of), engine.state_dict, lambda: engine.save(folder))
    for call in calls:
        with pytest.raises(ValueError, match=r"step 1 failed \(KeyboardInterrupt\).*load a check"):
            call()


@pytest.mark.parametrize(
    ("method", "every", "clip"),
    half(
        (*one, clip)
        for one in (("stronghold", 4), ("l2l", 7), ("harmony-pp", 5))
        for clip in (CLIP, None)
    ),
)
def test_a_step_stopped_in_any_action_changes_nothing_or_asks_for_a_checkpoint(
    engine, tmp_path, method, every, clip
) -> None:
    first, second, third = batches(3)
    with engine(method, clip=clip, **WAYS[method]) as made:
        made.step(first, loss_of)
        made.save(tmp_path)
        wanted = [made.step(batch, loss_of) for batch in (second, third)]
        weights, seen = made.state_dict(), set()
        steps = made._steps
        executor = steps._rank.executor if method == "harmony-pp" else steps._whole.executor
        for number in count(1, every):  # an action calls twice, before its work and after
            made.load(tmp_path)
            executor._perturb = stop_after(number)
            try:
                made.step(third, loss_of)
                break
            except KeyboardInterrupt:
                executor._perturb = None
            seen.add(steps.whole)
            if not steps.whole:
                check_refuses(made, second, tmp_path)
                continue
            losses = [made.step(batch, loss_of) for batch in (second, third)]
            assert losses == pytest.approx(wanted, rel=1e-6), number
            near(made.state_dict(), weights)
    assert seen == {True, False}


@pytest.mark.parametrize("method", ["plain", "fsdp", "varuna"])
def test_an_update_of_torchs_that_is_stopped_asks_for_a_checkpoint(
    engine, tmp_path, method
) -> None:
    first, second, third = batches(3)
    with engine(method, net(frozen=method != "fsdp"), clip=None) as made:
        made.step(first, loss_of)
        made.save(tmp_path)
        wanted, weights = made.step(second, loss_of), made.state_dict()
        made.load(tmp_path)
        steps = made._steps
        optimizer = steps._optimizer if method == "varuna" else steps._whole.optimizer
        update = optimizer.step
        optimizer.step = lambda *given: stop_after(0)(update(*given))
        with pytest.raises(KeyboardInterrupt):
            made.step(third, loss_of)
        optimizer.step = update
        assert made.load(tmp_path / "none") is None
        check_refuses(made, second, tmp_path)
        assert made.load(tmp_path) == 1
        assert made.step(second, loss_of) == pytest.approx(wanted, rel=1e-6)
        near(made.state_dict(), weights)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(way, marks=pytest.mark.thorough)
        if way in ("plain", "megatron-lm", "l2l")  # whose loop is STRONGHOLD's
        else way
        for way in (*WAYS, "fsdp")
    ],
)
def test_a_bad_row_of_the_second_micro_batch_is_left_out(engine, method) -> None:
    module, given = net(frozen=method != "fsdp"), [*batches(3)]
    how, losses = {"clip": None, **WAYS.get(method, {}), "microbatches": 2}, []
    wanted, _ = by_torch(module, given, clip=None)
    with engine(method, module, **how) as made:
        for batch in given:
            if losses:
                labels = batch["labels"].index_fill(0, torch.tensor([3]), 77)
                with pytest.raises(IndexError):
                    made.step({**batch, "labels": labels}, loss_of)
            losses.append(made.step(batch, loss_of))
    assert losses == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("method", ["plain", "stronghold", "varuna", "harmony-pp"])
def test_a_step_that_fails_leaves_statistics_as_they_were(engine, tmp_path, method) -> None:
    def classes(out: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(torch.cat([out, -out], 1), pair[1][:, 0])

    module, data = normed()
    (first, second, third), found = [(x, (y > 0).long()) for x, y in data[:3]], []
    with engine(method, module, microbatches=2) as made:
        made.step(first, classes)
        made.save(tmp_path)
        for fails in (True, False):
            if fails:
                bad = second[1].index_fill(0, torch.tensor([7]), 9)
                with pytest.raises(IndexError):
                    made.step((second[0], bad), classes)
            else:
                made.load(tmp_path)
            made.step(third, classes)
            found.append({name: value.clone() for name, value in made.state_dict().items()})
    near(*found)


@pytest.mark.parametrize(
    ("method", "clip"),
    [("plain", None), ("stronghold", CLIP), ("harmony-pp", CLIP), ("1f1b", None)],
)
def test_a_step_without_finite_gradients_is_left_out_in_a_line(engine, capsys, method, clip):
    module, (first, bad, third, *_) = normed()
    bad[0][3, 2] = torch.inf
    with engine(method, module, clip=clip, quiet=method == "plain") as made:
        made.step(first, distance)
        before = made.state_dict()
        assert not made.step(bad, distance) < torch.inf
        assert (made.steps, made.skipped) == (2, 1)
        near(made.state_dict(), before)
        assert made.step(third, distance) < torch.inf
    words = "workbench: step 1 is left out, since its gradients are not finite\n"
    assert capsys.readouterr().err.count(words) == (method != "plain")


@pytest.mark.parametrize("method", ["l2l", "harmony-pp"])
def test_gradients_that_nobody_waits_for_end_the_step_in_a_sentence(engine, tmp_path, method):
    (first, bad, third, *_), module = normed(batchnorm=False)[1], normed(batchnorm=False)[0]
    bad[0][3, 2] = torch.inf
    with engine(method, module, clip=None) as made:
        made.step(first, distance)
        made.save(tmp_path)
        before = {name: value.clone() for name, value in made.state_dict().items()}
        with pytest.raises(ValueError, match="not finite at step 1, .*or set clip"):
            made.step(bad, distance)
        # Whether an update had begun by then is a matter of time; the engine knows.
        if made._steps.whole:
            torch.testing.assert_close(made.state_dict(), before, rtol=0, atol=0)
            later = "not finite at step 1, .*or set clip"
        else:
            later = "step 1 failed .*; load a checkpoint"
        with pytest.raises(ValueError, match=later):
            made.step(bad, distance)
        assert made.load(tmp_path) == 1
        assert made.step(third, distance) < torch.inf


def slow_in_updates(action: Any, _: int) -> None:
    if action.kind in (Kind.UPDATE, Kind.SETTLE):
        time.sleep(0.02)


@pytest.mark.parametrize("method", ["stronghold", pytest.param("l2l", marks=pytest.mark.thorough)])
def test_updates_of_a_step_are_finished_when_the_next_one_fails(engine, method) -> None:
    given, found = [*batches(3)], []
    bad = {**given[1], "labels": given[1]["labels"].index_fill(0, torch.tensor([3]), 77)}
    for fails in (False, True):
        with engine(method, **WAYS[method]) as made:
            losses = [made.step(given[0], loss_of)]
            made._steps._whole.executor._perturb = slow_in_updates
            if fails:
                with pytest.raises(IndexError):
                    made.step(bad, loss_of)
            losses += [made.step(batch, loss_of) for batch in given[1:]]
            found.append((losses, made.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    near(found[0][1], found[1][1])


def test_an_update_that_fails_when_its_step_has_ended_is_told_with_the_next_call(
    engine, tmp_path
) -> None:
    first, second, third = batches(3)

    def fail(action: Any, _: int) -> None:
        if action.kind in (Kind.UPDATE, Kind.SETTLE) and action.lane != COMPUTE:
            time.sleep(0.1)
            raise OSError("the disk is full")

    with engine("l2l", **WAYS["l2l"]) as made:
        made.step(first, loss_of)
        made.save(tmp_path)
        wanted = made.step(second, loss_of)
        executor = made._steps._whole.executor
        made.load(tmp_path)
        executor._perturb = fail
        made.step(third, loss_of)
        with pytest.raises(OSError, match="the disk is full"):
            made.state_dict()
        executor._perturb = None
        with pytest.raises(ValueError, match=r"step 1 failed \(OSError: the disk.*load a check"):
            made.step(second, loss_of)
        assert made.load(tmp_path) == 1
        assert made.step(second, loss_of) == pytest.approx(wanted, rel=1e-6)


def test_lanes_of_an_engine_that_nobody_closed_end(engine) -> None:
    made = engine("stronghold", **WAYS["stronghold"])
    before = {*threading.enumerate()}
    made.step(next(iter(batches(1))), loss_of)
    lanes = {*threading.enumerate()} - before
    assert lanes
    del made
    for _ in range(100):  # a lane that still updates keeps all until it has done so
        gc.collect()
        lanes = {lane for lane in lanes if lane.is_alive()}
        if not lanes:
            break
        time.sleep(0.1)
    assert not lanes
