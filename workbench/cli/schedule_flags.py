"""Flags of ``workbench schedule``. They are read in each command, and import no numpy for it."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.cli import stage_orders
from workbench.methods.ftpipe import orders as ftpipe_orders
from workbench.methods.pipeline import orders

PARTS = ("FWD", "BWD", "SEND", "LONG")
JITTER = ("COMPUTE", "NETWORK")
STRICT, PUBLISHED = "list", "published"


def add_schedule_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the verb."""
    add = parser.add_argument
    known = ", ".join((*orders.ORDERS, *ftpipe_orders.ORDERS))
    add("order", metavar="ORDER", help=f"one of {known}")
    stage_orders.add_flags(parser)
    add("-P", "--ranks", type=int, default=4, metavar="P", help="ranks (default 4)")
    add("-N", "--microbatches", type=int, default=8, metavar="N", help="micro-batches (default 8)")
    add("--chunks", type=int, metavar="V", help="stages of each rank, interleaved")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--recompute", action="store_true", help="forward again before backward")
    again.add_argument("--keep", action="store_true", help="no recomputation in Varuna's lists")
    add(
        "--order", dest="rule", choices=(STRICT, PUBLISHED),
        help="list: varuna strictly as listed; published: gpipe as Varuna's simulator has it",
    )  # fmt: skip
    add(
        "--drain", choices=("early",),
        help="recompute before the gradient has come, where no forward pass is left",
    )  # fmt: skip
    add("--stash", type=int, metavar="K", help="inputs that a stage may hold (default: any number)")
    add(
        "--us", metavar=",".join(PARTS),
        help="microseconds of passes, of a message and of one to another host, such as "
        "50000,100000,5000,20000; passes by stage: 20/30/25,40/60/50,5,20",
    )  # fmt: skip
    add("--per-host", type=int, default=4, metavar="G", help="ranks of a host (default 4)")
    add(
        "--jitter", metavar="COMPUTE,NETWORK",
        help="standard deviations in microseconds of passes and messages, for a mean efficiency",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="S", help="first seed of the jitter (default 0)")
    add("--seeds", type=int, default=8, metavar="K", help="seeds to take the mean of (default 8)")
    add("--replicas", type=int, default=1, metavar="D", help="copies with jitter of their own")
    add("--gantt", type=Path, metavar="FILE", help="draw it: .png, .pdf or .svg")
    add("--csv", type=Path, metavar="FILE", help="write it as torch's pipeline runtime loads it")
