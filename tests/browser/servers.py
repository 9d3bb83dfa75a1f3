"""Servers that browser tests talk to: JupyterLab, and the page without code."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.runs.helpers import HANG_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-a-test"
GRACE_S = 5.0
"""Before a server that was asked to end is killed."""
PAGE = """
from pathlib import Path
from workbench.page import serve
serve(Path({results!r}), size="tiny", echo=lambda line: print(line, flush=True))
"""


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen
    url: str
    """With its token."""

    @property
    def origin(self) -> str:
        return self.url.partition("?")[0].rstrip("/")

    def kill(self) -> None:
        """As the kernel's out-of-memory killer would."""
        self.process.kill()
        self.process.wait(HANG_S)

    def family(self) -> list[psutil.Process]:
        """Everything it started."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[Server]:
    """JupyterLab on loopback with its token on, at a folder."""
    port = _free_port()
    words = [
        sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class="
        "jupyterlab.handlers.announcements.NeverCheckForUpdate",
    ]  # fmt: skip
    private = {
        "JUPYTER_CONFIG_DIR": str(folder / ".config"), "JUPYTERLAB_SETTINGS_DIR":
        str(folder / ".settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces"),
    }  # fmt: skip
    server = Server(_start(words, **private), f"http://127.0.0.1:{port}/?token={TOKEN}")
    with _ended(server):
        _wait_for(f"{server.origin}/api?token={TOKEN}", server)
        yield server


@contextmanager
def page(results: Path) -> Iterator[Server]:
    """The dashboard as a page, with exhibits of the tiny size."""
    process = _start([sys.executable, "-c", PAGE.format(results=str(results))])
    with _ended(Server(process, "")) as server:
        while not server.url:
            line = process.stdout.readline()
            assert line or process.poll() is None, "the page's server ended"
            found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
            server.url = found[0] if found else ""
        _wait_for(server.url, server)
        yield server


def status_of(url: str) -> tuple[int, str]:
    """(status, address after redirections) of a plain request."""
    try:
        with urllib.request.urlopen(url, timeout=HANG_S) as answer:
            return answer.status, answer.url
    except urllib.error.HTTPError as error:
        return error.code, url


@contextmanager
def _ended(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        family = server.family() if server.process.poll() is None else []
        server.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(GRACE_S)
        server.process.kill()
        server.process.wait()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        server.process.stdout.close()


def _start(words: list[str], **more: str) -> subprocess.Popen:
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _wait_for(url: str, server: Server) -> None:
    def answers() -> bool:
        assert server.process.poll() is None, "the server ended"
        with suppress(OSError):
            return status_of(url)[0] == 200
        return False

    wait_for(answers)


def _free_port() -> int:
    """Below those that the system gives to whoever asks for any, as kernels do."""
    for port in random.SystemRandom().sample(range(15_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
