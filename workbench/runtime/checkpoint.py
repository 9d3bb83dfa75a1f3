"""Checkpoints that any method can read: weights and moments by the model's own parameter names.

A checkpoint is a folder with one safetensors file per unit and a manifest that knows their sizes
and checksums: what a disk has lost or changed since is not taken for weights.
It is written under a temporary name, brought to the disk, and renamed into place, so a run killed
while saving, or one whose disk is full, keeps the checkpoints it had. It says nothing of windows,
slots or tiers: what was saved under one plan resumes under another.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.runtime.memory import Memory
from workbench.runtime.storage import Flat, States

KINDS = ("weight", "exp_avg", "exp_avg_sq")
KEEP = 2
"""The newest checkpoint, and the one before in case its reader finds a bad disk block."""
READERS, BLOCK = 8, 1 << 24
"""Threads that make checksums, and bytes that each looks at at once."""
MANIFEST, STATISTICS = "manifest.json", "statistics.safetensors"


class Holder(Protocol):
    """Who has a run's weights and moments, wherever they lie."""

    def write(self, folder: Path) -> dict[str, int]:
        """Make the folder, and in it a file for every unit; returns the bytes of each by its name.
        Raises OSError or SafetensorError if the disk refuses."""
        ...

    def restore(self, folder: Path) -> None:
        """Take up what the files say. Raises as `reader` does."""
        ...


class MemoryHolder:
    """A runtime's memory, with its layouts of the units."""

    def __init__(self, model: LayeredModel, memory: Memory, flats: list[Flat]) -> None:
        self._model, self._memory, self._flats = model, memory, flats

    def write(self, folder: Path) -> dict[str, int]:
        """As `Holder.write`. All lanes must be drained."""
        folder.mkdir(parents=True)
        return dict(
            write_unit(folder, unit, self._tensors(unit, flat))
            for unit, flat in enumerate(self._flats)
        )

    def restore(self, folder: Path) -> None:
        """As `Holder.restore`."""
        for unit, flat in enumerate(self._flats):
            states = self._memory.states(unit)
            narrow = states.rest is not None
            master = torch.empty(flat.numel) if narrow else states.weights
            with reader(folder, unit) as read:
                for label, view in self._views(unit, flat, (master, *_moments(states))):
                    read(label, view)
            if narrow:
                states.set_master(master)
            if self._memory.on_disk(unit):
                self._memory.write_states(unit)

    def _tensors(self, unit: int, flat: Flat) -> Iterator[tuple[str, Tensor]]:
        if self._memory.on_disk(unit):
            self._memory.read_states(unit)
        states = self._memory.states(unit)
        return self._views(unit, flat, (states.master(), *_moments(states)))

    def _views(
        self, unit: int, flat: Flat, slabs: tuple[Tensor, ...]
    ) -> Iterator[tuple[str, Tensor]]:
        for kind, slab in zip(KINDS, slabs, strict=True):
            for local, view in flat.views(slab):
                yield label_of(kind, self._model, unit, local), view


def _moments(states: States) -> tuple[Tensor, Tensor]:
    return states.exp_avg, states.exp_avg_sq


def save(
    folder: Path,
    holder: Holder,
    manifest: dict[str, Any],
    statistics: dict[str, Tensor] | None = None,
) -> Path:
    """Write ``folder/step-N`` where N is ``manifest["next_step"]``.
    `statistics` are running ones, by their names in the whole model's `state_dict`.

    Raises OSError, one sentence, if the disk refuses; older checkpoints stay.
    """
    target = folder / f"step-{manifest['next_step']:08d}"
    temporary = folder / f".{target.name}"
    for left in folder.glob(".step-*"):  # of a process that was killed while it saved
        shutil.rmtree(left, ignore_errors=True)
    try:
        files = holder.write(temporary)
        if statistics:
            save_file(statistics, temporary / STATISTICS)
            files[STATISTICS] = (temporary / STATISTICS).stat().st_size
        checksums = _checksums(temporary, files)
        text = json.dumps({**manifest, "files": files, "crc32": checksums}) + "\n"
        (temporary / MANIFEST).write_text(text)
        for name in [*files, MANIFEST, ""]:
            _flush(temporary / name)
        shutil.rmtree(target, ignore_errors=True)  # torn, or this run would have begun after it
        temporary.rename(target)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(f"the checkpoint {target.name} was not written: {error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    kept = [path for path, _ in whole(folder)][:KEEP]
    for old in folder.glob("step-*"):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)
    return target


