"""The sheet on which the pipeline program writes: drafts of all ranks, and where buffers lie."""

from __future__ import annotations

from typing import Any

from workbench.methods.pipeline.draft import LANES, Draft, Pipeline
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer


class Sheet:
    """Drafts, buffers and sizes of one step."""

    def __init__(self, line: Pipeline, sizes: Sizes) -> None:
        self.line, self.sizes = line, sizes
        self.drafts: list[list[Draft]] = []
        """Actions of each rank, in the order of all its lanes."""
        self.buffers: dict[str, Buffer] = {}

    def write(self, draft: Draft) -> None:
        """Put an action at the end of its lane."""
        self.drafts[draft.rank].append(draft)

    def message(self, kind: Kind, unit: int, micro: int | None, rank: int) -> Draft:
        """A message on its lane, not yet written."""
        nbytes = 0 if micro is None else self.input_bytes(unit, rank, micro)
        return Draft(kind=kind, unit=unit, micro=micro, rank=rank, lane=LANES[kind], nbytes=nbytes)

    # -- sizes ----------------------------------------------------------------------------------

    def cost(self, unit: int, rank: int, micro: int) -> UnitCost:
        """Cost of passing a micro-batch of a rank through a unit."""
        first, end = self.line.span(rank, micro)
        cost = self.sizes.cost(unit, end - first)
        return cost.from_checkpoint() if self.line.checkpoints(unit) else cost

    def input_bytes(self, unit: int, rank: int, micro: int) -> int:
        """Bytes of a unit's input in a micro-batch of a rank."""
        first, end = self.line.span(rank, micro)
        return self.sizes.input_bytes(unit, end - first)

    # -- buffers --------------------------------------------------------------------------------

    def make(self, draft: Draft, text: str, nbytes: int, **kw: Any) -> None:
        """Have an action take a new buffer of its device."""
        draft.makes.append(text)
        self.lay(draft.rank, text, nbytes, **kw)

    def lay(self, rank: int, text: str, nbytes: int, **kw: Any) -> None:
        """Enter a buffer of a rank's device."""
        self.buffers[self._label(rank, text)] = Buffer(tier=DEVICE, nbytes=nbytes, rank=rank, **kw)

    def lay_host(self, label: str, nbytes: int) -> str:
        """Enter a buffer of the host, by its full name; returns that."""
        self.buffers[label] = Buffer(tier=HOST_TIER, nbytes=nbytes, permanent=True)
        return label

    def _label(self, rank: int, text: str) -> str:
        return text if name.is_scratch(text) else name.on_rank(rank, text)

    # -- the result -----------------------------------------------------------------------------

    def actions(self) -> tuple[Action, ...]:
        """All that was written."""
        return tuple(self._action(draft) for drafts in self.drafts for draft in drafts)

    def _action(self, draft: Draft) -> Action:
        takes, frees, reads = (
            [self._label(draft.rank, t) for t in those]
            for those in (draft.makes, draft.frees, draft.reads)
        )
        uses = [t for t in reads if t not in takes and t not in frees]
        return Action(
            kind=draft.kind,
            unit=draft.unit,
            lane=draft.lane,
            microbatch=draft.micro,
            turn=draft.turn,
            rank=draft.rank,
            after=tuple(dict.fromkeys(draft.after)),
            nbytes=draft.nbytes,
            takes=tuple(takes),
            uses=tuple(dict.fromkeys([*uses, *draft.host])),
            frees=tuple(frees),
            samples=None if draft.micro is None else self.line.span(draft.rank, draft.micro),
        )
