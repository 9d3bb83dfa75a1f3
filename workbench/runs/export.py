"""Weights of a checkpoint in a folder that others use: transformers, servers, `load_state_dict`.

A decoder of Hugging Face's becomes a folder that its `from_pretrained` takes as if it had written
it: configuration, tokenizer, and files of weights by the names and in the layout on disk. Of any
other model a folder has the tensors alone, by the names in its `state_dict`. All is written beside
that folder under another name, which it loses in the end: of an export that was killed nothing is
there that looks whole, and the next one removes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.core import methods
from workbench.core.bytesize import format_bytes
from workbench.core.files import FOLDER, FileLock, flush
from workbench.core.model_spec import ENGINE
from workbench.core.paths import user_path
from workbench.core.sources import config_file
from workbench.model import hf_folder, make_model
from workbench.model.families import module_of
from workbench.model.hf_layers import Decoder
from workbench.model.objective import PREFIX
from workbench.model.tokenizer_file import is_folder
from workbench.model.weights.outgoing import Outgoing
from workbench.model.weights.shards import MOST, Shards
from workbench.model.weights.stored import find
from workbench.model.whole import make_whole
from workbench.runs.kept import Kept, find_kept
from workbench.runs.store import Store
from workbench.runtime.checkpoint.weights import Weights, weights_of
from workbench.runtime.memory.storage import DTYPES

AUTO, META = "auto", "meta"
BESIDE = 64 << 20
"""Bytes that all but the tensors may need."""

Tell = Callable[[int, int], None]
"""Hears how many bytes are written, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Weights in a folder."""

    folder: Path
    step: int
    """Steps that were done when they were kept."""
    parameters: int
    """Elements of all weights, tied ones counted once."""
    files: int
    dtype: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = f"{self.files} file{'s' * (self.files != 1)}"
        return (
            f"exported: {self.parameters:,} parameters of step {self.step} to {self.folder} "
            f"({count}, {self.dtype})"
        )


def export(
    run: str | Path,
    folder: str | Path,
    store: Store,
    *,
    step: int | None = None,
    dtype: str = AUTO,
    tell: Tell = lambda written, whole: None,
    most: int | str = MOST,
) -> Exported:
    """Write the weights of a run, by its key or folder, or of a checkpoint, into a new folder;
    `most` are the bytes of a file. Raises ValueError for what cannot be exported, and OSError for a
    damaged checkpoint or a disk that refuses; nothing is written then."""
    if dtype not in (AUTO, *DTYPES):
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join((AUTO, *DTYPES))}")
    target = _target(folder)
    kept = find_kept(run, store, step)
    word = _came_in(kept) if dtype == AUTO else dtype
    weights, module = _weights_of(kept), _module_of(kept)
    outgoing = Outgoing(weights.shapes, weights.groups, module, DTYPES[word])
    empty = {name: torch.empty(shape, device="meta") for name, shape in weights.shapes.items()}
    made = [outgoing.made({name: empty[name] for name in group}) for group in outgoing.groups]
    shards = Shards([*made, outgoing.buffers()], most)
    _check_room(target, shards.nbytes + BESIDE)

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        return outgoing.made(weights.read(names))

    with _placing(target) as part:
        reads = [partial(read, group) for group in outgoing.groups]
        shards.write(part, [*reads, outgoing.buffers], lambda n: tell(n, shards.nbytes))
        if outgoing.source is not None:
            _describe(kept, outgoing.source, part, word)
    return Exported(
        folder=target, step=kept.saved.manifest.next_step, parameters=weights.parameters,
        files=shards.files, dtype=word, notes=(*kept.notes,),
    )  # fmt: skip


def _came_in(kept: Kept) -> str:
    """Type of the weights that the run began from: fp32 of those that were made for it. Raises
    ValueError where those of a path are gone."""
    began = kept.spec.model.pretrained if kept.spec else ""
    try:
        came = find(began).dtypes if began else "fp32"
    except ValueError as error:
        raise ValueError(f"{error}; the run began from them, so give a dtype to export") from None
    return came if came in DTYPES else "fp32"


def _weights_of(kept: Kept) -> Weights:
    """Those of the checkpoint. Raises ValueError for a library's, which nobody reads without it."""
    if not kept.form:
        family = str(kept.saved.manifest.continues.get("model", {}).get("family", ""))
        return weights_of(kept.saved, PREFIX if family.startswith(ENGINE) else "")
    if kept.spec is None:
        raise ValueError(
            f"the checkpoint {kept.saved.path} is of {kept.form}'s own files, which its run tells "
            "how to read; name the run"
        )
    read = getattr(methods.load(kept.spec.method), "weights_of", None)
    if read is None:
        raise ValueError(
            f"{kept.spec.method} keeps checkpoints in {kept.form}'s own files, which cannot be "
            "exported; train under a method whose checkpoints go on under others"
        )
    return read(kept.saved, make_model(kept.model))


def _module_of(kept: Kept) -> nn.Module | None:
    """The trained model as one module, mostly on the meta device; None of a module in a user's own
    loop or script, and of one whose function is not there any more, which is noted. Raises
    ValueError where any other cannot be made."""
    if kept.model is None:
        return None
    seed = kept.saved.manifest.continues["seed"]
    if kept.model.custom:
        try:
            return module_of(kept.model, seed)
        except ValueError as error:
            kept.notes.append(f"without what the checkpoint alone does not know: {error}")
            return None
    if kept.model.decomposed:
        with torch.device(META):
            return module_of(kept.model, seed)
    model = make_model(kept.spec.model if kept.spec else kept.model, seed)
    return model.source if isinstance(model, Decoder) else make_whole(model, seed=seed, device=META)


def _describe(kept: Kept, source: nn.Module, folder: Path, word: str) -> None:
    """Write what stands beside the weights of a model of Hugging Face's."""
    came_from = config_file(kept.model).parent
    hf_folder.describe(source, came_from, folder, str(DTYPES[word]).removeprefix("torch."))
    named = kept.spec.tokenizer if kept.spec else ""
    hf_folder.copy_tokenizer(user_path(named) if is_folder(named) else came_from, folder)


def _target(folder: str | Path) -> Path:
    """The folder to write. Raises ValueError for one that is not empty, and for what is none."""
    target = user_path(folder).resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; name a new folder")
    if target.is_dir() and next(target.iterdir(), None) is not None:
        raise ValueError(f"{target} is not empty; name a new folder, or an empty one")
    return target


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
                file.chmod(part.stat().st_mode & 0o666)  # safetensors lets its user alone read it
                flush(file)
            flush(part)
            part.rename(target)
            flush(target.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
