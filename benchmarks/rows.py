"""Rows of a part of a benchmark: measured once, kept with their machine and date, told in lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workbench.core.files import write_whole
from workbench.profile.machine import this_machine

Row = dict[str, Any]
Rows = list[Row]
UNTOLD = ("losses", "reference")
"""Fields that stay in the file."""


def pairs_file(work: Path) -> str:
    """A file of pairs of words and numbers, for models that translate."""
    pairs = work / "pairs.tsv"
    pairs.write_text("".join(f"number: {n}\t{n % 900 + 100}\n" for n in range(400)))
    return str(pairs)


def measured_lines(
    part: str, size: str, out: Path, device: str, measure: Callable[[Path], Iterable[Row]]
) -> Iterator[str]:
    """A part's lines, measured now unless its file is there; `measure` gets a folder to work in.
    Rows of a part that was cut short are in ``PART.part``."""
    path, began, rows = out / f"{part}.json", time.monotonic(), []
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with TemporaryDirectory() as folder:
            for row in measure(Path(folder)):
                rows.append(row)
                told = {"size": size, "machine": asdict(this_machine(device)),
                        "seconds": time.monotonic() - began,
                        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
                text = json.dumps({"provenance": told, "rows": rows}, indent=1)
                write_whole(unfinished, text + "\n")
        unfinished.replace(path)
    data = json.loads(path.read_text())
    for row in data["rows"]:
        yield f"{part} ({data['provenance']['size']}): {_told(row)}"


def _told(row: Row) -> str:
    left = {n: value for n, value in row.items() if n not in UNTOLD}
    return ", ".join(f"{name} {_short(value)}" for name, value in left.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
