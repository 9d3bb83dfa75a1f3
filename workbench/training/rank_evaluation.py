"""Evaluations by the first rank of a run, whose process reports them.

The run's process has no device. So the first rank evaluates at the end of a segment, when the host
has the weights of all ranks: on its GPU, where its memory is idle (evaluation.py). A file of the
ranks' folder has the figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from workbench.core.files import write_whole
from workbench.core.record import Evaluation
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.draws import Draws
from workbench.model.text import Batches
from workbench.ranks.failures import RankFailed
from workbench.runtime.checkpoint.checkpoint import by_unit
from workbench.runtime.rank import Rank, layouts_of
from workbench.training.evaluation import Evaluator
from workbench.training.rank_host import statistics

POLL_S = 0.005


class RankEvaluations:
    """Evaluations by one rank, which has come to the end of a segment."""

    def __init__(
        self, spec: RunSpec, rank: Rank, model: LayeredModel, batches: Batches | Draws, folder: Path
    ) -> None:
        """`folder` is that of the ranks, in the run's own."""
        self._spec, self._rank, self._folder, self._epoch = spec, rank, folder, len(batches)
        flats = [layout.flat for layout in layouts_of(model)]
        self._weights = by_unit(model, rank.updates, flats)
        self._evaluator = Evaluator(spec, folder.parent, epoch=self._epoch)

    def after(self, steps: int, ranks: int) -> None:
        """Evaluate after so many steps, where that is due. Raises Failed where another one of so
        many `ranks` has."""
        if not self._spec.evaluates_at(steps, self._epoch):
            return
        while self._rank.board.drained < steps:
            self._rank.board.check()
            time.sleep(POLL_S)
        found = self._evaluator.evaluate(self._weights, statistics(self._folder, ranks), steps)
        write_whole(_path(self._folder, steps), json.dumps([found, self._evaluator.note]))


def evaluation(folder: Path, steps: int, running: Callable[[], bool]) -> tuple[Evaluation, str]:
    """What a rank has found after so many steps, and its note. Raises RankFailed where ranks are no
    more `running`, which raises what made one fail."""
    path = _path(folder, steps)
    while not path.exists():
        if not running() and not path.exists():
            raise RankFailed(f"all ranks have ended, and none has evaluated after {steps} steps")
        time.sleep(POLL_S)
    return tuple(json.loads(path.read_text()))


def _path(folder: Path, steps: int) -> Path:
    return folder / f"evaluation-{steps}.json"
