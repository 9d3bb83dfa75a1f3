"""Measurements of this project of pipelines in every shape, beside what was predicted for them.

``results/published-here/<device>/pipelines.csv`` has one row a run, as servers.csv has, and is read
by the same rules (sheet.py). P stages times D replicas are its ranks, m the samples of a
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from workbench.published import servers, sheet

FILE = "pipelines.csv"
COLUMNS = (
    "method", "ranks", "replicas", "micro", "layers", "hidden", "heads", "seq", "batch", "dtype",
    "clip", "device_cap_gib", "host_cap_gib", "parameters", "status", "samples_per_second",
    "step_seconds_median", "step_seconds_spread", "predicted_step_seconds", "error",
    "peak_device_gib", "predicted_peak_device_gib", "bubble", "predicted_bubble", "host_gib",
    "final_loss", "commit", "measured_on",
)  # fmt: skip
ORDERS = ("gpipe", "1f1b", "interleaved", "zb-h1", "varuna")
"""Our own."""
PEERS = ("torch-gpipe", "torch-1f1b", "torch-interleaved", "torch-zero-bubble", "deepspeed-pipe")
LABELS = servers.LABELS | {"varuna": "Varuna", "deepspeed-pipe": "DeepSpeed 1F1B"}
LABELS = {name: LABELS[name] for name in (*ORDERS, *PEERS)}
"""The methods a row may name, and what figures call them; in the order in which they are drawn."""
SETTINGS = COLUMNS[:13]
"""Columns that two runs must have in common to be one run that was repeated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineRun(sheet.Run):
    """One run."""

    LABELS = LABELS

    ranks: int
    """GPUs that took part."""
    replicas: int
    """Pipelines side by side."""
    micro: int
    """Samples of a micro-batch."""
    error: float | None
    """Predicted seconds of a step over measured ones, less 1."""
    bubble: float | None
    """Share of a step in which a stage computes no pass, the mean over stages."""
    predicted_bubble: float | None
    """`bubble` of the plan, simulated with the measured costs."""

    @property
    def shape(self) -> str:
        """Stages, replicas and micro-batch as tables write them: ``4x1 m2``."""
        return f"{self.ranks // self.replicas}x{self.replicas} m{self.micro}"


def pipeline_runs(roots: Iterable[Path]) -> list[PipelineRun]:
    """The runs in ``<root>/published-here/*/pipelines.csv`` of every root.

    Empty where there is no such file. Raises ValueError as `read_pipelines` does.
    """
    return [run for file in sheet.files(roots, FILE) for run in read_pipelines(file)]


def latest(runs: Iterable[PipelineRun]) -> list[PipelineRun]:
    """The last one of each set of equal runs (`sheet.latest`)."""
    return sheet.latest(runs, SETTINGS)


def read_pipelines(path: Path) -> list[PipelineRun]:
    """All rows of a file, in order. Lines that begin with ``#`` are comments.

    Raises ValueError for a file without the columns `COLUMNS` and for a row that cannot be right,
    naming file, line, column and value.
    """
    return sheet.read(path, COLUMNS, _READERS, PipelineRun, _contradiction)


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Distances of what was predicted from what was measured, over some runs."""

    runs: int
    mean: float
    worst: float
    """Its absolute value."""
    at: PipelineRun
    """The run of the worst."""


def step_errors(runs: Iterable[PipelineRun]) -> Errors | None:
    """Of the seconds of a step, as a share; None where nothing was predicted."""
    return _errors(runs, lambda run: run.error)


def peak_errors(runs: Iterable[PipelineRun]) -> Errors | None:
    """Of the fullest device's peak bytes, as a share."""
    return _errors(runs, lambda run: _ratio(run.predicted_peak_device_gib, run.peak_device_gib))


def bubble_errors(runs: Iterable[PipelineRun]) -> Errors | None:
    """Of the bubble, in parts of a step."""

    def difference(run: PipelineRun) -> float | None:
        both = run.predicted_bubble, run.bubble
        return None if None in both else both[0] - both[1]

    return _errors(runs, difference)


def choice(runs: Iterable[PipelineRun]) -> tuple[PipelineRun, PipelineRun] | None:
    """Of runs of one batch on as many devices, the one that is predicted to be fastest, and the one
    that is; None where none was predicted."""
    ended = [run for run in runs if run.step_seconds_median is not None]
    foreseen = [run for run in ended if run.predicted_step_seconds is not None]
    if not foreseen:
        return None
    chosen = min(foreseen, key=lambda run: run.predicted_step_seconds)
    return chosen, min(ended, key=lambda run: run.step_seconds_median)


def _errors(
    runs: Iterable[PipelineRun], of: Callable[[PipelineRun], float | None]
) -> Errors | None:
    found = [(abs(value), run) for run in runs if (value := of(run)) is not None]
    if not found:
        return None
    worst, at = max(found, key=lambda one: one[0])
    return Errors(runs=len(found), mean=fmean(value for value, _ in found), worst=worst, at=at)


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted and measured else None


def _contradiction(run: PipelineRun, texts: dict[str, str]) -> str:
    """Contradiction among the fields of a row; empty where they agree."""
    if run.ranks % run.replicas or run.batch % (run.replicas * run.micro):
        return (
            f"{texts['replicas']} replicas in micro-batches of {texts['micro']} divide no batch of "
            f"{texts['batch']} on {texts['ranks']} ranks"
        )
    return sheet.contradiction(run, texts)


def _share(text: str) -> float:
    """A part of a whole."""
    if not 0 <= (value := sheet.number(text)) <= 1:
        raise ValueError("it must be a number from 0 to 1")
    return value


_READERS: dict[str, Callable[[str], Any]] = {
    **sheet.READERS,
    "method": sheet.method_of(LABELS),
    **dict.fromkeys(("ranks", "replicas", "micro"), sheet.count),
    "error": sheet.or_none(sheet.number),
    **dict.fromkeys(("bubble", "predicted_bubble"), sheet.or_none(_share)),
}
