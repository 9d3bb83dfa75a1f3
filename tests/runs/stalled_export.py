"""An export that never ends: ``python -m tests.runs.stalled_export RUN OUT TOLD``.

It makes the file TOLD when its first tensors are written, and waits to be killed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from workbench.runs.export import export
from workbench.runs.store import Store


def main(run: str, out: str, told: str) -> None:
    def stall(done: int, whole: int) -> None:
        Path(told).touch()
        signal.pause()

    export(run, out, Store(Path(told).parent), tell=stall, most="20KB")


if __name__ == "__main__":
    main(*sys.argv[1:])
