"""State of a torch optimizer by the names of the parameters, in checkpoints that others continue.

Tensors are labelled as the optimizer calls them: ``exp_avg/NAME``, ``momentum_buffer/NAME``. Beside
them are, for each parameter, the numbers of its state (its updates) and the settings of its group,
since stages need not have equal groups. Moments that Adam does not have yet are zeros, for methods
that look for them in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from workbench.runtime.checkpoint import KINDS
from workbench.runtime.distributed_checkpoint import Loaded

Parameters = Mapping[int, Mapping[str, Tensor]]
"""unit -> name in the model -> fp32 tensor that the optimizer updates, each once."""
HOW = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Settings of how an update is computed, which a checkpoint leaves as they are."""


def weights(parameters: Parameters) -> dict[int, dict[str, Tensor]]:
    """The weights alone, by unit and label, for `load`."""
    return {u: {f"weight/{n}": t for n, t in named.items()} for u, named in parameters.items()}


def optimizer_tensors(
    optimizer: Optimizer, parameters: Parameters
) -> tuple[dict[int, dict[str, Tensor]], dict[str, Any]]:
    """Weights and state by unit and label, and numbers by name, for `save`."""
    tensors, numbers = weights(parameters), {}
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for unit, name, parameter in _each(parameters):
        state, rest = optimizer.state.get(parameter, {}), {}
        if not state and isinstance(optimizer, Adam | AdamW):
            tensors[unit] |= {f"{k}/{name}": torch.zeros(parameter.shape) for k in KINDS[1:]}
        for key, value in state.items():
            if isinstance(value, Tensor) and key != "step" and (value.dim() or not parameter.dim()):
                tensors[unit][f"{key}/{name}"] = value
            else:
                rest[key] = _number(value)
        group = {k: _number(v) for k, v in groups.get(parameter, {}).items() if k not in HOW}
        kind = type(optimizer).__name__
        numbers[name] = {"optimizer": kind, "group": group, "state": rest if state else None}
    return tensors, numbers


def restore_optimizer(optimizer: Optimizer, parameters: Parameters, loaded: Loaded) -> None:
    """Take up state and settings that were loaded beside the weights; settings stay where none were
    saved, as by methods of ours, which have AdamW. Raises ValueError where another optimizer or
    other groups were saved."""
    saved, names = loaded.saved, {tensor: name for _, name, tensor in _each(parameters)}
    step = float(saved.manifest.updates_done)
    ours = {"optimizer": AdamW.__name__, "group": {}, "state": {"step": step}}
    kept: dict[str, dict[str, Any]] = {}
    for label, tensor in loaded.tensors.items():
        key, _, name = label.partition("/")
        kept.setdefault(name, {})[key] = tensor
    told = {**optimizer.state_dict(), "state": {}}
    here = type(optimizer).__name__
    for group, packed in zip(optimizer.param_groups, told["param_groups"], strict=True):
        settings = None
        for parameter, number in zip(group["params"], packed["params"], strict=True):
            name = names[parameter]
            found = loaded.numbers.get(name, ours)
            there = found["optimizer"]
            if here != there or settings not in (None, found["group"]):
                with_ = f"optimizer {there}, this run has {here}"
                if here == there:
                    with_ = f"{found['group']} for {name}, this run has {settings}"
                raise ValueError(
                    f"the checkpoint {saved.path} was made with {with_}: it would not be the same "
                    "training"
                )
            settings = found["group"]
            if found["state"] is not None:
                told["state"][number] = found["state"] | kept.get(name, {})
        for key, value in (settings or {}).items():
            now = packed.get(key)
            packed[key] = tuple(value) if isinstance(value, list) else value
            if isinstance(now, Tensor):
                packed[key] = torch.full_like(now, value)
    optimizer.load_state_dict(told)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _each(parameters: Parameters) -> list[tuple[int, str, Tensor]]:
    return [(u, n, tensor) for u, named in parameters.items() for n, tensor in named.items()]
