"""Habits of loops of torch's own, each answered by a sentence that says how an engine does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.core.mistakes import in_a_sentence


def instead(advice: str) -> Callable[..., Any]:
    """A method that raises ValueError with this advice."""

    @in_a_sentence()
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError(advice)

    return refuse


STEPS = "engine.step(batch, loss_fn) makes forward pass, backward pass and update; leave {} out"
TRAINS = (
    "an engine always trains, and a copy of the model's weights: for {}, call "
    "model.load_state_dict(engine.state_dict()), and ask the model; "
    "engine.evaluate(loader, loss_fn) has the loss of held-out batches"
)


class Loss(float):
    """The mean loss of a step, as a number."""

    __slots__ = ()

    def item(self) -> float:
        """The loss as a plain number."""
        return float(self)

    backward = instead(STEPS.format("loss.backward()"))


class Habits:
    """Methods that torch's modules and other engines have, and this one does otherwise."""

    __call__ = forward = instead(STEPS.format("other calls of the engine"))
    backward = instead(STEPS.format("engine.backward(loss)"))
    train = eval = instead(TRAINS.format("another mode"))
    parameters = named_parameters = instead(TRAINS.format("parameters"))
    load_state_dict = instead("set the model's weights before an engine is made of it")
    to = cuda = cpu = instead("give device and dtype when an engine is made")
