"""How planners and the runtime call the memory of a layered model.

A buffer's name says what lies in it, so that a planner can write it down and the runtime can find
it. `unit` is a layer of the model, `micro` a micro-batch, `turn` 1 for the second visit of a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.schedule.action import Action

REPLAYS = "replays"
"""Device memory in which recorded passes work (`runtime/passes/replay.py`)."""
DISK_BOUNCE_BYTES = 2 << 20
"""Host memory through which the disk tier moves what is not aligned."""


def weights(unit: int, turn: int = 0) -> str:
    """Working weights of a unit on the device."""
    return f"w{unit}" + (f"+{turn}" if turn else "")


def gradients(unit: int, turn: int = 0) -> str:
    """Gradients of a unit on the device."""
    return f"g{unit}" + (f"+{turn}" if turn else "")


def states(unit: int, turn: int = 0) -> str:
    """Optimizer states (and fp32 master weights) of a unit on the device; where they visit it
    twice a step, turn 1 before the global norm is known and 2 after."""
    return f"o{unit}" + (f"+{turn}" if turn else "")


def activation(unit: int, micro: int, turn: int = 0) -> str:
    """Input of a unit on the device; turn 1 is the copy fetched back for the backward pass."""
    return f"x{unit}.{micro}" + (f"+{turn}" if turn else "")


def kept(unit: int, micro: int) -> str:
    """Everything autograd keeps between a unit's (re)forward and its backward pass."""
    return f"k{unit}.{micro}"


def checkpoint(unit: int, micro: int) -> str:
    """Everything kept between a unit's forward pass and a backward pass that computes the rest of
    it again, beside the unit's input."""
    return f"c{unit}.{micro}"


def keeps(action: Action) -> bool:
    """Whether a forward pass keeps either: the one that is differentiated."""
    place = action.unit, action.microbatch or 0
    return _names(action.takes, kept(*place)) or _names(action.takes, checkpoint(*place))


def checkpoints(action: Action) -> bool:
    """Whether a pass makes a checkpoint, or a backward pass begins at one."""
    label = checkpoint(action.unit, action.microbatch or 0)
    return _names((*action.takes, *action.frees), label)


def _names(texts: Iterable[str], label: str) -> bool:
    return any(text.rpartition(":")[2] == label for text in texts)


def half(unit: int, micro: int) -> str:
    """Everything kept between the two halves of a backward pass, beside `kept`."""
    return f"h{unit}.{micro}"


def output_gradient(unit: int, micro: int) -> str:
    """Gradient of a unit's output on the device."""
    return f"d{unit}.{micro}"


def scratch(action: str) -> str:
    """Scratch memory of one compute action."""
    return f"t:{action}"


def is_scratch(label: str) -> bool:
    """Whether a name is one of `scratch`."""
    return label.startswith("t:")


def lent_weights(unit: int, borrower: int) -> str:
    """Weights of a unit that another rank's unit borrows, where they arrive on its device."""
    return f"lw{unit}.{borrower}"


def lent_gradients(unit: int, borrower: int) -> str:
    """Gradients of them, where they arrive on the owner's device."""
    return f"lg{unit}.{borrower}"


def borrower_of(receive: Action) -> int:
    """The unit that borrows weights, by the action that receives them or their gradients."""
    return int(receive.takes[0].rpartition(".")[2])


def loan_of(label: str) -> tuple[int, int] | None:
    """Owner and borrower of lent gradients, by the name of their buffer on any rank; None of
    others."""
    found = re.fullmatch(r"(?:\d+:)?lg(\d+)\.(\d+)", label)
    return (int(found[1]), int(found[2])) if found else None


def host_weights(unit: int) -> str:
    """Working weights of a unit on the host: the source of its loads."""
    return f"hw{unit}"


def host_gradients(unit: int) -> str:
    """Gradients of a unit on the host."""
    return f"hg{unit}"


def host_sums(unit: int) -> str:
    """A sum of a unit's gradients that lacks micro-batches, on the host."""
    return f"hs{unit}"


def host_states(unit: int) -> str:
    """Optimizer states (with fp32 master weights, where working ones are narrower) on the host."""
    return f"ho{unit}"


def host_activation(unit: int, micro: int) -> str:
    """Stashed input of a unit on the host."""
    return f"hx{unit}.{micro}"


def disk_states(unit: int) -> str:
    """Optimizer states of a unit on the disk."""
    return f"do{unit}"


def output(unit: int, micro: int) -> str:
    """Output of a unit on the device, on its way to the rank of the next one."""
    return f"y{unit}.{micro}"


def input_gradient(unit: int, micro: int) -> str:
    """Gradient of a unit's input on the device, on its way to the rank of the unit before."""
    return f"e{unit}.{micro}"


def inputs(unit: int) -> str:
    """Inputs of a unit for all samples of a rank, on the device."""
    return f"xs{unit}"


def output_gradients(unit: int) -> str:
    """Gradients of a unit's output for all samples of a rank, on the device."""
    return f"ds{unit}"


def host_inputs(unit: int) -> str:
    """Stashed inputs of a unit for all samples, on the host."""
    return f"hxs{unit}"


def on_rank(rank: int, label: str) -> str:
    """The buffer's name on a rank; rank 0 adds nothing."""
    return f"{rank}:{label}" if rank else label
