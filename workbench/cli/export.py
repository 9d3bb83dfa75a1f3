"""``workbench export RUN OUT``: weights of a run or a checkpoint in a folder, to be used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.cli.spec import Parser, add_results_flag
from workbench.core.bytesize import format_bytes
from workbench.runs.progress import Progress
from workbench.runs.store import Store


def main(words: Sequence[str]) -> int:
    """Exit code. Raises ValueError and OSError as `runs.export.export` does."""
    parser = Parser(prog="workbench export", description=__doc__.replace("``", ""))
    add_export_flags(parser)
    arguments = parser.parse_args(words)
    from workbench.runs.export import export  # imports torch

    progress = Progress(sys.stderr)

    def tell(written: int, whole: int) -> None:
        progress.passing(f"exporting: {format_bytes(written)} of {format_bytes(whole)} written")

    progress.passing(f"reading {arguments.run}")
    try:
        made = export(
            arguments.run, arguments.out, Store(arguments.results), step=arguments.step,
            dtype=arguments.dtype, tell=tell,
        )  # fmt: skip
    finally:
        progress.end()
    for note in made.notes:
        progress.line(note)
    print(made)
    return 0


def add_export_flags(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "run",
        metavar="RUN|CHECKPOINT",
        help="key or folder of a run, or the folder of a checkpoint",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder, or an empty one")
    parser.add_argument(
        "--step", type=int, metavar="N", help="a step that was kept (default: the newest)"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        metavar="auto|fp32|bf16",
        help="of the weights; auto: that of the weights which the run began from",
    )
    add_results_flag(parser)
