"""A job of the launcher, as a user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.runs.helpers import ROOT, living, wait_for


class Job:
    """Has its list of machines, its logs and its state in a folder."""

    def __init__(self, to: Path) -> None:
        self.to, self.folder, self.list = to, to / "run", to / "list"
        self.seen: dict[int, psutil.Process] = {}
        self.manager: subprocess.Popen | None = None

    def launch(self, *words: object, inside: tuple[str, ...] = ()) -> None:
        """Start the manager with flags, a script, and the arguments of that."""
        own = ["--machine_list", self.list, "--folder", self.folder, "--manager_ip", "127.0.0.1"]
        command = [sys.executable, "-m", "workbench.cli", "varuna", *map(str, (*own, *words))]
        with (self.to / "manager.log").open("ab") as log:
            self.manager = subprocess.Popen([*inside, *command], cwd=ROOT, stdout=log, stderr=log)

    def hosts(self, *names: str) -> None:
        part = self.list.with_suffix(".part")
        part.write_text("\n".join(names))
        part.replace(self.list)

    def remember(self) -> None:
        """Note the processes that there are."""
        if self.manager is not None and self.manager.poll() is None:
            for process in psutil.Process(self.manager.pid).children(recursive=True):
                self.seen.setdefault(process.pid, process)

    def end(self) -> None:
        """Stop it, and see that nothing stays."""
        if self.manager is not None and self.manager.poll() is None:
            self.manager.send_signal(signal.SIGTERM)
            self.manager.wait(60)
        assert wait_for(lambda: not living(self.seen.values())), "a process is left"
