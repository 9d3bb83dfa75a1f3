"""Habits of loops of torch's own, each answered by a sentence that says how an engine does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from workbench.core.mistakes import in_a_sentence


def instead(advice: str) -> Callable[..., Any]:
    """A method that raises ValueError with this advice."""

    @in_a_sentence()
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError(advice)

    return refuse


TRAINED = (
    "an engine trains a copy of the model's weights, and engine.state_dict() gives them; "
    "model.load_state_dict(engine.state_dict()) brings them into the model"
)
STEPS = (
    "engine.step(batch, loss_fn) makes forward pass, backward pass and update, and returns the loss"
)
MODE = (
    "an engine always trains; to evaluate, call model.load_state_dict(engine.state_dict()) and "
    "model.eval(), and model.train() before the next step"
)
PLACE = "an engine keeps its weights where its method puts them; give device and dtype to Engine"


class Loss(float):
    """The mean loss of a step, as a number."""

    __slots__ = ()

    def item(self) -> float:
        """The loss as a plain number."""
        return float(self)

    def detach(self) -> Self:
        """The loss, which has no gradients."""
        return self

    backward = instead(
        "engine.step(batch, loss_fn) has made the backward pass and the update; leave "
        "loss.backward() out"
    )


class Habits:
    """Methods that torch's modules and other engines have, and this one does otherwise."""

    __call__ = forward = backward = instead(STEPS)
    train = eval = instead(MODE)
    parameters = named_parameters = instead(TRAINED)
    load_state_dict = instead(
        "an engine begins with the weights that the model has when it is made; "
        "engine.load(folder) takes up a checkpoint"
    )
    to = cuda = cpu = instead(PLACE)
