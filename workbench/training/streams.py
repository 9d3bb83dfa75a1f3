"""A loop over a loader: an engine takes the batches, and yields the losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from workbench.core.habits import Loss
from workbench.core.mistakes import in_a_sentence
from workbench.model.objective import LossFunction
from workbench.ranks.peers import Peers
from workbench.training.loop import Steps


class Streams:
    """Part of an engine whose steps may overlap."""

    _peers: Peers
    _steps: Steps | None

    def stream(self, loader: Iterable[Any], loss_fn: LossFunction) -> Iterator[Loss]:
        """Train on a loader's batches, each as in `step`; yields their mean losses in order. A
        method whose stages are updated by themselves takes batches ahead: a loss comes some batches
        later. An update has the learning rate of the time when its batch was taken. Of several
        processes each has a loader, of as many batches as the others'. Raises as `step` does."""
        for batch in loader:
            yield from self._take(batch, loss_fn)
        if self._steps is not None:
            yield from self._rest()

    def _take(self, batch: Any, loss_fn: LossFunction) -> list[Loss]:
        """Do a step, or begin one; the losses of steps that have ended."""
        raise NotImplementedError

    @in_a_sentence()
    def _rest(self) -> list[Loss]:
        """Losses of the steps that only now end."""
        with self._peers.watched("in the last steps"):
            return [*map(Loss, self._steps.rest())]
