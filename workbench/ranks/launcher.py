"""The processes of a run's ranks on one machine: started, checked, ended.

The process of the run starts one process a rank (process.py) in its own process group, so that they
end with it, and makes the board that all share. Each is told on its standard input what it will
need, and imports that while the run plans and lays out memory; then what it is to do. A rank that
fails or is killed shows it by its exit status; its peers fail moments later, or wait for ever in a
collective. So failures are gathered for a moment, the one that is the cause is raised
(failures.py), and the ranks that are left are killed. A watchdog names the rank that hangs
(watchdog.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.core.paths import import_path
from workbench.ranks.failures import NOTICE_S, RankFailed, first_cause, raise_cause
from workbench.runtime.executor.board import Board
from workbench.runtime.memory.shared import make_shared

PROCESS = (sys.executable, "-m", "workbench.ranks.process")
POLL_S = 0.005
"""Between two looks at the ranks."""
LED = 2
"""Exit status of a rank that ends because another one failed."""


class RankLauncher:
    """One process a rank."""

    def __init__(
        self,
        folder: Path,
        work: str,
        ranks: int,
        *,
        device: str,
        devices: Sequence[int] = (),
        process: Sequence[str] = PROCESS,
        quiet: bool = False,
    ) -> None:
        """`work` names a module whose ``run_rank(context)`` each of so many `ranks` calls; `device`
        is ``cpu`` or ``cuda``, and `devices` the number of each rank's, by default its own. With
        `quiet` the output of a rank goes to ``log-RANK.txt`` in `folder`, which is emptied."""
        self.folder, self.count = folder, ranks
        self.processes: list[subprocess.Popen] = []
        self._process, self._quiet, self._memory = process, quiet, -1
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():  # of an attempt before
            old.unlink()
        self._own = {"work": work, "device": device, "ranks": ranks, "devices": [*devices]}

    def resize(self, ranks: int) -> None:
        """Have so many ranks, which a plan may leave fewer; processes that wait for other counts
        end, since each has its share of the cores."""
        if ranks != self.count:
            self.leave()
            self.count = self._own["ranks"] = ranks

    def make_board(self, sizes: Mapping[str, int]) -> Board:
        """The board on which all ranks tell how far they are; `sizes` are its own (`Board.sizes`).
        Raises OutOfMemory where the host has no room for it."""
        # Memory without a name: gone with its last user, and fit to be page-locked.
        (self._memory,) = make_shared(0, "the board")
        path = Path(f"/proc/{os.getpid()}/fd/{self._memory}")
        Board.make(path, **sizes)
        self._board = str(path), dict(sizes)
        return Board(path, rank=0, **sizes)

    def prepare(self) -> None:
        """Start the processes of all ranks, unless they are there; they wait for an order, and end
        where their launcher is gone."""
        if self.processes:
            return
        there = {**os.environ, **import_path()}
        for rank in range(self.count):
            command = [*self._process, str(self.folder), str(rank)]
            output = (self.folder / f"log-{rank}.txt").open("w") if self._quiet else None
            self.processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=there
                )
            )
            if output is not None:
                output.close()
        self._tell(self._own)

    def start(self, order: Mapping[str, Any], *, meets: bool) -> None:
        """Have all ranks begin, once there is a board; `order` is for `work`. With `meets` they
        join a process group first."""
        self.prepare()
        self._tell({**order, "meets": meets, "board": self._board})

    def _tell(self, what: Mapping[str, Any]) -> None:
        line = json.dumps(what).encode() + b"\n"
        for process in self.processes:
            with suppress(BrokenPipeError):  # its end is seen by `check`
                process.stdin.write(line)
                process.stdin.flush()

    def leave(self) -> None:
        """End processes that wait for an order, since there is nothing to do."""
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes.clear()

    def running(self) -> list[int]:
        """Ranks whose processes have not ended."""
        return [rank for rank, process in enumerate(self.processes) if process.poll() is None]

    def check(
        self, late: Callable[[], str | None] = lambda: None,
        place: Callable[[int], str] = lambda rank: "",
    ) -> bool:  # fmt: skip
        """Whether any rank still runs. Raises the first cause where one has failed or was killed,
        and RankFailed with what `late` tells of one that hangs. Of one that could tell nothing
        itself, `place` ends the sentence with where it was."""
        running = bool(self.running())
        failed = self._failed()
        until = time.monotonic() + NOTICE_S
        while failed and -signal.SIGKILL not in failed.values() and time.monotonic() < until:
            left = self.running()
            failed = self._failed()  # after that: with whoever ended between the two
            if not left:
                break
            time.sleep(POLL_S)  # others may fail yet, and theirs may be the cause
        if not running:
            failed = failed or self._failed(led=True)
        if failed:
            rank, told = first_cause(self.folder, failed)
            raise_cause(rank, told, place(rank))
        if running and (told := late()):
            raise RankFailed(told)
        return running

    def results(self) -> list[dict[str, Any]]:
        """Results of the ranks that are done, in their order."""
        paths = [self.folder / f"result-{rank}.json" for rank in range(self.count)]
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    def close(self, patience_s: float = 0.0) -> None:
        """End what has not ended after so long, and give the board's memory back."""
        deadline = time.monotonic() + patience_s
        for process in self.processes:  # those that wait for an order end now
            with suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for process in self.processes:  # many take a while to go, but not one after the other
            process.wait()
        self.processes.clear()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _failed(self, *, led: bool = False) -> dict[int, int]:
        """Exit statuses of ranks that failed; `led` with those that say another one did."""
        statuses = {rank: process.poll() for rank, process in enumerate(self.processes)}
        return {r: status for r, status in statuses.items() if status and (led or status != LED)}
