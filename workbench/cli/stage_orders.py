"""``workbench schedule`` of orders in which each stage decides alone: FTPipe's."""

from __future__ import annotations

import argparse
import json

from workbench.methods.ftpipe.orders import B, F, Made, depths, passes, staleness, string, versions

UNREAD = ("chunks", "recompute", "keep", "rule", "drain", "stash", "us", "jitter", "gantt", "csv")
"""Arguments that have no meaning here."""
OWN = ("step_every", "supremum", "cap", "versions", "json")
"""Arguments that other orders do not read."""
AUTO, RIGHT = "auto", "right"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that these orders have."""
    add = parser.add_argument
    add("--step-every", type=int, metavar="K", help="micro-batches of an update (default 1)")
    add("--supremum", metavar="S", help="with virtual-stages-1f1b: a number, or auto (the ranks)")
    add(
        "--cap", choices=(RIGHT,), help="the supremum as it was meant, one more for the first stage"
    )
    add("--versions", action="store_true", help="weights of each pass, and how stale they are")
    add("--json", action="store_true", help="print JSON, and nothing else")


def show(arguments: argparse.Namespace) -> None:
    """Print what each stage does. Raises ValueError for what cannot be."""
    name, stages, micros = arguments.order, arguments.ranks, arguments.microbatches
    given = [each for each in UNREAD if getattr(arguments, each, None) not in (None, False)]
    if given:
        raise ValueError(f"--{given[0]} has no meaning for {name}; leave it out")
    for what, number in (("ranks", stages), ("microbatches", micros)):
        if not 1 <= number <= 1 << 12:
            raise ValueError(f"{what} is {number}; it must be 1 to {1 << 12}")
    every = 1 if arguments.step_every is None else arguments.step_every
    supremum = _supremum(arguments.supremum, stages)
    deep = depths(stages, name, supremum=supremum, right=arguments.cap == RIGHT)
    made = [passes(name, depth, micros, every) for depth in deep]
    if arguments.json:
        rows = ",\n ".join(json.dumps(_row(own)) for own in made)
        print(f'{{"order": {json.dumps(name)}, "stages": [\n {rows}\n]}}')
        return
    wide = len(str(stages - 1))
    for stage, own in enumerate(made):
        print(f"{stage:>{wide}}  {string(own)}")
        if arguments.versions:
            found = _row(own)
            for key in ("forward", "backward", "staleness"):
                print(f"{'':>{wide}}  {key:<9} {' '.join(map(str, found[key]))}")
    most = max(max(staleness(own)) for own in made)
    print(f"weights of forward passes lack up to {most} updates")


def _supremum(text: str | None, stages: int) -> int | None:
    if text in (None, AUTO):
        return stages
    if not text.isdecimal():
        raise ValueError(f"--supremum is {text!r}; it must be a number of 1 or more, or {AUTO}")
    return int(text)


def _row(made: list[Made]) -> dict[str, object]:
    return {
        "string": string(made),
        "forward": versions(made, F),
        "backward": versions(made, B),
        "staleness": staleness(made),
    }
