"""The processor of this machine: a name for what is compiled for it, and DeepSpeed's question."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any


def processor() -> str:
    """Short name of this processor's instruction set, which the operators are compiled for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def keep_the_processors_name(folder: Path) -> None:
    """Let DeepSpeed read what processor this is from `folder`, which is named after it: it asks
    three times before it trains, and each time another process finds out, in more than a second."""
    try:
        import cpuinfo
    except ImportError:  # then DeepSpeed does not ask
        return
    asked, path = cpuinfo.get_cpu_info, folder / "processor.json"
    if hasattr(asked, "cache_info"):
        return

    @functools.cache
    def told() -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text())
        found = asked()
        with contextlib.suppress(OSError):  # of another user, say
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(found))
            part.replace(path)
        return found

    cpuinfo.get_cpu_info = told
