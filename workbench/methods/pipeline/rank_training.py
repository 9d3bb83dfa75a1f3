"""Model, data and history of a rank of a run that `trained_ranks` trains: what methods whose steps
are their own begin and end with."""

from __future__ import annotations

from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.training.history import History
from workbench.training.run import load_batches


class RankTraining:
    """One rank's; those of a method add its `run` and its `outcome`."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        self._spec, self._report, self._folder = spec, report, folder
        self._model = make_model(spec.model, spec.seed)
        self._batches = load_batches(spec, self._model, folder / "cache")
        self.history = History(spec, folder, self._batches, model=self._model)

    def _measured(self, device_peak: int | None, *notes: str) -> Outcome:
        """The measured half of the record, of a run that keeps all on the device."""
        return Outcome(
            **self.history.measured(),
            peak_bytes={"device": device_peak, "host": 0, "disk": 0},
            moved_bytes=dict.fromkeys(("load", "store", "read", "write"), 0),
            parameters=self._model.parameters_count(), engine="workbench",
            notes=[*self.history.notes, *notes],
        )  # fmt: skip
