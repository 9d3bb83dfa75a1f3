"""Runs of the benchmark of pipelines: orders and peers in every shape of a few GPUs. All data.

A shape is P stages times D replicas in micro-batches of m samples, each a case. Every run trains
the same model on the same samples from the same weights, with activations computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.offload_cases import TRAINING, Case, Entry, chosen, entry_of
from benchmarks.server_cases import GPT2_XL
from workbench.published.here import PIPELINES

METHODS: dict[str, dict[str, Any]] = {
    name: {"method": name, "activations": "recompute"} for name in PIPELINES.labels
}
"""Name in the CSV -> fields of the spec."""
EVERYWHERE = ("varuna",)
OURS = ("1f1b", "zb-h1", "interleaved")
"""Orders that are compared with it, where all GPUs take part."""
TORCH = ("torch-1f1b", "torch-gpipe", "torch-interleaved", "torch-zero-bubble")
"""Which have no replicas."""
DEEPSPEED = ("deepspeed-pipe",)

BATCH = 64
MICROS = (1, 2, 4, 8)
SHAPES: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 1): EVERYWHERE,
    (2, 1): (*EVERYWHERE, *TORCH, *DEEPSPEED),
    (1, 2): EVERYWHERE,
    (4, 1): (*EVERYWHERE, *OURS, *TORCH, *DEEPSPEED),
    (2, 2): (*EVERYWHERE, *OURS, *DEEPSPEED),
    (1, 4): EVERYWHERE,
}
"""(P, D) -> who runs there."""
STEPS = (2, 8)
"""Warm-up and measured ones: ten."""


def _case(shape: tuple[int, int], micro: int, batch: int, changes: dict[str, Any]) -> Case:
    stages, replicas = shape
    return Case(
        name=f"{stages}x{replicas}-m{micro}",
        methods=SHAPES[shape],
        changes={
            **changes, "batch": batch, "ranks": stages * replicas,
            "microbatches": batch // (replicas * micro),
        },
        of_method={
            name: {"replicas": replicas} for name in SHAPES[shape] if name not in TORCH
        },
        steps=STEPS,
    )  # fmt: skip


TINY: dict[str, Any] = {
    **TRAINING, "device": "cpu", "text": str(Path(__file__).resolve()), "layers": 4, "hidden": 32,
    "heads": 4, "seq": 16, "vocab": 256, "dtype": "fp32",
}  # fmt: skip
CASES: dict[str, tuple[Case, ...]] = {
    "paper": tuple(_case(shape, m, BATCH, GPT2_XL) for shape in SHAPES for m in MICROS),
    "tiny": tuple(_case(shape, m, 8, TINY) for shape in ((2, 1), (1, 2)) for m in (1, 2)),
}
"""By size: of the published model, or small enough for any machine."""


def entries(size: str, *, warmup: int, measured: int, only: Iterable[str] = ()) -> list[Entry]:
    """The runs of a size in their order, as `chosen` picks them; all are of ten steps."""
    found = [
        entry_of(case, method, warmup, measured, known=METHODS)
        for case in CASES[size]
        for method in case.methods
    ]
    return chosen([replace(e, splits=(e.spec.microbatches,)) for e in found], only)
