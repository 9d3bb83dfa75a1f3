"""Writes a folder of weights as Hugging Face's libraries read it, a unit at a time.

Which file has which tensor is known from shapes alone, by `huggingface_hub`'s own rule, so bytes
are counted before the first one is written. Tensors come in groups, such as a unit's: while one is
written, a thread reads the next, so two of them and what fills a file are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from workbench.core.files import flush
from workbench.model.weights.stored import INDEX

MOST = "5GB"
"""Of a file; a larger tensor has one to itself."""

Read = Callable[[], dict[str, Tensor]]


class Shards:
    """The files that groups of tensors will lie in."""

    def __init__(self, groups: Sequence[Mapping[str, Tensor]], most: int | str = MOST) -> None:
        """`groups`: tensors of the shapes and types to be written, by their names there."""
        every = {name: tensor for group in groups for name, tensor in group.items()}
        # Sizes are taken of storages, and one may be that of several tensors.
        alone = {n: torch.empty(t.shape, dtype=t.dtype, device="meta") for n, t in every.items()}
        self._split = split_torch_state_dict_into_shards(alone, max_shard_size=most)
        self.nbytes: int = self._split.metadata["total_size"]

    @property
    def files(self) -> int:
        """Number of files with tensors."""
        return len(self._split.filename_to_tensors)

    def write(self, folder: Path, reads: Iterable[Read], tell: Callable[[int], None]) -> None:
        """Write the tensors that `reads` give when they are called, a group each, and the index of
        several files. `tell` hears of how many bytes that is done. Raises OSError if the disk
        refuses."""
        held: dict[str, dict[str, Tensor]] = {file: {} for file in self._split.filename_to_tensors}
        done = 0
        for group in _ahead(reads):
            for name, tensor in group.items():
                held[self._split.tensor_to_filename[name]][name] = tensor.contiguous()
            for file, names in self._split.filename_to_tensors.items():
                if file in held and held[file].keys() == {*names}:
                    _save(folder / file, held.pop(file))
            done += sum(tensor.nbytes for tensor in group.values())
            tell(done)
        assert not held, f"{min(held)} lacks tensors"
        if self._split.is_sharded:
            told = {
                "metadata": self._split.metadata, "weight_map": self._split.tensor_to_filename
            }  # fmt: skip
            (folder / INDEX).write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
            flush(folder / INDEX)


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path.name} was not written: {error}") from error
    flush(path)


def _ahead(reads: Iterable[Read]) -> Iterator[dict[str, Tensor]]:
    """What they give; each is called while the one before is used."""
    coming: Future[dict[str, Tensor]] | None = None
    with ThreadPoolExecutor(1, "reader") as pool:
        for read in reads:
            following = pool.submit(read)
            if coming is not None:
                yield coming.result()
            coming = following
        if coming is not None:
            yield coming.result()
