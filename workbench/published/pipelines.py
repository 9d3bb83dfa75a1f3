"""Measurements of this project of pipelines in every shape, beside what was predicted for them.

``results/published-here/<device>/pipelines.csv`` has one row a run, as servers.csv has, and is read
by the same rules (sheet.py). P stages times D replicas are its ranks, m the samples of a
micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

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


_SHEET = sheet.Sheet(
    file=FILE,
    columns=COLUMNS,
    settings=COLUMNS[:13],
    kind=PipelineRun,
    readers={
        **dict.fromkeys(("ranks", "replicas", "micro"), sheet.count),
        "error": sheet.or_none(sheet.number),
        **dict.fromkeys(("bubble", "predicted_bubble"), sheet.or_none(_share)),
    },
    wrong=_contradiction,
)
pipeline_runs, latest, read_pipelines = _SHEET.runs, _SHEET.latest, _SHEET.read
"""The runs of some roots; the last one of each set of equal runs; the rows of a file."""
