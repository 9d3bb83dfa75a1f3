"""Processes for tests, forked from one that has imported torch, which takes each two seconds.

`command("workbench.runs.worker", FOLDER)` is to tests what ``python -m workbench.runs.worker
FOLDER`` is to users: the command of a small client (client.py), which asks the server for the
process, and ends as that does. Of signals only SIGKILL is passed on. Tests of signals, and of how
processes start, start them as users do.

``python -m tests.forks.server SOCKET`` is the server; it ends when its standard input is closed.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from tests.forks.popen import CLIENT, forking

DIED = 1
ROOT = Path(__file__).resolve().parents[2]
MOST, FILES = 1 << 18, 16
"""Bytes of what a client asks for, and the number of its open files."""
LATE = (
    "baselines.swapping.planner", "baselines.torch_pipelines", "tests.methods.rank_driver",
    "torch._dynamo", "torch.distributed.pipelining", "torch.nn.parallel",
    "torch.utils.flop_counter", "torch.utils.module_tracker", "workbench.cli",
    "workbench.training.compared", "workbench.methods.harmony.planner",
    "workbench.methods.stronghold", "workbench.methods.offload.updates", "workbench.model.bert",
    "workbench.model.custom_model", "workbench.model.pairs", "workbench.model.pictures",
    "workbench.model.vision", "workbench.model.written", "workbench.profile.probe",
    "workbench.runs.runner", "workbench.runs.worker",
)  # fmt: skip
"""Modules that the processes would import late, each for a second."""


def command(module: str, *words: str) -> tuple[str, ...]:
    """The command of a process that runs a module."""
    return (*CLIENT, str(own()[0]), module, *words)


@functools.cache
def own() -> tuple[Path, subprocess.Popen]:
    """The socket of this process's server, and who holds its standard input."""
    path = Path(tempfile.mkdtemp(prefix="forks-")) / "socket"
    words = [sys.executable, "-m", "tests.forks.server", str(path)]
    starter = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    assert starter.wait() == 0
    return path, starter


def fork(patch: pytest.MonkeyPatch) -> None:
    """Have workers of runs, their ranks and probes forked from now on: for tests whose question is
    not how processes start, nor how they hear of an end."""
    patch.setattr(subprocess, "Popen", forking(str(own()[0])))


def spent() -> float:
    """Processor seconds of this process's server, if it has one, and of the processes that it
    forked and that have ended."""
    if not own.cache_info().currsize:
        return 0.0
    number = int(own()[0].with_name("pid").read_text())
    return sum(psutil.Process(number).cpu_times()[:4])


class Server:
    """Forks a process for each client that asks, and tells the client how it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(str(path))
        self._door.listen()
        self._clients: dict[int, tuple[socket.socket, int]] = {}
        """A descriptor of a process -> its client and its number."""

    def run(self) -> None:
        """Serve until nobody holds standard input."""
        while True:
            ended = {client: process for process, (client, _) in self._clients.items()}
            ready, _, _ = select.select([0, self._door, *ended, *self._clients], [], [])
            if 0 in ready:
                break
            for process in {ended.get(each, each) for each in ready} - {self._door}:
                self._end(process)
            if self._door in ready:
                self._begin(self._door.accept()[0])
        for process in [*self._clients]:
            self._end(process)
        shutil.rmtree(self._path.parent)

    def _begin(self, client: socket.socket) -> None:
        asked, files, _, _ = socket.recv_fds(client, MOST, FILES)
        if not asked:  # it was killed before
            client.close()
            return
        number = os.fork()
        if number == 0:
            for other in (client, self._door, *(other for other, _ in self._clients.values())):
                other.close()
            _become(*marshal.loads(asked), files, str(self._path))
        with suppress(OSError):  # it may have a session of its own by now
            os.setpgid(number, number)
        for file in files:
            os.close(file)
        self._clients[os.pidfd_open(number)] = client, number

    def _end(self, process: int) -> None:
        """End the group of a process that has ended, or whose client has."""
        client, number = self._clients.pop(process)
        if not select.select([process], [], [], 0)[0]:
            with suppress(OSError):  # it may have ended since
                os.killpg(number, signal.SIGKILL)
        _, status = os.waitpid(number, 0)
        os.close(process)
        with client, suppress(OSError):  # nobody may be there any more
            client.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(
    words: tuple[str, ...], folder: str, variables: dict[str, str], numbers: list[int],
    files: list[int], server: str,
) -> None:  # fmt: skip
    """Be the process that a client asks for, and end."""
    status: object = DIED
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        high = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]
        for file, number in zip(high, numbers, strict=True):
            os.dup2(file, number)
        for file in {*files, *high} - {*numbers}:
            os.close(file)
        os.environ.clear()
        os.environ.update(variables)
        more = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:0] = [path for path in more if path not in sys.path]
        subprocess.Popen = forking(server)
        sys.argv = ["", *words[1:]]
        warnings.filterwarnings("ignore", module="runpy")  # that it was imported before
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else DIED)


def main(path: Path) -> None:
    """Serve, as nobody's child: tests count their children."""
    for name in LATE:
        import_module(name)
    gc.freeze()
    server = Server(path)
    if number := os.fork():
        path.with_name("pid").write_text(str(number))
        os._exit(0)
    server.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
