"""The header of a file of safetensors: names, types, shapes and places of its tensors.

A file is 8 bytes with the length of the header, the header in JSON, and the tensors' bytes, end to
end. So a file that was cut off, or whose header says anything else than the rest, is seen without
reading a tensor. Imports no torch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from workbench.core.files import open_file
from workbench.core.jsonfile import parse_json

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Types of elements, as headers name them."""
WORDS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
"""Types of weights that are trained, as a `RunSpec` names them."""
METADATA = "__metadata__"
MOST_HEADER = 100_000_000
"""Bytes of a header at most, as the format says."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file."""

    file: Path
    label: str
    """Its name there."""
    dtype: str
    """A key of `BITS`."""
    shape: tuple[int, ...]
    start: int
    """Its first byte in the file."""
    nbytes: int

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of a file by their names there. Raises ValueError, which names the file, for one
    that is not there, is none of safetensors, or lacks bytes."""
    try:
        with open_file(file, str(file)) as opened:
            opened.seek(0, 2)
            size = opened.tell()
            opened.seek(0)
            told = opened.read(8)
            length = struct.unpack("<Q", told)[0] if len(told) == 8 else size
            if length > min(size - 8, MOST_HEADER):
                raise ValueError(
                    f"{file} is no whole file of safetensors: its {size} bytes begin with no "
                    "header that is all there"
                )
            header = parse_json(opened.read(length), f"the header of {file}")
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{file} is no file of safetensors: its header is no object")
    header.pop(METADATA, None)
    begin = 8 + length
    found = {name: _entry(file, name, told, begin) for name, told in header.items()}
    placed = sorted(found.values(), key=lambda entry: (entry.start, entry.nbytes))
    ends = [begin, *(entry.start + entry.nbytes for entry in placed)]
    for end, entry in zip(ends, placed, strict=False):
        if entry.start != end:
            raise ValueError(f"{file} is damaged: {entry.label!r} does not begin at byte {end}")
    if ends[-1] != size:
        raise ValueError(
            f"{file} is cut off or damaged: by its header it has {ends[-1]} bytes, and there are "
            f"{size}"
        )
    return found


def _entry(file: Path, name: str, told: Any, begin: int) -> Entry:
    try:
        dtype, shape, (start, stop) = told["dtype"], told["shape"], told["data_offsets"]
        counts = [*shape, start, stop]
        fits = all(type(n) is int and n >= 0 for n in counts) and dtype in BITS
        if fits and prod(shape) * BITS[dtype] == 8 * (stop - start):
            return Entry(file, name, dtype, tuple(shape), begin + start, stop - start)
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{file} is damaged: its header says {told!r:.200} of {name!r}")
