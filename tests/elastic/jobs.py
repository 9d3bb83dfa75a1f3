"""A job on hosts of this machine, as a user starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.runs.helpers import ROOT, living, wait_for
from workbench.core.files import write_whole

BATCH = 9


class Job:
    """Of two slots a host, in two stages. Processes below its manager are remembered."""

    def __init__(self, to: Path) -> None:
        self.to, self.folder, self.list = to, to / "run", to / "list"
        self.seen: dict[int, psutil.Process] = {}
        self.manager: subprocess.Popen | None = None

    def start(self, *more: object, inside: tuple[str, ...] = ()) -> None:
        words = [
            "--machine_list", self.list, "--gpus_per_node", 2, "--batch_size", BATCH, "--nstages",
            2, "--folder", self.folder, "--morph", "always", "--manager_ip", "127.0.0.1", *more,
        ]  # fmt: skip
        command = [*inside, sys.executable, "-m", "workbench.cli", "varuna", *map(str, words)]
        with (self.to / "manager.log").open("ab") as log:
            self.manager = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def hosts(self, *names: str) -> None:
        write_whole(self.list, "\n".join(names))

    def state(self) -> dict[str, Any]:
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else {"step": None, "ranks": {}}

    def remember(self) -> None:
        if self.manager.poll() is None:
            for process in psutil.Process(self.manager.pid).children(recursive=True):
                self.seen.setdefault(process.pid, process)

    def stop(self) -> None:
        """End it, if it still runs; nothing is left."""
        if self.manager is not None and self.manager.poll() is None:
            self.manager.send_signal(signal.SIGTERM)
            self.manager.wait(60)
        assert wait_for(lambda: not living(self.seen.values())), "a process is left"
