"""Runs that were measured elsewhere, into the files that are published.

    python -m benchmarks.gather FOLDER results/published-here/h200
    python -m benchmarks.gather FOLDER results/published-here/h200 --name servers

FOLDER is what a benchmark wrote on another machine. Runs that are there already are left out. Of
each case and method the last few are kept, so that the files do not grow with every round; the
history of the repository has the others. Plain training stays: others were measured beside it. A
step that was kept lane by lane comes along where its run is the last of its kind, by when it
started.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.offload_lanes import lanes_file
from benchmarks.offload_sheet import Sheet
from workbench.core.files import write_whole
from workbench.published.here import BENCHMARKS, Run

KEPT = 2
"""Runs of a case and method: the last one stands for them, and another shows by how much two
differ."""
PLAIN = "plain"
"""Method that other methods are shares of: in each sitting its own run."""


def gather(source: Path, target: Path, name: str = "offload", kept: int = KEPT) -> tuple[int, int]:
    """Returns how many runs are new, and how many are left out now. Raises ValueError for a source
    without such a file, or a file that is none of ours."""
    form = BENCHMARKS[name]
    if not (source / form.file).is_file():
        raise ValueError(f"{source} has no {form.file}: it is no folder that a benchmark wrote")
    theirs, ours = (Sheet(folder, form) for folder in (source, target))
    there = {_identity(run) for run in ours.runs}
    new = [run for run in theirs.runs if _identity(run) not in there]
    runs = sorted(ours.runs + new, key=lambda run: run.record.started)
    last = _last(runs, kept)
    ours.replace(run.record for run in last)
    stand = {(run.case, run.named): run for run in last}
    for run in new if name == "offload" else ():  # no figure draws those of servers
        step = lanes_file(source, run.record)
        if stand[run.case, run.named] is run and step.is_file():
            place = lanes_file(target, run.record)
            place.parent.mkdir(exist_ok=True)
            write_whole(place, step.read_text())
    return len(new), len(runs) - len(last)


def _identity(run: Run) -> tuple[str, str]:
    return run.record.key, run.record.started


def _last(runs: list[Run], kept: int) -> list[Run]:
    """The last runs of each case and method, and all of plain training, in their order."""
    count: Counter[tuple[str, str]] = Counter()
    found = []
    for run in reversed(runs):
        count[run.case, run.named] += 1
        if count[run.case, run.named] <= kept or run.method == PLAIN:
            found.append(run)
    return found[::-1]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done; 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gather", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("source", type=Path, help="folder that a benchmark wrote")
    parser.add_argument("target", type=Path, help="folder of the published files")
    parser.add_argument("--name", choices=BENCHMARKS, default="offload")
    parser.add_argument("--keep", type=int, default=KEPT, metavar="N", help="of case and method")
    options = parser.parse_args(argv)
    if options.keep < 1:
        print(f"gather: --keep is {options.keep}; at least 1 run must be kept", file=sys.stderr)
        return 2
    try:
        new, dropped = gather(options.source, options.target, options.name, options.keep)
    except (ValueError, OSError) as error:
        print(f"gather: {error}", file=sys.stderr)
        return 2
    print(f"{new} new runs; {dropped} older ones are left to the history of the repository")
    return 0


if __name__ == "__main__":
    sys.exit(main())
