"""Ranks for tests, forked from a process that has imported torch, which takes each two seconds.

`process(what)` is the command of a rank as `rank_driver` describes them: a small client that asks
the server for a rank, and lives and ends as the rank does. Whoever kills it kills the rank, and it
has the rank's exit status. Tests that are about how ranks start, fail and end do not use this.

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
import threading
from pathlib import Path

DIED = 1
ROOT = Path(__file__).resolve().parents[2]


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
    """Let the server have a rank, with this process's output; its exit status."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(words).encode()], [1, 2])
        status = server.recv(1)
    return status[0] if status else DIED


def serve(path: Path) -> None:
    """Fork a rank for each that asks. The server is nobody's child: tests count their children."""
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
                    _be_rank(asked, rank_driver.main)
    path.unlink()
    path.parent.rmdir()


def _be_rank(asked: socket.socket, main) -> None:
    status = DIED
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        words, descriptors, _, _ = socket.recv_fds(asked, 1 << 16, 2)
        for number, descriptor in enumerate(descriptors, start=1):
            os.dup2(descriptor, number)
        threading.Thread(target=_end_with, args=(asked,), daemon=True).start()
        what, folder, rank = json.loads(words)
        status = main(what, Path(folder), int(rank))
        asked.sendall(bytes([status]))
    finally:
        os._exit(status)


def _end_with(asked: socket.socket) -> None:
    asked.recv(1)
    os._exit(DIED)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        os._exit(ask(*sys.argv[1:]))
    serve(Path(sys.argv[1]))
