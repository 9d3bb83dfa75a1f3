"""``workbench aceso``: what a plan of tp, dp, stages and recomputation costs by a profile database,
the best one, and the best of simpler kinds.

Each file here has verbs, which its `add` adds; flags that several verbs share are in `asked.py`.
Flags are those of Aceso's artifact (EuroSys'24); one that has no meaning here is refused, and says
why. Exit codes: 0 done; 2 the input is wrong, or nothing fits; 130 interrupted, after the best plan
so far was printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.cli.aceso import cost, profile, search, sets, train
from workbench.cli.spec import Parser

ROOMS = (sets, cost, search, train, profile)
"""Each adds its verbs, in the order of ``--help``."""


def main(words: Sequence[str]) -> int:
    """Returns the exit code. Raises ValueError for a user's mistake."""
    parser = Parser(prog="workbench aceso", description="Plan and rate tp, dp, stages and "
                    "recomputation of every operator.")  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for room in ROOMS:
        room.add(verbs)
    given = parser.parse_args(words)
    return given.handler(given)
