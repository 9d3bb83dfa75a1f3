"""Workers of a pipeline for tests, forked from one process that has imported torch.

with Workers() as workers:
    results = workers.run("train", stages=2, replicas=2, batch=7, chunk=2)
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import threading
import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process that forks is to have one thread
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.varuna.warm"])
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
            processes = [
                FORKSERVER.Process(target=_work, args=(what, case, rank, ranks, Path(folder)))
                for rank in range(ranks)
            ]
            for process in processes:
                process.start()
            hung, until = [], time.monotonic() + LIMIT_S
            for process in processes:
                process.join(max(0.0, until - time.monotonic()))
                hung.append(process.is_alive())
                process.kill()
                process.join()
            if any(hung):
                return [{"hangs": each} for each in hung]
            told = [Path(folder) / str(rank) for rank in range(ranks)]
            return [
                json.loads(path.read_text()) if path.exists() else {"signal": -process.exitcode}
                for path, process in zip(told, processes, strict=True)
            ]


def _work(what: str, case: dict[str, Any], rank: int, ranks: int, folder: Path) -> None:
    faulthandler.dump_traceback_later(LIMIT_S - 30)

    import torch

    from tests.varuna import cases
    from workbench.runtime.transport.loopback import join

    try:
        join(torch.device("cpu"), file=folder / "meeting", rank=rank, ranks=ranks)
        result = getattr(cases, what)(**case)
    except BaseException as error:
        traceback.print_exc()
        alive = [thread.name for thread in threading.enumerate() if not thread.daemon]
        result = {"error": f"{type(error).__name__}: {error}", "threads": alive}
    (folder / f"{rank}.part").write_text(json.dumps(result))
    (folder / f"{rank}.part").rename(folder / str(rank))
    os._exit(0)  # lanes that wait for a peer that is gone are not waited for
