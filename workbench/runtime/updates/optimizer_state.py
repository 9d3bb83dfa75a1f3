"""State of a torch optimizer by the names of the parameters, in checkpoints that others continue.

Tensors are labelled as the optimizer calls them: ``exp_avg/NAME``, ``momentum_buffer/NAME``. Beside
them are, for each parameter, the numbers of its state (its updates) and the settings of its group,
since stages need not have equal groups. Moments that Adam does not have yet are zeros, for methods
that look for them in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from workbench.runtime.checkpoint.checkpoint import KINDS
from workbench.runtime.checkpoint.distributed_checkpoint import Loaded

Parameters = Mapping[int, Mapping[str, Tensor]]
"""unit -> name in the model -> fp32 tensor that the optimizer updates, each once."""
HOW = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Settings of how an update is computed, which a checkpoint leaves as they are."""


def weights(parameters: Parameters) -> dict[int, dict[str, Tensor]]:
    """The weights alone, by unit and label, for `load`."""
    return {u: {f"weight/{n}": t for n, t in named.items()} for u, named in parameters.items()}


def optimizer_tensors(
    optimizers: Sequence[Optimizer], parameters: Parameters
) -> tuple[dict[int, dict[str, Tensor]], dict[str, Any]]:
    """Weights and state by unit and label, and numbers by name, for `save`; parameters of several
    optimizers, each of one, or of none."""
    tensors, numbers = weights(parameters), {}
    groups = {
        p: (o, group) for o in optimizers for group in o.param_groups for p in group["params"]
    }
    for unit, name, parameter in _each(parameters):
        optimizer, group = groups.get(parameter, (optimizers[0], {}))
        state, rest = optimizer.state.get(parameter, {}), {}
        if not state and isinstance(optimizer, Adam | AdamW):
            tensors[unit] |= {f"{k}/{name}": torch.zeros(parameter.shape) for k in KINDS[1:]}
        for key, value in state.items():
            if isinstance(value, Tensor) and key != "step" and (value.dim() or not parameter.dim()):
                tensors[unit][f"{key}/{name}"] = value
            else:
                rest[key] = _number(value)
        group = {k: _number(v) for k, v in group.items() if k not in HOW}
        kind = type(optimizer).__name__
        numbers[name] = {"optimizer": kind, "group": group, "state": rest if state else None}
    return tensors, numbers


def restore_optimizer(optimizer: Optimizer, parameters: Parameters, loaded: Loaded) -> None:
    """Take up state and settings beside the weights that were loaded; methods of ours save AdamW's
    moments and no settings. Raises ValueError where another optimizer, or another grouping of the
    parameters, was saved."""
    here, names = type(optimizer).__name__, {t: name for _, name, t in _each(parameters)}
    step = float(loaded.saved.manifest.updates_done)
    ours = {"optimizer": AdamW.__name__, "group": {}, "state": {"step": step}}
    told = {**optimizer.state_dict(), "state": {}}
    for group, packed in zip(optimizer.param_groups, told["param_groups"], strict=True):
        found = [loaded.numbers.get(names[parameter], ours) for parameter in group["params"]]
        if not found:
            continue
        for parameter, number, each in zip(group["params"], packed["params"], found, strict=True):
            for kind, has in (("optimizer", here), ("group", found[0]["group"])):
                if each[kind] != has:
                    raise ValueError(
                        f"the checkpoint {loaded.saved.path} was made with {kind} {each[kind]} of "
                        f"{names[parameter]}, this run has {has}: it would not be the same training"
                    )
            if each["state"] is not None:
                tensors = loaded.tensors.get(names[parameter], {})
                told["state"][number] = each["state"] | tensors
        packed.update({k: _like(packed.get(k), v) for k, v in found[0]["group"].items()})
    optimizer.load_state_dict(told)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _like(now: Any, value: Any) -> Any:
    if isinstance(now, Tensor):
        return torch.full_like(now, value)
    return tuple(value) if isinstance(value, list) else value


def _each(parameters: Parameters) -> list[tuple[int, str, Tensor]]:
    return [(u, n, tensor) for u, named in parameters.items() for n, tensor in named.items()]
