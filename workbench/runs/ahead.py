"""A run's guard and worker, started before it is known whether and what they run.

A command that names a configuration of Hugging Face imports torch and transformers to check it, and
so does the worker that trains: each takes 14 s on a machine with slow files. So the command starts
both processes first, and the worker imports while the command checks:

    command --socket--> guard --socket--> worker --> pages (runtime/memory/pages_ahead.py)

The folder of the run comes down this way when all is well, and with it open files: the log, and
locks that the guard holds. Where the command refuses, or ends in any other way, its end of the
socket closes, and the guard kills all that it started. Nothing is written before.
"""

from __future__ import annotations

import gc
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Self

import psutil

from workbench.core.garbage import keep_what_is_there, uncollected
from workbench.core.host import available_cores
from workbench.core.native import triton_works
from workbench.runs.processes import kill_marked, variables

WORD = "--ahead"
"""Stands in the command lines of both processes before what the command was given, instead of a
folder: its configuration, device, and memory of device and host, as they were written."""
ENOUGH_CORES = 4
"""On fewer, the processes would take turns."""
MOST_BYTES, MOST_FILES = 1 << 13, 8
PAGES = "workbench.runtime.memory.pages_ahead"
COMPILER = "torch._inductor.compile_fx"
"""Imported while there is nothing else to do."""


class Ahead:
    """The processes, in the command's hands. Leaving its context ends them, unless a folder was
    handed to them; until then this process collects no garbage, for imports make objects that
    stay."""

    def __init__(self, root: Path, given: Sequence[str]) -> None:
        """`given` as of `WORD`; `root` is the folder of results."""
        self.mark = f"{root}/ahead-{os.getpid()}-{secrets.token_hex(4)}"
        self._end, theirs = socket.socketpair()
        with theirs:
            self._guard: subprocess.Popen | None = subprocess.Popen(
                [sys.executable, "-m", "workbench.runs.guard", WORD, *given],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=variables(self.mark),
            )
        self._guard.stdin = self._end  # whoever has the guard closes it

    @property
    def waits(self) -> bool:
        """Whether they are there, and nothing was handed to them."""
        return self._guard is not None and self._guard.poll() is None

    def hand(self, folder: Path, files: Sequence[int]) -> subprocess.Popen | None:
        """Have them run what lies in a folder, and return the guard; None where it is gone."""
        try:
            tell(self._end, folder, files)
        except OSError:
            self.close()
        guard, self._guard = self._guard, None
        gc.enable()
        return guard

    def close(self) -> None:
        """End what has no folder, and wait until it is gone."""
        guard, self._guard = self._guard, None
        gc.enable()
        if guard is not None:
            self._end.close()
            with suppress(subprocess.TimeoutExpired):
                guard.wait(timeout=10)
            kill_marked(self.mark, group=guard.pid)
            guard.wait()

    def __enter__(self) -> Self:
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pays() -> bool:
    """Whether this machine has the cores for it."""
    return available_cores() >= ENOUGH_CORES


def command_s() -> float:
    """Seconds since this process was started."""
    return max(0.0, time.time() - psutil.Process().create_time())


def tell(end: socket.socket, folder: Path, files: Sequence[int]) -> None:
    """Hand a folder and open files over. Raises OSError where nobody takes them."""
    socket.send_fds(end, [os.fsencode(folder) + b"\0"], files)


def told() -> tuple[Path, list[int]] | None:
    """The folder and the files that come by standard input; None where it closes instead. The first
    of the files takes the place of standard output and error."""
    with socket.socket(fileno=os.dup(0)) as end:
        text, files, *_ = socket.recv_fds(end, MOST_BYTES, MOST_FILES)
        while text and not text.endswith(b"\0"):
            text = text + more if (more := end.recv(MOST_BYTES)) else b""
    if not text:
        return None
    for stream in (1, 2):
        os.dup2(files[0], stream)
    return Path(os.fsdecode(text[:-1])), files


def waited(given: Sequence[str]) -> tuple[Path, Pages] | None:
    """In the worker: import what the run will need, until its folder comes, and bring pages. None
    where no folder comes."""
    pages = Pages(given)
    with uncollected(), suppress(Exception):  # the command says what it refuses
        _import(*given)
    keep_what_is_there(collect=False)
    order = told()
    return (order[0], pages) if order else None


def _import(config: str, device: str, *_: str) -> None:
    """Make the model of a configuration, as the run will; and what else it may need while no folder
    comes, such as a context of the GPU, which takes a second or two."""
    compared = import_module("workbench.training.compared")
    spec = import_module("workbench.model.hf_config").spec_from_config(config)
    import_module("workbench.model").make_model(spec)
    cuda = import_module("torch").cuda
    on_gpu = [cuda.synchronize, triton_works] if device != "cpu" and cuda.is_available() else []
    for do in (*on_gpu, compared.own_code, partial(import_module, COMPILER)):
        if select.select([0], [], [], 0)[0]:
            break
        with suppress(Exception):
            do()


class Pages:
    """The process that touches as much memory as the run may want of the host."""

    def __init__(self, given: Sequence[str]) -> None:
        command, none = [sys.executable, "-m", PAGES, *given], subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=none, stdout=subprocess.PIPE, stderr=none)

    @property
    def there(self) -> bool:
        """Whether the process is there: it ends where there is nothing to touch."""
        return self._process.poll() is None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, none are touched; those that were are kept."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Have it give its memory back, and wait until it has; returns the bytes that it
        touched."""
        self._process.kill()
        lines, _ = self._process.communicate()
        return int(lines.split()[-1]) if lines.split() else 0
