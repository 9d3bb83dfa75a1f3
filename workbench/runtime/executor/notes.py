"""Notes that the processes of one run leave each other in its folder: each whole, or not there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.core.files import write_whole

NAP_S = 1e-3


def leave(path: Path, what: Any) -> None:
    """Leave data at `path` for another process that looks there."""
    write_whole(path, json.dumps(what))


def find(path: Path, check: Callable[[], None]) -> Any:
    """Wait for the data that another process leaves at `path`, and return it; `check` raises when
    it never will."""
    while not path.exists():
        check()
        time.sleep(NAP_S)
    return json.loads(path.read_text())
