"""Everyone's initial weights, in a model that DeepSpeed's ZeRO will train.

With bf16 its fp32 master weights are set to the fp32 initial weights, which DeepSpeed alone would
take from the rounded ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines.common import named_units, unit_by_unit
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.whole import Whole
from workbench.runtime.memory.storage import DTYPES


def build(model: LayeredModel, spec: RunSpec, shard_by: dict[str, Any] | None) -> Whole:
    """The whole model with everyone's initial weights; with a ZeRO-3 configuration each unit moves
    to where it is offloaded as soon as it is made."""
    dtype = DTYPES[spec.dtype]

    def shard(unit: int, module: torch.nn.Module) -> None:
        if shard_by is not None:
            import deepspeed

            deepspeed.zero.Init(module=module, config_dict_or_path=shard_by, dtype=dtype)

    return unit_by_unit(model, spec, shard, dtype)


def set_masters(model: LayeredModel, whole: Whole, seed: int) -> None:
    """Give the fp32 master weights the digits that bf16 had no room for."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

    built, exact = None, None
    for unit, name, parameter in named_units(whole):
        if unit != built:
            built, exact = unit, model.build(unit, seed=seed)
        value = exact.get_parameter(name).detach()
        if hasattr(parameter, "ds_id"):  # ZeRO-3's, of which each rank has a part
            safe_set_local_fp32_param(parameter, _part(value, parameter.ds_tensor.numel()))
        else:
            safe_set_full_fp32_param(parameter, value)


def _part(value: Tensor, elements: int) -> Tensor:
    """This rank's part of a parameter, [elements]; the last ones end in padding."""
    part = value.flatten()[dist.get_rank() * elements :][:elements]
    return torch.nn.functional.pad(part, (0, elements - len(part)))
