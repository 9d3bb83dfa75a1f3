"""Tensors of files, mapped: pages are read when somebody copies them, and belong to no process.

Who copies a page that is not there waits for it and for some 100 KiB around it, so a disk is never
busy. Threads that read the files beside that, in large pieces, leave their pages to the system.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from workbench.core.files import open_file
from workbench.model.weights.headers import Entry

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "BOOL": torch.bool, "U8": torch.uint8,
}  # fmt: skip


def mapped(entry: Entry) -> Tensor:
    """A tensor as it lies in its file. Raises ValueError where the file has become shorter."""
    dtype = DTYPES[entry.dtype]
    if not entry.numel:
        return torch.empty(entry.shape, dtype=dtype)
    with open_file(entry.file, str(entry.file)) as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants writable memory
    if len(whole) < entry.start + entry.nbytes:
        raise ValueError(f"{entry.file} was cut off since its header was read")
    found = torch.frombuffer(whole, dtype=dtype, count=entry.numel, offset=entry.start)
    return found.view(entry.shape)


READERS, PIECE = 4, 1 << 23
"""Threads that read ahead, and bytes that each asks for at a time."""


@contextmanager
def read_ahead(files: Sequence[Path]) -> Iterator[None]:
    """Within, files are read from the first on, so that their pages are there when somebody copies
    them. What cannot be read is left to who asks for it."""
    ended, here = threading.Event(), threading.local()

    def read(file: Path, at: int) -> None:
        if ended.is_set():
            return
        if not hasattr(here, "buffer"):
            here.buffer = bytearray(PIECE)
        with suppress(OSError), file.open("rb", buffering=0) as opened:
            os.preadv(opened.fileno(), [here.buffer], at)

    with ThreadPoolExecutor(READERS) as readers:
        with suppress(OSError):
            for file in files:
                for at in range(0, file.stat().st_size, PIECE):
                    readers.submit(read, file, at)
        try:
            yield
        finally:
            ended.set()


class Lazy:
    """A tensor of a file as transformers' loader takes it: `[...]` maps it. `bare` gives one of its
    shape on the meta device instead."""

    def __init__(self, entry: Entry, *, bare: bool = False) -> None:
        self._entry, self._bare = entry, bare

    def __getitem__(self, index: object) -> Tensor:
        if self._bare:
            entry = self._entry
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device="meta")
        return mapped(self._entry)
