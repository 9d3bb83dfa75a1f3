"""Writes a folder of weights as Hugging Face's libraries read it, a unit at a time.

Which file has which tensor is known from shapes alone, by `huggingface_hub`'s own rule, so bytes
are counted before the first one is written. Tensors come in groups, such as a unit's: while one is
written to its files, a thread reads the next, so two of them are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from workbench.core.busy_disk import ahead
from workbench.core.files import flush
from workbench.model.weights.stored import INDEX
from workbench.model.weights.tensor_file import TensorFile

MOST = "5GB"
"""Of a file; a larger tensor has one to itself."""

Read = Callable[[], dict[str, Tensor]]


class Shards:
    """The files that groups of tensors will lie in."""

    def __init__(self, groups: Sequence[Mapping[str, Tensor]], most: int | str = MOST) -> None:
        """`groups`: tensors of the shapes and types to be written, by their names there."""
        every = {name: tensor for group in groups for name, tensor in group.items()}
        # Sizes are taken of storages, and one may be that of several tensors.
        self._alone = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            for name, tensor in every.items()
        }
        self._split = split_torch_state_dict_into_shards(self._alone, max_shard_size=most)
        self.nbytes: int = self._split.metadata["total_size"]

    @property
    def files(self) -> int:
        """Number of files with tensors."""
        return len(self._split.filename_to_tensors)

    def write(self, folder: Path, reads: Iterable[Read], tell: Callable[[int], None]) -> None:
        """Write the tensors that `reads` give when they are called, a group each, and the index of
        several files. `tell` hears of how many bytes that is done. Raises OSError if the disk
        refuses."""
        opened: dict[str, TensorFile] = {}
        done = 0
        with ExitStack() as stack:
            for group in ahead(reads):
                for name, tensor in group.items():
                    file = self._split.tensor_to_filename[name]
                    if file not in opened:
                        within = self._split.filename_to_tensors[file]
                        alone = {each: self._alone[each] for each in within}
                        opened[file] = TensorFile(folder / file, alone)
                        stack.callback(opened[file].close)
                    opened[file].write(name, tensor)
                done += sum(tensor.nbytes for tensor in group.values())
                tell(done)
        assert done == self.nbytes, f"{self.nbytes - done} bytes of tensors are lacking"
        if self._split.is_sharded:
            told = {
                "metadata": self._split.metadata, "weight_map": self._split.tensor_to_filename
            }  # fmt: skip
            (folder / INDEX).write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
            flush(folder / INDEX)
