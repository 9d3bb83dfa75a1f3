"""Actions and buffers of a step, entered by a builder of schedules in the order of each lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import DEVICE, Buffer


class ScheduleBuilder:
    """Collects the actions and buffers of one step."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.buffers: dict[str, Buffer] = {}

    def buffer(self, label: str, tier: str, nbytes: int, **kw: Any) -> str:
        """Enter a buffer; returns its name."""
        self.buffers[label] = Buffer(tier=tier, nbytes=nbytes, **kw)
        return label

    def scratch(self, owner: str, nbytes: int, *, rank: int = 0) -> str:
        """Enter the scratch memory of one compute action, which `add` frees with the action.
        Negative sizes count as 0: memory held before the action serves it."""
        return self.buffer(name.scratch(owner), DEVICE, max(0, nbytes), rank=rank)

    def add(
        self,
        kind: Kind,
        unit: int,
        lane: str,
        micro: int | None = None,
        *,
        turn: int = 0,
        rank: int = 0,
        after: Iterable[str] = (),
        nbytes: int = 0,
        takes: Iterable[str] = (),
        uses: Iterable[str] = (),
        frees: Iterable[str] = (),
        samples: tuple[int, int] | None = None,
    ) -> str:
        """Enter one action at the end of its lane; returns its name."""
        takes, frees = tuple(takes), tuple(frees)
        scratch = tuple([t for t in takes if name.is_scratch(t) and t not in frees])
        action = Action(
            kind=kind,
            unit=unit,
            lane=lane,
            microbatch=micro,
            turn=turn,
            rank=rank,
            after=tuple(dict.fromkeys(after)),
            nbytes=nbytes,
            takes=takes,
            uses=tuple(dict.fromkeys(uses)),
            frees=frees + scratch,
            samples=samples,
        )
        self.actions.append(action)
        return action.name
