"""Waiting in a receive or a sum, told apart from the transfer.

A rank that receives is done when the message has come: most of that time it may wait for the
sender, and nothing moves over the network. All who take part in a message or a sum begin it at once
in a simulation; what ran shows who came first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from workbench.schedule.action import MEETING, RECEIVES, SENDS
from workbench.schedule.looks import WAITING
from workbench.schedule.simulate import Event

LEAST_S = 1e-6
"""Shorter waits are not told."""


def told_apart(events: Iterable[Event]) -> list[Event]:
    """The events; a receive or a sum that others began later is two: waiting, and the rest."""
    every, begun, found = list(events), defaultdict(list), []
    for event in every:
        if event.kind in MEETING and event.kind not in RECEIVES:
            begun[_meeting(event)].append(event.start_s)
    for event in every:
        meets = event.kind in MEETING and event.kind not in SENDS
        others = [at for at in begun[_meeting(event)] if at <= event.end_s] if meets else []
        if (at := max(others, default=event.start_s)) - event.start_s > LEAST_S:
            found.append(replace(event, kind=WAITING, end_s=at, nbytes=0))
            event = replace(event, start_s=at)
        found.append(event)
    return found


def _meeting(event: Event) -> tuple:
    """Messages and sums that are one have this in common."""
    turn = event.name.partition("+")[2]
    return MEETING[event.kind], event.unit, event.microbatch, turn, event.step
