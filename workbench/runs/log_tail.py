"""The end of a log as people can read it: plain lines, no terminal codes, no traceback wall."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from workbench.core.files import open_file

TAIL_BYTES = 16_384
LONGEST_LINE = 240

_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_FRAME = re.compile(r'^\s+File ".*", line \d+')
_BETWEEN = (
    "Traceback (most recent call last)",
    "During handling of the above exception",
    "The above exception was the direct cause",
)


def read_tail(path: Path, nbytes: int = TAIL_BYTES) -> bytes:
    """The last bytes of a file, from the start of a line; empty where there is none."""
    try:
        with open_file(path, "it") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - nbytes))
            data = file.read(nbytes)
    except (OSError, ValueError):
        return b""
    return data if size <= nbytes else data[data.find(b"\n") + 1 :]


def last_lines(path: Path, count: int = 12) -> list[str]:
    """The last lines that say something, each as a terminal would show it in the end.

    Control characters are gone, and so are those that turn the direction of text. It is text: who
    puts it into a page escapes it.
    """
    lines = (printable(line) for line in read_tail(path).decode(errors="replace").split("\n"))
    return [line for line in without_tracebacks(lines) if line][-count:]


def printable(line: str) -> str:
    """One line without codes and control characters, cut where it is very long.

    >>> printable("step 1" + chr(13) + "step 2" + chr(27) + "[31m!")
    'step 2!'
    """
    line = _CODES.sub("", line.rstrip("\r")).rpartition("\r")[2].replace("\t", "    ")
    line = "".join(c for c in line if c.isprintable()).rstrip()
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def without_tracebacks(lines: Iterable[str]) -> list[str]:
    """Lines with only the line that names the error of each traceback."""
    kept, inside = [], False
    for line in lines:
        if line.lstrip(" |+-").startswith(_BETWEEN) or _FRAME.match(line):
            inside = True
        elif not inside or (line and not line[0].isspace()):
            inside = False
            kept.append(line)
    return kept
