"""Checkpoints that any method can read: weights and moments by the model's own parameter names.

A checkpoint is a folder with one safetensors file per unit and a manifest that knows their sizes.
It is written under a temporary name, brought to the disk, and renamed into place, so a run killed
while saving, or one whose disk is full, keeps the checkpoints it had. It says nothing of windows,
slots or tiers: what was saved under one plan resumes under another.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from workbench.model.base import LayeredModel
from workbench.runtime.memory import Memory
from workbench.runtime.storage import Flat

KINDS = ("weight", "exp_avg", "exp_avg_sq")
KEEP = 2
"""The newest checkpoint, and the one before in case its reader finds a bad disk block."""
MANIFEST, STATISTICS = "manifest.json", "statistics.safetensors"


def save(
    folder: Path,
    model: LayeredModel,
    memory: Memory,
    flats: list[Flat],
    manifest: dict[str, Any],
    statistics: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Write ``folder/step-N`` where N is ``manifest["next_step"]``. All lanes must be drained.
    `statistics` are running ones, by their names in the whole model's `state_dict`.

    Raises OSError, one sentence, if the disk refuses; older checkpoints stay.
    """
    target = folder / f"step-{manifest['next_step']:08d}"
    temporary = folder / f".{target.name}"
    for left in folder.glob(".step-*"):  # of a process that was killed while it saved
        shutil.rmtree(left, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        files = {}
        for unit, flat in enumerate(flats):
            path = temporary / f"unit-{unit:05d}.safetensors"
            _write_unit(path, model, memory, unit, flat)
            files[path.name] = path.stat().st_size
        if statistics:
            save_file(statistics, temporary / STATISTICS)
            files[STATISTICS] = (temporary / STATISTICS).stat().st_size
        text = json.dumps({**manifest, "files": files}) + "\n"
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


def _write_unit(path: Path, model: LayeredModel, memory: Memory, unit: int, flat: Flat) -> None:
    if memory.on_disk(unit):
        memory.read_states(unit)
    states = memory.states(unit)
    slabs = (states.master(), states.exp_avg, states.exp_avg_sq)
    tensors = {
        f"{kind}/{model.state_name(unit, local)}": view.cpu().contiguous()
        for kind, slab in zip(KINDS, slabs, strict=True)
        for local, view in flat.views(slab)
    }
    save_file(tensors, path)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def restore(path: Path, model: LayeredModel, memory: Memory, flats: list[Flat]) -> None:
    """Read weights and moments into this run's memory, whatever its layout.

    Raises ValueError when the checkpoint is of another model, OSError when it cannot be read.
    """
    for unit, flat in enumerate(flats):
        try:
            _read_unit(path / f"unit-{unit:05d}.safetensors", model, memory, unit, flat)
        except (OSError, SafetensorError) as error:
            raise OSError(f"the checkpoint {path.name} cannot be read: {error}") from error
        if memory.on_disk(unit):
            memory.write_states(unit)


def statistics(path: Path) -> dict[str, torch.Tensor]:
    """The running statistics of a checkpoint; none where its model has none. Raises OSError where
    they cannot be read."""
    file = path / STATISTICS
    try:
        return load_file(file) if file.exists() else {}
    except SafetensorError as error:
        raise OSError(f"the checkpoint {path.name} cannot be read: {error}") from error


def _read_unit(path: Path, model: LayeredModel, memory: Memory, unit: int, flat: Flat) -> None:
    states = memory.states(unit)
    narrow = states.rest is not None
    master = torch.empty(flat.numel) if narrow else states.weights
    slabs = (master, states.exp_avg, states.exp_avg_sq)
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for kind, slab in zip(KINDS, slabs, strict=True):
            for local, view in flat.views(slab):
                label = f"{kind}/{model.state_name(unit, local)}"
                if label not in names:
                    raise ValueError(f"the checkpoint {path.parent} has no {label}")
                saved = file.get_tensor(label)
                if saved.shape != view.shape:
                    raise ValueError(
                        f"{label} in the checkpoint {path.parent} has shape {tuple(saved.shape)}, "
                        f"the model's is {tuple(view.shape)}"
                    )
                view.copy_(saved)
    if narrow:
        states.set_master(master)


def parameters(model: LayeredModel, memory: Memory, flats: list[Flat]) -> dict[str, torch.Tensor]:
    """Copies of all fp32 weights by their names in the whole model's `state_dict`."""
    result = {}
    for unit, flat in enumerate(flats):
        if memory.on_disk(unit):
            memory.read_states(unit)
        for local, view in flat.views(memory.states(unit).master()):
            result[model.state_name(unit, local)] = view.cpu().clone()
    return result
