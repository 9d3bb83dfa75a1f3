"""Processes for tests, forked from one that has imported torch, which takes each two seconds.

`command("workbench.runs.worker", FOLDER)` is to tests what ``python -m workbench.runs.worker
FOLDER`` is to users: the command of a small client (client.py), which asks the server for the
process, and ends as that does. Of signals only SIGKILL is passed on. Tests of signals, and of how
processes start, start them as users do.

``python -m tests.forks.server SOCKET`` is the server. All workers of a run of tests share one: the
first that asks for a process starts it, and it ends with the run, when nobody holds the other end
of its standard input (`shared`).
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
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forks.popen import CLIENT, forking

DIED = 1
ROOT = Path(__file__).resolve().parents[2]
FOLDER = "WORKBENCH_FORKS"
"""Environment variable of a run of tests: the folder of its server."""
MOST, FILES = 1 << 18, 16
"""Bytes of what a client asks for, and the number of its open files."""
LATE = (
    "baselines.data_parallel.run", "baselines.fsdp.driven", "baselines.pipeline",
    "baselines.swapping.planner", "baselines.torch_pipelines", "numpy.ma", "tests.methods.loops",
    "tests.methods.rank_driver", "tests.varuna.cases", "torch._dynamo",
    "torch._inductor.compile_fx", "torch.distributed.pipelining", "torch.nn.parallel",
    "torch.utils.flop_counter", "torch.utils.module_tracker", "workbench.cli", "workbench.engine",
    "workbench.methods.aceso.driven", "workbench.methods.aceso.run",
    "workbench.methods.ftpipe.driven", "workbench.methods.harmony.planner",
    "workbench.methods.offload.updates", "workbench.methods.stronghold", "workbench.model.bert",
    "workbench.model.custom_model", "workbench.model.gpt", "workbench.model.hf",
    "workbench.model.pairs", "workbench.model.pictures", "workbench.model.vision",
    "workbench.model.written", "workbench.profile.collective_timing", "workbench.profile.probe",
    "workbench.runs.runner", "workbench.runs.worker", "workbench.training.compared",
    "workbench.training.loop_ranks",
)  # fmt: skip
"""Modules that the processes would import late, each for a second."""
MODELING = "transformers.models.llama.modeling_llama"
"""With it comes what any decoder of transformers needs, where that is installed."""


def command(module: str, *words: str) -> tuple[str, ...]:
    """The command of a process that runs a module."""
    return (*CLIENT, str(own()), module, *words)


@contextmanager
def shared() -> Iterator[None]:
    """A folder for the server of a run of tests, which lives no longer."""
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    os.mkfifo(folder / "held")
    held = os.open(folder / "held", os.O_RDWR)
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def own() -> Path:
    """The socket of the server, which is started here unless another worker of the tests has."""
    folder = Path(os.environ[FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path := folder / "socket").exists():
            held = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)
            words = [sys.executable, "-m", "tests.forks.server", str(path)]
            alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # who forks is to have one thread
            subprocess.run(
                words, cwd=ROOT, stdin=held, env=alone, start_new_session=True, check=True
            )
            os.close(held)
    return path


def fork(patch: pytest.MonkeyPatch) -> None:
    """Have workers of runs, their ranks and probes forked from now on: for tests whose question is
    not how processes start, nor how they hear of an end."""
    patch.setattr(subprocess, "Popen", forking(str(own())))


def spent() -> float:
    """Processor seconds of the processes that were forked for this worker of the tests and that
    have ended."""
    seconds = Path(os.environ[FOLDER], _seconds_of(os.environ))
    return float(seconds.read_text()) if seconds.exists() else 0.0


def _seconds_of(variables: Mapping[str, str]) -> str:
    """The name of the file with the processor seconds of a worker with such an environment."""
    return f"seconds-{variables.get('PYTEST_XDIST_WORKER', 'alone')}"


class Server:
    """Forks a process for each client that asks, and tells the client how it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(str(path))
        self._door.listen()
        self._clients: dict[int, tuple[socket.socket, int, str]] = {}
        """A descriptor of a process -> its client, its number, and who is told of its seconds."""
        self._seconds: Counter[str] = Counter()

    def run(self) -> None:
        """Serve until nobody holds standard input."""
        while True:
            ended = {client: process for process, (client, *_) in self._clients.items()}
            ready, _, _ = select.select([0, self._door, *ended, *self._clients], [], [])
            if 0 in ready:
                break
            for process in {ended.get(each, each) for each in ready} - {self._door}:
                self._end(process)
            if self._door in ready:
                self._begin(self._door.accept()[0])
        for process in [*self._clients]:
            self._end(process)
        shutil.rmtree(self._path.parent, ignore_errors=True)

    def _begin(self, client: socket.socket) -> None:
        asked, files, _, _ = socket.recv_fds(client, MOST, FILES)
        if not asked:  # it was killed before
            client.close()
            return
        words, folder, variables, numbers = marshal.loads(asked)
        number = os.fork()
        if number == 0:
            for other in (client, self._door, *(other for other, *_ in self._clients.values())):
                other.close()
            for process in self._clients:
                os.close(process)
            _become(words, folder, variables, numbers, files, str(self._path))
        with suppress(OSError):  # it may have a session of its own by now
            os.setpgid(number, number)
        for file in files:
            os.close(file)
        self._clients[os.pidfd_open(number)] = client, number, _seconds_of(variables)

    def _end(self, process: int) -> None:
        """End the group of a process that has ended, or whose client has."""
        client, number, told = self._clients.pop(process)
        if not select.select([process], [], [], 0)[0]:
            with suppress(OSError):  # it may have ended since
                os.killpg(number, signal.SIGKILL)
        _, status, usage = os.wait4(number, 0)
        os.close(process)
        self._seconds[told] += usage.ru_utime + usage.ru_stime
        part = self._path.with_name("part")
        part.write_text(str(self._seconds[told]))
        part.replace(self._path.with_name(told))
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
        cuda = import_module("torch.cuda")
        if cuda._is_in_bad_fork():  # an import asked for GPUs: the process starts as users' do
            os.execv(sys.executable, [sys.executable, "-m", *words])
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


def _know_shapes() -> None:
    """Take apart the module that most processes take apart: torch then knows its operators' shapes.
    Nobody asks for GPUs meanwhile, which no process could use any more."""
    import torch

    module = import_module("tests.methods.loops").net()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        decompose = import_module("workbench.model.decompose").decompose
        decompose(module, (torch.zeros(2, 6, dtype=torch.int64),))


def main(path: Path) -> None:
    """Serve, as nobody's child: tests count their children."""
    for name in (*LATE, *([MODELING] if find_spec("transformers") else ())):
        import_module(name)
    import_module("workbench.runtime.memory.named_operators").name_operators()
    _know_shapes()
    gc.collect()
    gc.freeze()
    server = Server(path)
    if os.fork():
        os._exit(0)
    server.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
