"""Workers of a pipeline for tests, forked from one process that has imported torch.

with Workers() as workers:
    results = workers.run("train", stages=2, replicas=2, batch=7, chunk=2)
"""

from __future__ import annotations

import faulthandler
import marshal
import os
import subprocess
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager
from json import dumps, loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.forks.server import command
from workbench.runtime.transport.loopback import join

LIMIT_S = 240
"""Ends a hang; half a minute before that, a rank that hangs writes where it is."""


class Workers(AbstractContextManager):
    """Those of one case after the other."""

    def __exit__(self, *_: object) -> None: ...

    def run(self, what: str, **case: Any) -> list[dict]:
        """Results of all ranks of a case of cases.py. A rank that fails has ``{"error": text}``;
        one that was killed, ``{"signal": number}``; one that hangs, ``{"hangs": True}``."""
        ranks = case.get("stages", 1) * case.get("replicas", 1)
        with TemporaryDirectory(prefix="workers-") as folder:
            Path(folder, "case").write_bytes(marshal.dumps((what, case, ranks)))
            processes = [
                subprocess.Popen(command("tests.varuna.workers", folder, str(rank)))
                for rank in range(ranks)
            ]
            hung, until = [], time.monotonic() + LIMIT_S
            for process in processes:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    hung.append(True)
                else:
                    hung.append(False)
            if any(hung):
                return [{"hangs": each} for each in hung]
            told = [Path(folder) / str(rank) for rank in range(ranks)]
            return [
                loads(path.read_text()) if path.exists() else {"signal": -process.returncode}
                for path, process in zip(told, processes, strict=True)
            ]


def main(folder: Path, rank: int) -> None:
    """Run a case as one of its ranks, and leave what it gives in a file."""
    faulthandler.dump_traceback_later(LIMIT_S - 30)
    what, case, ranks = marshal.loads((folder / "case").read_bytes())

    from tests.varuna import cases

    torch.set_num_threads(1)
    try:
        join(torch.device("cpu"), file=folder / "meeting", rank=rank, ranks=ranks)
        result = getattr(cases, what)(**case)
    except BaseException as error:
        traceback.print_exc()
        alive = [thread.name for thread in threading.enumerate() if not thread.daemon]
        result = {"error": f"{type(error).__name__}: {error}", "threads": alive}
    (folder / f"{rank}.part").write_text(dumps(result))
    (folder / f"{rank}.part").rename(folder / str(rank))
    os._exit(0)  # lanes that wait for a peer that is gone are not waited for


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
