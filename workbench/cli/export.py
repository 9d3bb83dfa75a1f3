"""``workbench export RUN OUT``: weights of a run or a checkpoint in a folder, to be used."""

from __future__ import annotations

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
    flag = parser.add_argument
    flag("run", metavar="RUN|CHECKPOINT", help="a run, by key or folder, or a checkpoint's folder")
    flag("out", type=Path, metavar="OUT", help="a new folder, or an empty one")
    flag("--step", type=int, metavar="N", help="a step that was kept (default: the newest)")
    types = "type of the weights; auto (default): of those that the run began from"
    flag("--dtype", default="auto", metavar="auto|fp32|bf16", help=types)
    add_results_flag(parser)
    arguments = parser.parse_args(words)
    from workbench.runs.export import export  # imports torch

    progress, store = Progress(sys.stderr), Store(arguments.results)
    progress.passing(f"reading {arguments.run}")

    def tell(done: int, whole: int) -> None:
        progress.passing(f"exporting: {format_bytes(done)} of {format_bytes(whole)}")

    how = {"step": arguments.step, "dtype": arguments.dtype, "tell": tell}
    try:
        made = export(arguments.run, arguments.out, store, **how)
    finally:
        progress.end()
    for note in made.notes:
        progress.line(note)
    print(made)
    return 0
