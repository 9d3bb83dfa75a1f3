"""Steps that fail: they have changed nothing, or no other one is made before a load."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from tests.methods.loops import CLIP, WAYS, batches, distance, loss_of, near, net, normed
from workbench import Engine

SCHEDULED = ("stronghold", "l2l", "megatron-lm", "harmony-pp", "varuna")


class Stop:
    """Presses a notebook's button for stopping before or after the n-th action of a step."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def executor_of(engine: Engine) -> Any:
    steps = engine._steps
    if hasattr(steps, "_rank"):
        return steps._rank.executor
    if hasattr(steps, "_model"):
        return next(iter(steps._model._stepping._executors.values()))
    return steps._whole.executor


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("method", SCHEDULED)
def test_a_step_stopped_in_any_action_changes_nothing_or_asks_for_a_checkpoint(
    engine, tmp_path, method, clip
) -> None:
    first, second, third = batches(3)
    with engine(method, clip=clip, **WAYS[method]) as made:
        made.step(first, loss_of)
        made.save(tmp_path)
        wanted, weights = [made.step(batch, loss_of) for batch in (second, third)], None
        weights, refused = made.state_dict(), 0
        for number in count(1):
            made.load(tmp_path)
            executor_of(made)._perturb = stop = Stop(number)
            if stop_was_late(made, third, stop):
                break
            executor_of(made)._perturb = None
            try:
                losses = [made.step(batch, loss_of) for batch in (second, third)]
            except ValueError as error:
                assert "step 1 failed (KeyboardInterrupt" in str(error)
                assert "load a checkpoint" in str(error)
                for ask in (made.state_dict, lambda: made.save(tmp_path)):
                    with pytest.raises(ValueError, match="load a checkpoint"):
                        ask()
                refused += 1
                continue
            assert losses == pytest.approx(wanted, rel=1e-6), number
            near(made.state_dict(), weights)
    assert 3 < number and (refused > 3) == (method != "varuna")


def stop_was_late(engine: Engine, batch: dict, stop: Stop) -> bool:
    try:
        engine.step(batch, loss_of)
    except KeyboardInterrupt:
        return False
    return stop.left > 0
