"""Has processes of ours that import torch forked (server.py), whoever starts them.

``python popen.py SOCKET MODULE WORDS`` is ``python -m MODULE WORDS`` whose processes are forked, as
the worker that a guard starts.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("client.py")))
FORKED = (
    "tests.methods.library_driver", "workbench.cli", "workbench.profile.probe",
    "workbench.ranks.process", "workbench.runs.worker",
)  # fmt: skip
"""Modules that import torch, or may."""
PASSING = ("ipykernel_launcher", "workbench.runs.guard", "workbench.sweep_process")
"""Modules that start processes of those."""


def replaced(words: Any, server: str) -> Any:
    """The command of a process of the server's, or of one that starts such; any other as it is."""
    if isinstance(words, str | os.PathLike) or "-m" not in words or words[0] != sys.executable:
        return words
    at = words.index("-m")
    module, *more = map(os.fspath, words[at + 1 :])
    if module in FORKED:
        return [*CLIENT, server, module, *more]
    if module in PASSING:
        return [*words[:at], __file__, server, module, *more]
    return words


def forking(server: str) -> type[subprocess.Popen]:
    """`subprocess.Popen` that has processes of ours forked by the server."""

    class Popen(subprocess.Popen):
        def __init__(self, args: Any, *more: Any, **how: Any) -> None:
            super().__init__(replaced(args, server), *more, **how)

    return Popen


def main(server: str, module: str, *words: str) -> None:
    """Run a module as Python would."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # instead of this file's folder
    subprocess.Popen = forking(server)
    sys.argv = ["", *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
