"""Checkpoints that any method can read: weights and moments by the model's own parameter names.

A checkpoint is a folder with one safetensors file per unit and a manifest; it is written under a
temporary name and renamed into place, so a run killed while saving loses nothing. It says nothing
of windows, slots or tiers: what was saved under one plan resumes under another.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from workbench.model.base import LayeredModel
from workbench.runtime.memory import Memory
from workbench.runtime.storage import Flat

KINDS = ("weight", "exp_avg", "exp_avg_sq")
KEEP = 2
"""The newest checkpoint, and the one before in case its reader finds a bad disk block."""


def save(
    folder: Path, model: LayeredModel, memory: Memory, flats: list[Flat], manifest: dict[str, Any]
) -> Path:
    """Write ``folder/step-N`` where N is ``manifest["next_step"]``. All lanes must be drained."""
    target = folder / f"step-{manifest['next_step']:08d}"
    temporary = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for unit, flat in enumerate(flats):
            if memory.on_disk(unit):
                memory.read_states(unit)
            states = memory.states(unit)
            slabs = (states.master, states.exp_avg, states.exp_avg_sq)
            tensors = {
                f"{kind}/{model.state_name(unit, local)}": view.cpu().contiguous()
                for kind, slab in zip(KINDS, slabs, strict=True)
                for local, view in flat.views(slab)
            }
            save_file(tensors, temporary / f"unit-{unit:05d}.safetensors")
        (temporary / "manifest.json").write_text(json.dumps(manifest) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in sorted(folder.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint of a run and its manifest, if there is any."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return path, json.loads((path / "manifest.json").read_text())
        except (OSError, json.JSONDecodeError):
            continue
    return None


def restore(path: Path, model: LayeredModel, memory: Memory, flats: list[Flat]) -> None:
    """Read weights and moments into this run's memory, whatever its layout.

    Raises ValueError when the checkpoint is of another model.
    """
    for unit, flat in enumerate(flats):
        states = memory.states(unit)
        slabs = (states.master, states.exp_avg, states.exp_avg_sq)
        with safe_open(path / f"unit-{unit:05d}.safetensors", framework="pt") as file:
            names = set(file.keys())
            for kind, slab in zip(KINDS, slabs, strict=True):
                for local, view in flat.views(slab):
                    label = f"{kind}/{model.state_name(unit, local)}"
                    if label not in names:
                        raise ValueError(f"the checkpoint {path} has no {label}")
                    saved = file.get_tensor(label)
                    if saved.shape != view.shape:
                        raise ValueError(
                            f"{label} in the checkpoint {path} has shape {tuple(saved.shape)}, "
                            f"the model's is {tuple(view.shape)}"
                        )
                    view.copy_(saved)
        if states.working is not None:
            states.working.copy_(states.master)
        if memory.on_disk(unit):
            memory.write_states(unit)


def parameters(model: LayeredModel, memory: Memory, flats: list[Flat]) -> dict[str, torch.Tensor]:
    """Copies of all fp32 weights by their names in the whole model's `state_dict`."""
    result = {}
    for unit, flat in enumerate(flats):
        if memory.on_disk(unit):
            memory.read_states(unit)
        for local, view in flat.views(memory.states(unit).master):
            result[model.state_name(unit, local)] = view.cpu().clone()
    return result
