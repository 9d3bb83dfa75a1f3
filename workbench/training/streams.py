"""Loops over a loader: an engine takes the batches, and yields losses or figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from workbench.core.habits import Loss
from workbench.core.methods import Method
from workbench.core.mistakes import in_a_sentence
from workbench.core.reporter import Lines, Untold
from workbench.model.objective import LossFunction, Weigh
from workbench.runtime.checkpoint.checkpoint import ByUnit
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.groups import as_one
from workbench.training.own_evaluation import Figures, Trained, evaluated
from workbench.training.run import resolve_device
from workbench.training.weights_out import WeightsOut


class Streams(WeightsOut):
    """Part of an engine whose steps may overlap."""

    _fields: Mapping[str, Any]
    _report: Lines | Untold
    _row: Method
    _load_from: tuple[Path, int] | None
    _weight_of: Weigh | None

    def stream(self, loader: Iterable[Any], loss_fn: LossFunction) -> Iterator[Loss]:
        """Train on a loader's batches, each as in `step`; yields their mean losses in order. A
        method whose stages are updated by themselves takes batches ahead: a loss comes some batches
        later. An update has the learning rate of the time when its batch was taken. Of several
        processes each has a loader, of as many batches as the others'. Raises as `step` does."""
        for batch in loader:
            yield from self._take(batch, loss_fn)
        if self._steps is not None:
            yield from self._rest()

    @in_a_sentence(calls_users=True)
    def evaluate(self, loader: Iterable[Any], loss_fn: LossFunction) -> Figures:
        """Figures of the weights of now on held-out batches, each as `step` takes them, or on one
        batch that is no list: `samples`, mean `loss`, and where labels are whole numbers `accuracy`
        of classes or `perplexity` of texts. A copy of the module passes forward in evaluation mode,
        without gradients: on the GPU that trains in the type of training, within the memory that
        training leaves, else in fp32 on the processor. Training goes on as if nobody had asked.
        Between steps, or within the loop over a stream. Of several processes each calls it; the
        first one evaluates its batches, and all have the figures. Raises ValueError for batches
        that cannot be evaluated."""
        self._check_open()
        weights: ByUnit | None = None
        with self._peers.together("in evaluate", self._taken_up):
            if self._steps is not None:
                self._steps.pause()
                weights = self._steps.weights()
        of_tensors = isinstance(loader, tuple) and {*map(type, loader)} == {Tensor}
        if of_tensors or isinstance(loader, Mapping | Tensor):
            loader = [loader]
        first, group, fields = self._peers.rank == 0, self._peers.group, self._fields
        where = "cpu" if self._row.asynchronous else fields["device"]  # whose stages go on

        def figures() -> Figures:
            return evaluated(
                Trained(module=self._shape(), weights=weights, first=self._given), loader, loss_fn,
                weight_of=self._weight_of, budget=fields["device_memory"],
                device=resolve_device(where), dtype=DTYPES[fields["dtype"]],
                say=self._report.say,
            )  # fmt: skip

        with self._peers.watched("in evaluate"):
            return as_one(figures if first else dict, group)[0]

    def _taken_up(self) -> dict[str, Any]:
        """Raise ValueError where weights wait for a step."""
        if self._load_from is not None:
            raise ValueError("the checkpoint is taken up with the next step; ask after it")
        return {}

    def _take(self, batch: Any, loss_fn: LossFunction) -> list[Loss]:
        """Do a step, or begin one; the losses of steps that have ended."""
        raise NotImplementedError

    @in_a_sentence()
    def _rest(self) -> list[Loss]:
        """Losses of the steps that only now end."""
        with self._peers.watched("in the last steps"):
            return [*map(Loss, self._steps.rest())]
