"""Processes of this machine that measure together: started, waited for, ended."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from workbench.ranks.failures import RankFailed
from workbench.ranks.launcher import RankLauncher
from workbench.runtime.memory.tiers import OutOfMemory

LONGEST_S = 180.0
"""Without an answer, or a note on the way to it."""
TOO_LONG = f"they have not answered after {LONGEST_S:.0f} s"


def told_by(
    ranks: int, device: str, work: str, order: Mapping[str, Any], what: str,
    look: Callable[[Path], bool] = lambda folder: False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Results of the processes that run the module `work`, by rank. `look` reads what they leave in
    their folder meanwhile, and says whether there was something. Raises RuntimeError, `what` was
    not measured and why, where a process fails or takes too long, and leaves none behind."""
    with tempfile.TemporaryDirectory(prefix="measured-") as name:
        folder = Path(name)
        with closing(RankLauncher(folder, work, ranks, device=device, quiet=True)) as ran:
            deadline = monotonic() + LONGEST_S
            try:
                ran.make_board({"actions": ranks, "ranks": ranks, "units": 0})
                ran.start(order, meets=True)
                while ran.check(lambda until=deadline: TOO_LONG if monotonic() > until else None):
                    if look(folder):
                        deadline = monotonic() + LONGEST_S
                    sleep(0.02)
            except (RankFailed, OutOfMemory, ValueError, OSError) as error:
                raise RuntimeError(f"{what} were not measured: {error}") from error
            look(folder)
            return ran.results()
