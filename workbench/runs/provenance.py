"""Where a number came from: the code, the packages and the machine, gathered when a run starts.

A number without this cannot be compared with another one. The host's name is hashed, so that
records can be published; nothing else of the environment is kept.
"""

from __future__ import annotations

import hashlib
import platform
import socket
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workbench.core import host
from workbench.core.host import available_cores

PACKAGES = ("torch", "deepspeed", "megatron-core", "transformers", "numpy")
"""Packages that a run's numbers depend on, by their names on the package index."""


def gather(command: list[str] | None = None) -> dict[str, Any]:
    """Everything known now, JSON-able; `command` is by default this process's."""
    return {**_machine(), **_code(), "command": list(sys.argv if command is None else command)}


@cache
def _machine() -> dict[str, Any]:
    build, gpus = host.torch_build(), host.gpus()
    return {
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := version_of(name))},
        "torch_cuda": build.cuda if build else None,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": host.cpu_model(),
        "cores": available_cores(),
        "host_memory_bytes": host.host_memory_bytes(),
        "gpus": [gpu.name for gpu in gpus],
        "gpu_memory_bytes": gpus[0].memory_bytes if gpus else None,
        "gpu_driver": gpus[0].driver if gpus else None,
        "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
    }


def _code() -> dict[str, Any]:
    """Commit of the checkout, and a hash of what differs from it; None where there is no git."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("diff", "HEAD", "--binary") if commit else None
    untracked = _git("ls-files", "--others", "--exclude-standard") if commit else None
    dirty = None if changes is None else bool(changes or untracked)
    digest = hashlib.sha256(f"{changes}\0{untracked}".encode()).hexdigest()[:12]
    return {"commit": commit, "dirty": dirty, "diff": digest if dirty else None}


def _git(*arguments: str) -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed copy inside somebody else's repository
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def version_of(package: str) -> str | None:
    """Version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
