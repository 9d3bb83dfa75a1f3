"""One step of a pipeline while its program is written: actions that can still change, and buffers.

In an `ActionDraft` a device's buffers are named as on position 0; `StepDraft.actions` gives them
their full names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.methods.pipeline.definition import LANES, Pipeline
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, Action, Kind, format_name
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer


@dataclass(kw_only=True)
class ActionDraft:
    """An action that is being written."""

    kind: Kind
    unit: int
    position: int
    lane: str = COMPUTE
    number: int = 0
    """Number of its pass through a stage, among those of its position."""
    turn: int = 0
    """Actions of its name before it in the step."""
    micro: int | None = None
    after: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)
    """Buffers that it takes."""
    reads: list[str] = field(default_factory=list)
    """Further buffers that must be there; permanent ones too."""
    host: list[str] = field(default_factory=list)
    """Host buffers that it reads or writes, by their full names."""
    frees: list[str] = field(default_factory=list)
    nbytes: int = 0

    @property
    def name(self) -> str:
        """Its name in the schedule."""
        return format_name(self.kind, self.unit, self.micro, turn=self.turn, rank=self.position)


class StepDraft:
    """Actions, buffers and sizes of one step."""

    def __init__(self, line: Pipeline, sizes: Sizes) -> None:
        self.line, self.sizes = line, sizes
        self.drafts: list[list[ActionDraft]] = []
        """Actions of each position, in the order of all its lanes."""
        self.buffers: dict[str, Buffer] = {}

    def write(self, draft: ActionDraft) -> None:
        """Put an action at the end of its lane."""
        self.drafts[draft.position].append(draft)

    def message(self, kind: Kind, unit: int, micro: int | None, position: int) -> ActionDraft:
        """A message on its lane, not yet written."""
        nbytes = 0 if micro is None else self.input_bytes(unit, position, micro)
        return ActionDraft(
            kind=kind, unit=unit, micro=micro, position=position, lane=LANES[kind], nbytes=nbytes
        )

    # -- sizes ----------------------------------------------------------------------------------

    def cost(self, unit: int, position: int, micro: int) -> UnitCost:
        """Cost of passing a micro-batch of a position through a unit."""
        first, end = self.line.span(position, micro)
        cost = self.sizes.cost(unit, end - first)
        return cost.from_checkpoint() if self.line.checkpoints(unit) else cost

    def input_bytes(self, unit: int, position: int, micro: int) -> int:
        """Bytes of a unit's input in a micro-batch of a position."""
        first, end = self.line.span(position, micro)
        return self.sizes.input_bytes(unit, end - first)

    # -- buffers --------------------------------------------------------------------------------

    def make(self, draft: ActionDraft, text: str, nbytes: int, **kw: Any) -> None:
        """Have an action take a new buffer of its device."""
        draft.makes.append(text)
        self.lay(draft.position, text, nbytes, **kw)

    def lay(self, position: int, text: str, nbytes: int, **kw: Any) -> None:
        """Enter a buffer of a position's device."""
        label = self._label(position, text)
        self.buffers[label] = Buffer(tier=DEVICE, nbytes=nbytes, rank=position, **kw)

    def lay_host(self, label: str, nbytes: int, parts: int = 1) -> str:
        """Enter a buffer of the host, by its full name; returns that. `nbytes` are a part's."""
        self.buffers[label] = Buffer(
            tier=HOST_TIER, nbytes=nbytes * parts, permanent=True, parts=parts
        )
        return label

    def _label(self, position: int, text: str) -> str:
        return text if name.is_scratch(text) else name.on_rank(position, text)

    # -- the result -----------------------------------------------------------------------------

    def actions(self) -> tuple[Action, ...]:
        """All that was written."""
        return tuple(self._action(draft) for drafts in self.drafts for draft in drafts)

    def _action(self, draft: ActionDraft) -> Action:
        takes, frees, reads = (
            [self._label(draft.position, t) for t in those]
            for those in (draft.makes, draft.frees, draft.reads)
        )
        uses = [t for t in reads if t not in takes and t not in frees]
        span = None if draft.micro is None else self.line.span(draft.position, draft.micro)
        return Action(
            kind=draft.kind,
            unit=draft.unit,
            lane=draft.lane,
            microbatch=draft.micro,
            turn=draft.turn,
            rank=draft.position,
            after=tuple(dict.fromkeys(draft.after)),
            nbytes=draft.nbytes,
            takes=tuple(takes),
            uses=tuple(dict.fromkeys([*uses, *draft.host])),
            frees=tuple(frees),
            samples=span,
        )
