"""Runs of the benchmark of pipelines: orders and peers in every shape of a few GPUs. All data.

A shape is P stages times D replicas in micro-batches of m samples, each a case. Every run trains
the same model on the same samples from the same weights, with activations computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.offload_cases import Case, Cases
from benchmarks.servers import CASES as SERVERS
from workbench.published.here import PIPELINES

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


def _case(shape: tuple[int, int], micro: int, batch: int, changes: Mapping[str, Any]) -> Case:
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


LARGE, TINY = (SERVERS.settings[name] for name in ("gpt2-xl", "tiny-server"))
CASES = Cases(
    methods={name: {"method": name, "activations": "recompute"} for name in PIPELINES.labels},
    by_size={
        "paper": [_case(shape, m, BATCH, LARGE) for shape in SHAPES for m in MICROS],
        "tiny": [_case(shape, m, 8, TINY) for shape in ((2, 1), (1, 2)) for m in (1, 2)],
    },
)
