"""Checkpoints of which every rank writes and reads a part, when one of them is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch.distributed as dist

from workbench.runtime.checkpoint.checkpoint import KINDS
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.transport.groups import as_one


class Together:
    """Mixed into a `Holder` (checkpoint.py) of which every rank has a part: what the lead is asked
    for, all do, and where one cannot, all are told."""

    over: dist.ProcessGroup | None = None
    """The ranks; None is all, in their own group."""
    lead = 0
    """Rank, in that group, that names folders and writes manifests."""

    def save(self, save: Callable[[], None]) -> None:
        """Call `save` on the lead. All write whenever it does, twice where a disk is full."""
        if dist.get_rank(self.over) == self.lead:
            save()
            self._told(None)
            return
        while (asked := self._told(None)) is not None:
            folder, *kinds = asked
            with suppress(OSError):
                as_one(partial(super().write, Path(folder), kinds), self._all)

    def weights(self) -> None:
        """As `Holder.weights`: there are files for that."""

    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`, on the lead, inside its `save`."""
        self._told([str(folder), *kinds])
        as_one(partial(super().write, folder, kinds), self._all)

    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`, on every rank."""
        as_one(partial(super().restore, saved), self._all)

    @property
    def _all(self) -> dist.ProcessGroup:
        return self.over or dist.group.WORLD

    def _told(self, asked: list[str] | None) -> list[str] | None:
        """The lead's words, on every rank."""
        return as_one(lambda: asked, self._all)[self.lead]
