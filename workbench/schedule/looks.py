"""How each kind of work looks, in every drawing of a schedule: the one table.

Okabe and Ito's palette, which colour-blind readers tell apart, and tints of it for rarer kinds.
Kinds that move the same thing share a colour, since the lane tells the direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.schedule.action import Kind


@dataclass(frozen=True, slots=True)
class ActionStyle:
    """How one kind of work is drawn."""

    words: str
    color: str
    ink: str = "white"
    """Colour of the letters on it."""


_WEIGHTS = ActionStyle("weights", "#009E73")
_ACTIVATIONS = ActionStyle("activations", "#9ADBC5", "black")
_GRADIENTS = ActionStyle("gradients", "#CC79A7", "black")
_STATES = ActionStyle("states", "#C9B98A", "black")
_MESSAGES = ActionStyle("messages", "#999999", "black")
_GRADIENT_MESSAGES = ActionStyle("messages of gradients", "#C9A0B4", "black")
_COLLECTIVES = ActionStyle("collectives", "#555555")
WAITING = "WAIT"
"""Code of a rank that waits for others in a receive or a sum (waits.py)."""
LOOKS: dict[str, ActionStyle] = {
    Kind.FORWARD: ActionStyle("forward", "#0072B2"),
    Kind.RECOMPUTE: ActionStyle("recompute", "#56B4E9", "black"),
    Kind.BACKWARD: ActionStyle("backward", "#D55E00"),
    Kind.INPUT_GRAD: ActionStyle("input gradient", "#E69F00", "black"),
    Kind.WEIGHT_GRAD: ActionStyle("weight gradient", "#A34700"),
    Kind.UPDATE: ActionStyle("update", "#F0E442", "black"),
    Kind.SETTLE: ActionStyle("update after norm", "#B8AD1F", "black"),
    Kind.MOMENTS: ActionStyle("moments after weights", "#7D7614"),
    Kind.NORM: ActionStyle("norm", "#000000"),
    Kind.LOAD: _WEIGHTS,
    Kind.EVICT: _WEIGHTS,
    Kind.STASH: _ACTIVATIONS,
    Kind.FETCH: _ACTIVATIONS,
    Kind.GRAD_OUT: _GRADIENTS,
    Kind.SUM_OUT: _GRADIENTS,
    Kind.SUM_IN: _GRADIENTS,
    Kind.PULL: _STATES,
    Kind.PUSH: _STATES,
    Kind.READ: _STATES,
    Kind.SPILL: _STATES,
    Kind.SEND: _MESSAGES,
    Kind.RECV: _MESSAGES,
    Kind.SEND_GRAD: _GRADIENT_MESSAGES,
    Kind.RECV_GRAD: _GRADIENT_MESSAGES,
    Kind.REDUCE: _COLLECTIVES,
    WAITING: ActionStyle("waiting for others", "#E9E9E9", "black"),
}
"""Code of a kind -> its look; the order is that of legends."""
