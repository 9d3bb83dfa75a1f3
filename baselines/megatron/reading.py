"""Weights of a checkpoint of megatron-core's training on one device, whose file is mapped.

The file is a pickle, of which nothing is made but tensors and plain data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.megatron.names import our_layout, their_name
from workbench.model.base import LayeredModel
from workbench.model.gpt import GPT
from workbench.model.weights.outgoing import Weights
from workbench.runtime.checkpoint.manifest import Saved, unreadable

STATE_FILE = "state.pt"


def weights_of(saved: Saved, model: LayeredModel) -> Weights:
    """The fp32 weights, a unit's together. Raises OSError where the file is damaged or holds
    anything else."""
    assert isinstance(model, GPT), "megatron-core trains no other here"
    saved.check([STATE_FILE])
    try:
        state = torch.load(
            saved.path / STATE_FILE, map_location="cpu", weights_only=True, mmap=True
        )
        masters = state["masters"]
    except Exception as error:  # whatever torch raises of a file
        raise unreadable(saved.path, str(error).splitlines()[0]) from error

    def read(unit: int, local: str) -> Tensor:
        return our_layout(local, masters[their_name(model, unit, local)], model.spec).clone()

    return Weights.of_units(model, read)
