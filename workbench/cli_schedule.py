"""``workbench schedule``: the passes of each rank of a pipeline, by their order.

Prints a line a stage, and draws or exports it. Passes take one quantum forward and two backward;
nothing is measured, and no model is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.methods.pipeline import ideal
from workbench.methods.pipeline.orders import ORDERS, lists

MOST = 512
"""Micro-batches of a step that can still be read."""


def add_schedule_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    parser.add_argument("order", metavar="ORDER", help=f"one of {', '.join(ORDERS)}")
    parser.add_argument("-P", "--ranks", type=int, default=4, metavar="P", help="ranks (default 4)")
    parser.add_argument(
        "-N", "--microbatches", type=int, default=8, metavar="N", help="micro-batches (default 8)"
    )
    parser.add_argument("--chunks", type=int, metavar="V", help="stages of each rank, interleaved")
    parser.add_argument("--recompute", action="store_true", help="forward again before backward")
    parser.add_argument("--gantt", type=Path, metavar="FILE", help="draw it: .png, .pdf or .svg")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write it as torch's pipeline runtime loads it"
    )


def show_schedule(arguments: argparse.Namespace) -> None:
    """Print, and draw and export where asked. Raises ValueError for what cannot be."""
    name, ranks, micros = arguments.order, arguments.ranks, arguments.microbatches
    if name not in ORDERS:
        raise ValueError(f"unknown order {name!r}; known: {', '.join(ORDERS)}")
    for what, number in (("ranks", ranks), ("microbatches", micros)):
        if not 1 <= number <= MOST:
            raise ValueError(f"{what} is {number}; it must be 1 to {MOST}")
    chunks = arguments.chunks or (2 if ORDERS[name].chunked else 1)
    passes = lists(name, ranks, micros, chunks)
    if arguments.csv is not None and arguments.recompute:
        raise ValueError("--csv is for torch, which knows no recomputation: leave --recompute out")
    schedule = ideal.schedule_of(name, ranks, micros, chunks=chunks, recompute=arguments.recompute)
    step = ideal.simulated(schedule, chunks)
    if arguments.gantt is not None:
        _draw(arguments.gantt, step.events, f"{name}, {micros} micro-batches")
    if arguments.csv is not None:
        arguments.csv.write_text(ideal.torch_csv(name, ranks, micros, chunks))
    wide = len(str(ranks - 1))
    for rank, own in enumerate(passes):
        shown = ideal.with_recomputation(own) if arguments.recompute else own
        print(f"{rank:>{wide}}  {' '.join(map(str, shown))}")
    print(
        f"{step.step_seconds:g} quanta a step (1 forward, 2 backward), "
        f"{ideal.bubble(step, ranks):.1%} of them waited"
    )


def _draw(path: Path, events: list, title: str) -> None:
    from workbench.schedule.draw import draw_timeline

    figure = draw_timeline(events, source="simulated", title=title, width_in=7.0, unit="quanta")
    figure.savefig(path, dpi=200)