def label_of(kind: str, model: LayeredModel, unit: int, local: str) -> str:
    """What a tensor is called in a file: one of `KINDS`, and its parameter."""
    return f"{kind}/{model.state_name(unit, local)}"


def write_unit(folder: Path, unit: int, tensors: Iterable[tuple[str, Tensor]]) -> tuple[str, int]:
    """A unit's file, from tensors by their labels; returns its name and bytes."""
    path = folder / _file_of(unit)
    save_file({label: tensor.cpu().contiguous() for label, tensor in tensors}, path)
    return path.name, path.stat().st_size


@contextmanager
def reader(folder: Path, unit: int) -> Iterator[Callable[[str, Tensor], None]]:
    """What copies a unit's tensor, by its label, into another one. Of a unit that owns nothing the
    file may be lacking.

    Raises ValueError when the checkpoint is of another model, OSError when it cannot be read.
    """
    path = folder / _file_of(unit)
    _check(path)
    if not path.exists():

        def lacking(label: str, into: Tensor) -> None:
            raise OSError(f"the checkpoint {folder.name} cannot be read: it has no {path.name}")

        yield lacking
        return
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())

            def read(label: str, into: Tensor) -> None:
                if label not in names:
                    raise ValueError(f"the checkpoint {folder} has no {label}")
                saved = file.get_tensor(label)
                if saved.shape != into.shape:
                    raise ValueError(
                        f"{label} in the checkpoint {folder} has shape {tuple(saved.shape)}, "
                        f"the model's is {tuple(into.shape)}"
                    )
                into.copy_(saved)

            yield read
    except (OSError, SafetensorError) as error:
        raise OSError(f"the checkpoint {folder.name} cannot be read: {error}") from error


def _file_of(unit: int) -> str:
    return f"unit-{unit:05d}.safetensors"


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksums(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Of files that were written just now, and are still in memory."""
    names = list(names)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(lambda name: _checksum(folder / name), names), strict=True))


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return found


def _check(path: Path) -> None:
    """Raise OSError where a file of a checkpoint is not what was written, as far as is known."""
    manifest = path.parent / MANIFEST
    known = json.loads(manifest.read_text()).get("crc32", {}) if manifest.exists() else {}
    if path.name in known and path.exists() and _checksum(path) != known[path.name]:
        raise OSError(
            f"the checkpoint {path.parent.name} cannot be read: {path.name} is damaged, its "
            "checksum is not the one that was written"
        )


def whole(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The checkpoints of a run that have all their bytes, newest first, with their manifests."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            sizes = {name: (path / name).stat().st_size for name in manifest["files"]}
        except (OSError, ValueError, KeyError):
            continue
        if sizes == manifest["files"]:
            yield path, manifest


def statistics(path: Path) -> dict[str, Tensor]:
    """The running statistics of a checkpoint; none where its model has none. Raises OSError where
    they cannot be read."""
    file = path / STATISTICS
    _check(file)
    try:
        return load_file(file) if file.exists() else {}
    except SafetensorError as error:
        raise OSError(f"the checkpoint {path.name} cannot be read: {error}") from error


def parameters(model: LayeredModel, memory: Memory, flats: list[Flat]) -> dict[str, Tensor]:
    """Copies of all fp32 weights by their names in the whole model's `state_dict`."""
    result = {}
    for unit, flat in enumerate(flats):
        if memory.on_disk(unit):
            memory.read_states(unit)
        for local, view in flat.views(memory.states(unit).master()):
            result[model.state_name(unit, local)] = view.cpu().clone()
    return result
