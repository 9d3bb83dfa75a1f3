"""A folder of random weights for a configuration of Hugging Face's, for trials without a download.

Units are drawn one after another, as a run without weights draws them, so two of them are in memory
at a time, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.hf_config import spec_from_config
from workbench.model.hf_layers import Decoder
from workbench.model.weights.folder import Tell, new_folder, write_folder
from workbench.model.weights.outgoing import Weights
from workbench.model.weights.shards import MOST


class Written(NamedTuple):
    """Weights in a folder."""

    parameters: int
    files: int


def write_random(
    config: str | Path, out: str | Path, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16,
    tell: Tell = lambda done, whole: None, most: int | str = MOST, alike: bool = False,
) -> Written:  # fmt: skip
    """Write random weights of a configuration of a decoder, and the configuration, into a new
    folder, in files of at most so many bytes. Units of a kind in a row are equal where they are to
    be `alike`, which takes a fraction of the time. Raises ValueError for a configuration that is
    none, a folder that is not empty and a disk without room, and OSError for one that refuses."""
    target = new_folder(out)
    spec = replace(spec_from_config(config), pretrained="")
    model = make_model(spec, seed)
    if not isinstance(model, Decoder):
        raise ValueError(f"{config} is of no decoder that is cut into layers")
    weights = _drawn(model, seed, alike)
    files = write_folder(target, weights, model.source, dtype, tell=tell, most=most)
    return Written(weights.parameters, files)


def _drawn(model: LayeredModel, seed: int, alike: bool) -> Weights:
    """The weights of all units, each drawn when it is read."""
    last: dict[str, nn.Module] = {}

    def drawn(unit: int) -> nn.Module:
        kind = model.kind(unit)
        if not (alike and kind in last):
            last.clear()
            last[kind] = model.build(unit, seed=seed)
        return last[kind]

    units = [
        {model.state_name(unit, local): (unit, local) for local in model.shapes(unit)}
        for unit in range(model.num_units)
    ]
    places = {name: place for unit in units for name, place in unit.items()}

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        built = {unit: drawn(unit) for unit in {places[name][0] for name in names}}
        found = {name: built[unit].get_parameter(n) for name in names for unit, n in [places[name]]}
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    return Weights(
        shapes={name: [*model.shapes(u)[local]] for name, (u, local) in places.items()},
        parameters=model.parameters_count(), groups=[[*unit] for unit in units if unit], read=read,
    )  # fmt: skip
