"""Ranks for tests, forked from a process that has imported torch (tests/forks/server.py).

Ranks that are killed (test_rank_failures.py) and ranks that are stopped
(test_parallel_baselines.py) are started as a run starts them, once each.
"""

from __future__ import annotations

from tests.forks.server import command


def process(what: str) -> tuple[str, ...]:
    """The command of a rank as `rank_driver` describes it, without its folder and number."""
    return command("tests.methods.rank_driver", what)
