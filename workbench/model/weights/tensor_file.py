"""A file of safetensors whose tensors are written one by one, in any order.

The format's own library wants all tensors of a file at once, in memory. Here the header is written
first, from shapes and types, so a tensor's place is known. Bytes are those of that library.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.model.weights.headers import METADATA

ORDER = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
    torch.float32: "F32", torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint16: "U16", torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Names of types in headers, in the order in which their tensors lie in a file."""


class TensorFile:
    """A new file, which is whole when all its tensors are written."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """`tensors` have the shapes and types to be written, such as on the meta device. Raises
        OSError if the disk refuses."""
        kinds, header, end = [*ORDER], {METADATA: {"format": "pt"}}, 0
        self._places: dict[str, tuple[int, int]] = {}
        for name in sorted(tensors, key=lambda n: (kinds.index(tensors[n].dtype), n.encode())):
            tensor, begin = tensors[name], end
            end += tensor.nbytes
            self._places[name] = begin, end
            header[name] = {
                "dtype": ORDER[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]
            }  # fmt: skip
        told = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        told += b" " * (-len(told) % 8)
        self._begin = 8 + len(told)
        self._file = path.open("xb", buffering=0)
        self._put(0, struct.pack("<Q", len(told)) + told)

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor in its place; the last one closes the file. Raises OSError if the disk
        refuses."""
        begin, end = self._places.pop(name)
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        assert flat.nbytes == end - begin, f"{name} has {flat.nbytes} bytes"
        self._put(self._begin + begin, flat)
        if not self._places:
            self.close()

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def _put(self, at: int, data: Any) -> None:
        left = memoryview(data)
        try:
            self._file.seek(at)
            while left:  # the system takes 2 GiB at a time, and a disk that is nearly full less
                left = left[self._file.write(left) :]
        except OSError as error:
            raise OSError(f"{Path(self._file.name).name} was not written: {error}") from error
