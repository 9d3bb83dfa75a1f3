"""Ranks for tests, forked from a process that has imported torch, which takes each two seconds.

`process(what)` is the command of a rank as `rank_driver` describes them: a small client that asks
the server for a rank, and ends as the rank does, by its exit status or by the signal that ended it.
Whoever kills it kills the rank. One that is killed (test_rank_failures.py) and one that is stopped
(test_parallel_baselines.py) are started as a run starts them, once each.

``python -m tests.methods.rank_server SOCKET`` is the server; it ends when its standard input is
closed. ``python -I -S rank_server.py SOCKET WHAT FOLDER RANK`` is the client, which imports little.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

DIED = 1
ROOT = Path(__file__).resolve().parents[2]
LATE = (
    "torch._dynamo", "torch.distributed.pipelining", "torch.nn.parallel",
    "torch.utils.flop_counter", "torch.utils.module_tracker", "baselines.torch_pipelines",
    "workbench.methods.harmony", "workbench.methods.stronghold",
    "workbench.methods.offload.updates", "workbench.model.bert", "workbench.model.custom_model",
    "workbench.model.pairs", "workbench.model.pictures", "workbench.model.vision",
    "workbench.model.written",
)  # fmt: skip
"""Modules that ranks would import late, each for a second."""


def process(what: str) -> tuple[str, ...]:
    """The command of a rank, without its folder and number."""
    return (sys.executable, "-I", "-S", __file__, str(_server()[0]), what)


@functools.cache
def _server() -> tuple[Path, subprocess.Popen]:
    """The socket of this process's server, and who holds its standard input."""
    path = Path(tempfile.mkdtemp(prefix="ranks-")) / "socket"
    command = [sys.executable, "-m", "tests.methods.rank_server", str(path)]
    starter = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    assert starter.wait() == 0
    return path, starter


def ask(path: str, *words: str) -> int:
    """Let the server have a rank, with this process's input and output; its exit status. Ends by
    the signal that ended it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(words).encode()], [0, 1, 2])
        told = server.recv(16)
    status = int(told) if told else DIED
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def serve(path: Path) -> None:
    """Fork a rank for each that asks. The server is nobody's child: tests count their children."""
    for name in LATE:
        import_module(name)
    from tests.methods import rank_driver

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who asked hears of a rank's end otherwise
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        if os.fork():
            os._exit(0)
        while sys.stdin not in select.select([sys.stdin, door], [], [])[0]:
            asked, _ = door.accept()
            with asked:
                if os.fork() == 0:
                    door.close()
                    _tend_rank(asked, rank_driver.main)
    path.unlink()
    path.parent.rmdir()


def _tend_rank(asked: socket.socket, main) -> None:
    """Fork the rank, and tell how it ended; end it with whoever asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words, descriptors, _, _ = socket.recv_fds(asked, 1 << 16, 3)
    rank = os.fork()
    if rank == 0:
        asked.close()
        _be_rank(json.loads(words), descriptors, main)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(rank)
    if ended not in select.select([ended, asked], [], [])[0]:
        os.kill(rank, signal.SIGKILL)
    _, status = os.waitpid(rank, 0)
    with suppress(OSError):  # nobody may be there any more
        asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _be_rank(words: list[str], descriptors: list[int], main) -> None:
    status = DIED
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        what, folder, rank = words
        status = main(what, Path(folder), int(rank))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        os._exit(ask(*sys.argv[1:]))
    serve(Path(sys.argv[1]))
