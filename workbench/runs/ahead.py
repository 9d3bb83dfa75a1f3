"""A run's guard and worker, started before it is known whether and what they run.

A command that names a configuration of Hugging Face imports torch and transformers to check it, and
so does the worker that trains: each takes 14 s on a machine with slow files. So the command starts
both processes first, and the worker imports while the command checks:

    command --socket--> guard --socket--> worker --> pages (runtime/memory/pages_ahead.py)

The folder of the run comes down this way when all is well, and with it the files that the guard
holds and writes to. Where the command refuses, or ends in any other way, its end of the socket
closes; the guard then kills all that it started. Nothing is written before.
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
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Self

import psutil

from workbench.core.host import available_cores
from workbench.runs.processes import kill_marked

WORD = "--ahead"
"""Stands in the command lines of both processes instead of a folder."""
ENOUGH_CORES = 4
"""On fewer, the processes would take turns."""
FILES = 8
"""Most files that come with a folder."""
PAGES = "workbench.runtime.memory.pages_ahead"
IDLE = ("torch._inductor.compile_fx", "triton")
"""Imported while there is nothing else to do: a run needs them where it compiles."""


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Words of a command, as they were written, that the worker can use before they are checked."""

    config: str
    device: str = "auto"
    device_memory: str = ""
    host_memory: str = ""

    @property
    def words(self) -> list[str]:
        """For a command line."""
        return [WORD, self.config, self.device, self.device_memory, self.host_memory]

    @classmethod
    def among(cls, words: Sequence[str]) -> Hint | None:
        """The hint in a command line; None where a folder stands there."""
        if words[:1] != [WORD]:
            return None
        return cls(**dict(zip(cls.__annotations__, words[1:], strict=True)))


class Ahead:
    """The processes, in the command's hands. Leaving its context ends them, unless a folder was
    handed to them."""

    def __init__(self, hint: Hint, mark: str, variables: dict[str, str]) -> None:
        """`mark` is what all their environments carry, among other `variables`."""
        self.mark = mark
        self._end, theirs = socket.socketpair()
        with theirs:
            self._guard: subprocess.Popen | None = subprocess.Popen(
                [sys.executable, "-m", "workbench.runs.guard", *hint.words],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=variables,
            )
        self._guard.stdin = self._end  # whoever has the guard closes it

    @property
    def waits(self) -> bool:
        """Whether they are there, and nothing was handed to them."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def before_s(self) -> float:
        """Seconds since this process, the command, was started."""
        return max(0.0, time.time() - psutil.Process().create_time())

    def hand(self, folder: Path, files: Sequence[int]) -> subprocess.Popen | None:
        """Have them run what lies in a folder; `files` are the log's and what the guard is to hold.
        Returns the guard; None where it is there no more, or has a folder already."""
        guard, self._guard = self._guard, None
        if guard is not None:
            try:
                tell(self._end, folder, files)
            except OSError:
                self._guard = guard
                self.close()
                return None
        return guard

    def close(self) -> None:
        """End what has no folder, and wait until it is gone."""
        guard, self._guard = self._guard, None
        if guard is not None:
            self._end.close()
            with suppress(subprocess.TimeoutExpired):
                guard.wait(timeout=10)
            kill_marked(self.mark, group=guard.pid)
            guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def new_mark(root: Path) -> str:
    """A mark for processes whose run nobody knows yet, among those of a results folder."""
    return f"{root}/ahead-{os.getpid()}-{secrets.token_hex(4)}"


def pays() -> bool:
    """Whether this machine has the cores for it."""
    return available_cores() >= ENOUGH_CORES


def tell(end: socket.socket, folder: Path, files: Sequence[int]) -> None:
    """Hand a folder and open files over. Raises OSError where nobody takes them."""
    socket.send_fds(end, [os.fsencode(folder) + b"\0"], files)


def told() -> tuple[Path, list[int]] | None:
    """The folder and the files that come by standard input; None where it closes instead."""
    with socket.socket(fileno=os.dup(0)) as end:
        text, files, *_ = socket.recv_fds(end, 1 << 13, FILES)
        while text and not text.endswith(b"\0"):
            if not (more := end.recv(1 << 13)):
                return None
            text += more
    return (Path(os.fsdecode(text[:-1])), files) if text else None


def waited(hint: Hint) -> tuple[Path, Pages] | None:
    """In the worker: import what the run will need, until its folder comes, and write to its log
    from then on; also pages that are brought meanwhile. None where no folder comes."""
    pages = Pages(hint)
    gc.disable()  # it would look through all that is imported, a sixth of the time
    _import(hint)
    gc.enable()
    gc.freeze()
    order = told()
    if order is None:
        return None
    folder, (log,) = order
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return folder, pages


def _import(hint: Hint) -> None:
    """Make the model that the configuration describes, as the run will, and what else it may need
    while no folder comes, such as a context of the GPU, which takes a second or two. What is
    refused here is the command's to say."""
    with suppress(Exception):
        compared = import_module("workbench.training.compared")
        spec = import_module("workbench.model.hf_config").spec_from_config(hint.config)
        import_module("workbench.model").make_model(spec)
        cuda = import_module("torch").cuda
        contexts = [cuda.synchronize] if hint.device != "cpu" and cuda.is_available() else []
        for do in (*contexts, compared.own_code, *(partial(import_module, each) for each in IDLE)):
            if select.select([0], [], [], 0)[0]:
                break
            with suppress(Exception):
                do()


class Pages:
    """The process that touches as much memory as the run may want of the host."""

    def __init__(self, hint: Hint) -> None:
        words = [hint.config, hint.device, hint.device_memory, hint.host_memory]
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", PAGES, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

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

    def end(self) -> dict[str, float]:
        """Have it give its memory back, and wait until it has; returns how many bytes it touched,
        and in how many seconds at most, if there was anything to touch."""
        self._process.kill()
        told, _ = self._process.communicate()
        lines = told.decode().split()
        if not lines:
            return {}
        return {"touched_bytes": int(lines[-1]), "seconds": time.monotonic() - self._began}
