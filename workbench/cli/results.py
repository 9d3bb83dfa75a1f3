"""``workbench results``: held-out figures over seeds, as a table, JSON, CSV and a figure."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from workbench.cli.spec import Parser, add_results_flag
from workbench.core.paths import user_path
from workbench.core.record import RunRecord
from workbench.runs.results import FIGURES, Result, algorithm, results, table
from workbench.runs.store import Store


def main(words: Sequence[str]) -> int:
    """Exit code. Raises ValueError for runs that are not there, and where none has figures."""
    parser = Parser(prog="workbench results", description=__doc__.replace("``", ""))
    parser.add_argument("--runs", nargs="*", default=[], metavar="KEY", help="by default all")
    parser.add_argument("-t", "--task", required=True, choices=FIGURES)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw figures by step")
    add_results_flag(parser)
    arguments = parser.parse_args(words)
    records = _records(arguments)
    rows = results(records, arguments.task)
    if not rows:
        raise ValueError(
            f"no run in {arguments.results} ended with {FIGURES[arguments.task][-1]} on held-out "
            "data; give runs --eval-every or --eval-epochs"
        )
    if arguments.csv:
        with user_path(arguments.csv).open("w", newline="") as file:
            written = csv.DictWriter(file, [field.name for field in fields(Result)])
            written.writeheader()
            for row in rows:
                seeds = " ".join(map(str, row.seeds))
                written.writerow(asdict(row) | {"seeds": seeds})
    if arguments.figure:
        _draw(records, FIGURES[arguments.task], user_path(arguments.figure))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print("\n".join(table(rows)))
    return 0


def _records(arguments: argparse.Namespace) -> list[RunRecord]:
    store = Store(arguments.results)
    found = {record.key: record for record in store.records()}
    if lacking := sorted({*arguments.runs} - found.keys()):
        raise ValueError(f"there is no record of the run {lacking[0]!r} in {store.runs}")
    return [found[key] for key in arguments.runs or found]


def _draw(records: Sequence[RunRecord], figures: Sequence[str], path: Path) -> None:
    from matplotlib.figure import Figure

    from workbench.figures.curves import draw_held_out

    figure = Figure(figsize=(3.4 * len(figures), 2.6), layout="constrained")
    runs = [(algorithm(record), record.evaluations) for record in records if record.evaluations]
    for axes, name in zip(figure.subplots(1, len(figures)), figures, strict=True):
        draw_held_out(axes, runs, name)
    figure.savefig(path)
