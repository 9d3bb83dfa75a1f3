"""Reads the names of an action's buffers, and says what each is for (schedule/buffers.py)."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from workbench.schedule.action import RECEIVES, SENDS, Action, Kind
from workbench.schedule.schedule import DEVICE, Buffer, Schedule

LABEL = re.compile(r"(?:\d+:)?(?P<what>[a-z]+)(?P<unit>\d+)?(?:\.\d+)?(?:\+\d+)?")
PLACED = {"w": "weights", "g": "gradients", "o": "states"}
"""First letters of buffers with a fixed place on a device, in a slot or of their own -> their field
in `Links`."""
INPUTS = {"x", "xs"}
BACKWARD = (Kind.BACKWARD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD)
OUTPUTS = {"x", "xs", "y"}
GRADIENTS_IN, GRADIENTS_OUT = {"d", "ds"}, {"d", "ds", "e"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The buffers of one action, by what they are for."""

    weights: str | None
    gradients: str | None
    states: str | None
    source: str | None
    """Where a pass reads its input, or a message lies."""
    target: str | None
    output_gradient: str | None
    input_gradient: str | None
    host: str | None


def links_of(action: Action, schedule: Schedule) -> Links:
    """Sort an action's buffers by what they are for."""
    known: dict[str, str | None] = dict.fromkeys(Links.__dataclass_fields__)
    backward, below = action.kind in BACKWARD, action.unit - 1
    for label in dict.fromkeys((*action.takes, *action.uses, *action.frees)):
        match = LABEL.fullmatch(label)
        if match is None or match["unit"] is None:
            continue
        what, unit = match["what"], int(match["unit"])
        if schedule.buffers[label].tier != DEVICE:
            known["host"] = label
        elif what in PLACED:
            if unit == action.unit:  # not what it shares with another one
                known[PLACED[what]] = label
        elif action.kind in (*RECEIVES, Kind.FETCH):
            known["target"] = label
        elif action.kind in (*SENDS, Kind.STASH):
            known["source"] = label
        elif what in GRADIENTS_OUT and backward and (what == "e" or unit == below):
            known["input_gradient"] = label
        elif what in GRADIENTS_IN and backward:
            known["output_gradient"] = label
        elif what in INPUTS and unit == action.unit:
            known["source"] = label
        elif what in OUTPUTS:
            known["target"] = label
    return Links(**known)


def placed(label: str, buffer: Buffer, rank: int) -> tuple[str, int] | None:
    """(what, unit) of weights, gradients or states that have a fixed place on a rank's device."""
    match = LABEL.fullmatch(label)
    if match is None or match["unit"] is None or (buffer.tier, buffer.rank) != (DEVICE, rank):
        return None
    what = PLACED.get(match["what"])
    return None if what is None else (what, int(match["unit"]))


def residents(schedule: Schedule) -> frozenset[int]:
    """Units whose states are on the device of some rank."""
    found = set()
    for label, buffer in schedule.buffers.items():
        what, unit = placed(label, buffer, buffer.rank) or (None, None)
        if what == "states":
            found.add(unit)
    return frozenset(found)


@functools.cache
def what_of(label: str) -> tuple[str, int]:
    """(kind of buffer, unit) of a buffer of one unit."""
    match = LABEL.fullmatch(label)
    return match["what"], int(match["unit"])


@functools.cache
def holds_all(label: str) -> bool:
    """Whether a buffer of activations, or of their gradients, holds all samples of its rank."""
    return LABEL.fullmatch(label)["what"] in ("xs", "ds")
