"""The tensors that cross a boundary between stages, and how they lie on both sides of it.

On the wire each element is once: the columns of a grid that hold replicas send a share each, and
the columns that want replicas get a share each, and gather the rest among themselves.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from workbench.model.operators.operator import OperatorList
from workbench.model.operators.place import Form, Place
from workbench.model.operators.places import handed
from workbench.runtime.transport.boxes import Move, Spread, moves

MAIN = "main"
"""Name of the tensor that goes from each operator to the next."""


class Setting(Protocol):
    """What a plan says of an operator."""

    tp: int
    dp: int
    algo: int
    """Its partition dimension, 0 or 1."""
    recompute: bool


class Shaped(Protocol):
    """A tensor of some samples."""

    def shape(self, samples: int) -> tuple[int, ...]: ...


class Crossing(NamedTuple):
    """A tensor that crosses a boundary."""

    name: str
    form: Shaped
    front: Spread
    """As the stage in front sends it."""
    behind: Spread
    """As the stage behind receives it."""
    differentiable: bool = True
    """Whether its gradient goes back."""

    def shape(self, samples: int) -> tuple[int, ...]:
        """Shape of a micro-batch's."""
        return self.form.shape(samples)

    def moves(self, samples: int) -> list[Move]:
        """The pieces of a micro-batch, from the processes in front to those behind."""
        shape = self.shape(samples)
        have, need = (
            [each.box(shape, process) for process in range(each.processes)]
            for each in (self.front, self.behind)
        )
        return moves(have, need)


def crossings(
    operators: OperatorList, places: list[Place], boundary: int, front: Setting, behind: Setting
) -> list[Crossing]:
    """What crosses the boundary before operator `boundary`, whose setting is `behind`."""

    def wire(form: Form, setting: Setting, sharded: bool) -> Spread:
        shard = form.shard if sharded else None
        return Spread(setting.tp, setting.dp, shard).once(1 + len(form.tail))

    found, every = [], operators.operators
    if every[boundary].kind != "embedding":  # which reads the model's input alone
        out = every[boundary - 1].layouts[front.algo][1].shard is not None
        into = every[boundary].layouts[behind.algo][0].shard is not None
        main = places[boundary - 1].form
        found.append(Crossing(MAIN, main, wire(main, front, out), wire(main, behind, into)))
    alive = {extra.name for extra in operators.alive(boundary)}
    for extra, _, form in handed(operators, places):
        if extra.name in alive:
            ends = wire(form, front, sharded=False), wire(form, behind, sharded=False)
            found.append(Crossing(extra.name, form, *ends))
    return found
