"""Workers of a pipeline for tests, forked from one process that has imported torch.

    with Workers() as workers:
        results = workers.run("train", stages=2, replicas=2, batch=7, chunk=2)

``python -m tests.varuna.workers`` is that process: it reads a case a line, forks its workers, and
writes their results, or what made the first of them fail.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
"""Ends a hang."""


class Workers:
    """The process that forks."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.varuna.workers"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Workers:
        return self

    @property
    def pid(self) -> int:
        """Of the process whose children are the workers."""
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def run(self, what: str, **case: Any) -> list[dict]:
        """Results of all ranks of a case of cases.py. A rank that fails has ``{"error": text}``;
        one that was killed, ``{"signal": number}``."""
        self._process.stdin.write(json.dumps({"what": what, **case}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    from tests.varuna import cases

    import_module("torch._dynamo")  # else each rank that cuts a module would

    for line in sys.stdin:
        case = json.loads(line)
        ranks = case.get("stages", 1) * case.get("replicas", 1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory(prefix="workers-") as folder:
            children = []
            for rank in range(ranks):
                if not (child := os.fork()):
                    _work(cases, case, rank, ranks, port, Path(folder))
                children.append(child)
            print(json.dumps(_results(children, Path(folder))), flush=True)


def _work(cases: Any, case: dict, rank: int, ranks: int, port: int, folder: Path) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    try:
        case = dict(case)
        result = getattr(cases, case.pop("what"))(**case)
    except BaseException as error:
        traceback.print_exc()
        alive = [thread.name for thread in threading.enumerate() if not thread.daemon]
        result = {"error": f"{type(error).__name__}: {error}", "threads": alive}
    (folder / f"{rank}.part").write_text(json.dumps(result))
    (folder / f"{rank}.part").rename(folder / f"{rank}.json")
    os._exit(0)  # lanes that wait for a peer that is gone are not waited for


def _results(children: list[int], folder: Path) -> list[dict]:
    results, end = [], time.monotonic() + LIMIT_S
    for rank, child in enumerate(children):
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
        path = folder / f"{rank}.json"
        found = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"error": "none"}
        results.append(json.loads(path.read_text()) if path.exists() else found)
    return results


if __name__ == "__main__":
    _serve()
