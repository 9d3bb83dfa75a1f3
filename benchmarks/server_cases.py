"""Runs of the benchmark of servers: methods on several GPUs of one machine. All data.

As in offload_cases.py, every run of a case trains the same model on the same samples from the same
weights. Those that need the whole model on the devices get all of their memory, and are the roofs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.offload_cases import PAPER, TRAINING, Case, Entry, chosen, entry_of

METHODS: dict[str, dict[str, Any]] = {
    "data-parallel": {"method": "data-parallel"},
    "data-parallel (keep)": {"method": "data-parallel", "activations": "keep"},
    **{
        name + (" (keep)" if kept else ""): {
            "method": name,
            "activations": "keep" if kept else again,
        }
        for names, again in (
            (("1f1b", "gpipe", "interleaved", "zb-h1"), "recompute"),  # left to choose, they keep
            (("torch-1f1b", "torch-gpipe", "torch-interleaved", "torch-zero-bubble"), "auto"),
        )
        for name in names
        for kept in (True, False)
    },
    "varuna": {"method": "varuna", "activations": "recompute"},
    "zero-offload": {"method": "zero-offload"},
    "zero-infinity": {"method": "zero-infinity"},
    "dp-swap": {"method": "dp-swap"},
    "pp-swap": {"method": "pp-swap"},
    "harmony-dp": {"method": "harmony-dp"},
    "harmony-pp": {"method": "harmony-pp"},
}
"""Name in the CSV -> fields of the spec."""
PIPELINED = (
    "1f1b (keep)", "torch-1f1b (keep)", "1f1b", "torch-1f1b", "gpipe", "torch-gpipe",
    "zb-h1 (keep)", "torch-zero-bubble (keep)", "interleaved (keep)", "torch-interleaved (keep)",
    "gpipe (keep)", "torch-gpipe (keep)", "varuna",
)  # fmt: skip
"""Each of ours beside torch's own, in the order in which they are run."""
ROOFS = ("data-parallel", *dict.fromkeys(name.removesuffix(" (keep)") for name in PIPELINED))
"""Whose variants all get all memory."""
PIPELINED_SAMPLES = 8
"""In their micro-batches, where every rank has one: passes of fewer are as long as their launches
on an H100 (0.6 ms a block), and cost more than shorter bubbles gain."""
FIRST = (
    "harmony-pp", "data-parallel (keep)", "zero-offload", "zero-infinity", "harmony-dp",
    "data-parallel",
)  # fmt: skip
"""In this order, where there may be no time for all."""
ALL = (*FIRST, "pp-swap", "dp-swap", *PIPELINED)

GPT2_XL: dict[str, Any] = {**PAPER, "layers": 48, "hidden": 1600, "heads": 25}
PAPER_CARD_GIB = 11
"""Memory of the paper's GPUs."""
TEN_TIMES: dict[str, Any] = {**GPT2_XL, "layers": 200, "batch": 32}
"""6.23 B parameters, 81 GiB of states: more than ten times what eight cards of 1 GiB have. Such a
card holds the head's weights, their gradients, and what one sample leaves there."""
SMALL_CARD_GIB = 1


def _xl(ranks: int, batch: int) -> Case:
    pieces = dict.fromkeys(PIPELINED, {"microbatches": max(ranks, batch // PIPELINED_SAMPLES)})
    return Case(
        name=f"xl-{ranks}-b{batch}",
        methods=ALL,
        changes={**GPT2_XL, "batch": batch, "ranks": ranks},
        cap_gib=PAPER_CARD_GIB,
        of_method=pieces,
    )


CASES: dict[str, tuple[Case, ...]] = {
    "paper": (
        *(_xl(ranks, batch) for ranks in (4, 2, 8) for batch in (64, 16)),
        *(
            Case(
                name=f"ten-{ranks}{ending}",
                methods=("harmony-pp", "harmony-dp"),
                changes={**TEN_TIMES, "ranks": ranks, "clip": clip},
                cap_gib=SMALL_CARD_GIB,
                steps=(2, 8),
            )
            for ending, clip in (("", 1.0), ("-noclip", None))
            for ranks in (4, 2, 1, 8)
        ),
    ),
    "tiny": (
        Case(
            name="tiny",
            methods=("harmony-pp", "data-parallel", "harmony-dp", "pp-swap", "torch-1f1b"),
            changes={
                **TRAINING, "device": "cpu", "text": str(Path(__file__).resolve()), "layers": 4,
                "hidden": 32, "heads": 4, "seq": 16, "vocab": 256, "dtype": "fp32", "batch": 4,
                "ranks": 2,
            },
            of_method={"torch-1f1b": {"microbatches": 2}, "harmony-pp": {"device_memory": 500_000}},
        ),
    ),
}  # fmt: skip
"""By size: of the published models, or small enough for any machine."""


def entries(size: str, *, warmup: int, measured: int, only: Iterable[str] = ()) -> list[Entry]:
    """The runs of a size in their order, as `chosen` picks them."""
    found = [
        entry_of(case, method, warmup, measured, known=METHODS, in_gpu=ROOFS)
        for case in CASES[size]
        for method in case.methods
    ]
    return chosen([replace(e, splits=_splits(e)) for e in found], only)


def _splits(entry: Entry) -> tuple[int, ...]:
    """Numbers of micro-batches until one fits. Data parallelism that keeps activations is a roof
    only if it may add up gradients. Who else needs micro-batches has them from the case, or chooses
    them itself; what does not fit then, does not fit."""
    if entry.spec.method == "data-parallel":
        return (1, 2, 4)
    return (entry.spec.microbatches,)
