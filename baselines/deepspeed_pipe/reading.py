"""Weights of a checkpoint that DeepSpeed's pipeline has written.

A layer lies in a file of its own, in fp32 as it is. In bf16 the fp32 masters are in the optimizer's
files: a stage's parameters one after another, of which each replica has a piece, and says by names
where they are. Files are mapped, and nothing of a pickle runs (zero_reading.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baselines.zero_reading import plain_data
from workbench.model.base import LayeredModel
from workbench.model.weights.outgoing import Weights
from workbench.runtime.checkpoint.manifest import Saved, unreadable

Place = tuple[int, str]
"""Unit and local name of a weight."""


def weights_of(saved: Saved, model: LayeredModel) -> Weights:
    """The fp32 weights, a unit's together. Raises OSError where a file is damaged or holds anything
    else than tensors and plain data."""
    saved.check(saved.manifest.files)
    layers = _in_order(saved.path.glob("layer_*-model_states.pt"))
    if len(layers) != model.num_units:
        raise unreadable(saved.path, f"it has {len(layers)} layers, the model {model.num_units}")
    parts = _in_order(saved.path.glob("bf16_zero_pp_rank_*_optim_states.pt"))
    masters = _masters(saved, model, layers, parts)

    def read(unit: int, local: str) -> Tensor:
        if parts:
            return torch.cat(masters[unit, local]).view(model.shapes(unit)[local])
        return _load(saved, layers[unit])[f"module.{local}"].clone()

    return Weights.of_units(model, read)


def _masters(
    saved: Saved, model: LayeredModel, layers: list[Path], parts: list[Path]
) -> dict[Place, list[Tensor]]:
    """Weight -> its pieces [n] in order; of a weight in two stages those of the first stage."""
    between = [own for of, own in model.tied().items() if of[0] != own[0]]  # stage.py numbers them
    places = {f"tied_modules.shared {number}.weight": own for number, own in enumerate(between)}
    for unit, path in enumerate(layers):
        named = {local: (unit, local) for local in model.shapes(unit)}
        places |= {f"{_numbers(path)[0]}.module.{local}": at for local, at in named.items()}
    stages: dict[Place, int] = {}
    found: dict[Place, list[Tensor]] = {}
    for path in sorted(parts, key=lambda path: _numbers(path)[::-1]):
        state, stage = _load(saved, path)["optimizer_state_dict"], _numbers(path)[-1]
        flats = state["single_partition_of_fp32_groups"]
        for flat, slices in zip(flats, state["param_slice_mappings"], strict=True):
            for name, at in slices.items():
                if name in places and stages.setdefault(places[name], stage) == stage:
                    piece = flat[at.start : at.start + at.numel]
                    found.setdefault(places[name], []).append(piece)
    return found


def _load(saved: Saved, path: Path) -> dict[str, Any]:
    try:
        with plain_data():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever torch raises of a file
        raise unreadable(saved.path, f"{path.name}: {str(error).splitlines()[0]}") from error


def _in_order(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=_numbers)


def _numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path.name)]
