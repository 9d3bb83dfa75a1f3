"""Keeps a disk busy while a folder of large files is made.

A system keeps written bytes in memory until many are there, so a disk idles at first; and whoever
reads, converts and writes in turn has it idle at each turn. Here a thread reads what is written
next, and another one brings to the disk whatever is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from workbench.core.files import flush

PAUSE = 0.05
"""Seconds between looks at a folder."""

T = TypeVar("T")


def ahead(reads: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Results of functions, each of which a thread calls while the result before it is used."""
    coming: Future[T] | None = None
    with ThreadPoolExecutor(1, "reader") as pool:
        for read in reads:
            following = pool.submit(read)
            if coming is not None:
                yield coming.result()
            coming = following
        if coming is not None:
            yield coming.result()


@contextmanager
def brought(folder: Path) -> Iterator[None]:
    """Bring a folder's files to the disk while the block writes them; the last bytes are left to
    whoever flushes the whole files. Raises OSError at the end of the block if the disk refused:
    the system tells that once, and not whoever flushes next."""
    ended = threading.Event()
    with ThreadPoolExecutor(1, "flusher") as pool:
        flushing = pool.submit(_bring, folder, ended)
        try:
            yield
        finally:
            ended.set()
        flushing.result()


def _bring(folder: Path, ended: threading.Event) -> None:
    """Flush files that have changed, over and over."""
    seen: dict[Path, int] = {}
    while not ended.wait(PAUSE):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # renamed, or removed
                changed = path.stat().st_mtime_ns
                if seen.get(path) != changed and path.is_file():
                    seen[path] = changed
                    flush(path)
