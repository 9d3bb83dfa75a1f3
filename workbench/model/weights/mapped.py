"""Tensors of files, mapped: pages are read when somebody copies them, and belong to no process."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from workbench.core.files import open_file
from workbench.model.weights.headers import Entry

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "BOOL": torch.bool,
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
