"""Writes weights as a folder that others use: transformers, servers, `load_state_dict`.

A decoder of Hugging Face's becomes a folder that its `from_pretrained` takes as if it had written
it: configuration, and files of weights by the names and in the layout on disk. Of any other module
a folder has the tensors alone, by the names in its `state_dict`. All is written beside that folder
under another name, which it loses in the end: of an export that was killed nothing is there that
looks whole, and the next one removes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.core.busy_disk import brought
from workbench.core.bytesize import format_bytes
from workbench.core.files import FOLDER, FileLock, flush
from workbench.core.paths import user_path
from workbench.model import hf_folder
from workbench.model.weights.outgoing import Outgoing, Weights
from workbench.model.weights.shards import MOST, Shards

BESIDE = 64 << 20
"""Bytes that all but the tensors may need."""

Tell = Callable[[int, int], None]
"""Hears of how many bytes it is done, and of how many in all."""


def new_folder(folder: str | Path) -> Path:
    """The folder to write. Raises ValueError for one that is not empty, and for what is none."""
    target = user_path(folder).resolve()
    if file := next((p for p in (target, *target.parents) if p.exists() and not p.is_dir()), None):
        raise ValueError(f"{file} is a file; name a new folder")
    if target.is_dir() and next(target.iterdir(), None) is not None:
        raise ValueError(f"{target} is not empty; name a new folder, or an empty one")
    return target


def write_folder(
    target: Path,
    weights: Weights,
    module: nn.Module | None,
    dtype: torch.dtype,
    *,
    came_from: Path | None = None,
    tokenizer: Path | None = None,
    tell: Tell = lambda done, whole: None,
    most: int | str = MOST,
) -> int:
    """Write a `new_folder`; returns the number of its files of weights, which have at most so many
    bytes each. The `module` may be on the meta device; without one, weights keep their names. Of
    one of Hugging Face's, `came_from` is the folder that it was made of, if any, and `tokenizer`
    that of its tokenizer. Raises ValueError, before anything is written, for weights that are not
    the module's, and for a disk without room; OSError for one that refuses."""
    outgoing = Outgoing(weights.shapes, weights.groups, module, dtype)
    empty = weights.empty
    made = [outgoing.made({name: empty[name] for name in group}) for group in outgoing.groups]
    shards = Shards([*made, outgoing.buffers()], most)
    _check_room(target, shards.nbytes + BESIDE)

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        return outgoing.made(weights.read(names))

    with _placing(target) as part, brought(part):
        reads = [partial(read, group) for group in outgoing.groups]
        shards.write(part, [*reads, outgoing.buffers], lambda n: tell(n, shards.nbytes))
        if outgoing.source is not None:
            hf_folder.describe(outgoing.source, came_from, part, str(dtype).removeprefix("torch."))
            if tokenizer is not None:
                hf_folder.copy_tokenizer(tokenizer, part)
    return shards.files


def _check_room(target: Path, needed: int) -> None:
    """Raise ValueError where the disk has less."""
    there = next(path for path in target.parents if path.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ValueError(
            f"{target} needs {needed:,} bytes ({format_bytes(needed)}), and the disk has "
            f"{free:,} free ({format_bytes(free)})"
        )


@contextmanager
def _placing(target: Path) -> Iterator[Path]:
    """The folder to write to, which is `target` at the end of the block, and nothing if the block
    fails. Raises ValueError while another process writes there, and OSError."""
    part = target.with_name(f".{target.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(part, flags=FOLDER)
    if lock is None:
        raise ValueError(
            f"another process exports to {target}; wait for it, or name another folder"
        )
    with lock:
        try:
            for left in part.iterdir():  # of an export that was killed
                left.unlink() if left.is_file() else shutil.rmtree(left)
            yield part
            for file in (path for path in part.rglob("*") if path.is_file()):
                flush(file)
            flush(part)
            part.rename(target)
            flush(target.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
