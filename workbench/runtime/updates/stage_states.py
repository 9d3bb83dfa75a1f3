"""Weights and optimizers' states of a process's stages, in checkpoints that any method continues.

A unit's file has ``weight/NAME``, the optimizer's tensors as the optimizer calls them, such as
``exp_avg/NAME``, and ``step/NAME``: stages that update by themselves may have made fewer updates
than there were steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.checkpoint import KINDS, check_fits, write_unit
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.checkpoint.together import Together
from workbench.runtime.updates.optimizer_state import Parameters, optimizer_tensors
from workbench.runtime.updates.sgd_tf import VELOCITY, SgdTf

STEP = "step"


class StageStates:
    """Has some units, and their optimizers. A `Holder`."""

    def __init__(
        self, stages: Sequence[tuple[Parameters, Optimizer]], further: Sequence[str] = ()
    ) -> None:
        """`stages`: the parameters that are a stage's own, and who updates them. `further`: names
        of states, tensors or numbers, that optimizers have here beside those of torch."""
        self._stages, self._further = stages, further

    @torch.no_grad()
    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`."""
        if len(kinds) < len(KINDS):
            for parameters, _ in self._stages:
                write_own(folder, parameters)
            return
        for parameters, optimizer in self._stages:
            tensors, numbers = optimizer_tensors([optimizer], parameters)
            for unit, named in parameters.items():
                for name in named:
                    told = {STEP: 0} | (numbers[name]["state"] or {})
                    for key in {STEP, *self._further} & told.keys():
                        number = torch.tensor(told[key], dtype=torch.float64)
                        tensors[unit][f"{key}/{name}"] = number
                write_unit(folder, unit, tensors[unit].items())

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`. Raises ValueError where the states are another optimizer's."""
        for parameters, optimizer in self._stages:
            groups = {p: group for group in optimizer.param_groups for p in group["params"]}
            for unit, named in parameters.items():
                found = checkpoint.tensors_with(saved, unit, [f"weight/{name}" for name in named])
                for name, parameter in named.items():
                    label = f"weight/{name}"
                    check_fits(saved.path, label, found.get(label), parameter)
                    parameter.copy_(found[label])
                    if parameter in groups:
                        state = _state(optimizer, groups[parameter], parameter, name, found, saved)
                        for key in (k for k in self._further if f"{k}/{name}" in found):
                            state[key] = found[f"{key}/{name}"].to(parameter.device, copy=True)
                        optimizer.state[parameter] = state


@torch.no_grad()
def write_own(folder: Path, parameters: Parameters) -> None:
    """Units' files of weights alone, of the units that own some."""
    for unit, named in parameters.items():
        if named:
            write_unit(folder, unit, [(f"weight/{name}", own) for name, own in named.items()])


class StatesTogether(Together, StageStates):
    """Has the units of one rank, of which every rank has some."""

    def __init__(
        self, stages: Sequence[tuple[Parameters, Optimizer]], over: dist.ProcessGroup, lead: int,
        further: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`lead`: the rank of the group `over` that keeps the run's history."""
        super().__init__(stages, further)
        self.over, self.lead = over, lead


def _state(
    optimizer: Optimizer, group: dict, parameter: Tensor, name: str, found: dict[str, Tensor],
    saved: Saved,
) -> dict[str, Tensor]:  # fmt: skip
    """The state of a parameter, from a unit's tensors by their labels."""
    done = float(found.get(f"{STEP}/{name}", saved.manifest.updates_done))
    kinds, state = state_kinds(optimizer, group, parameter), {}
    if not done and not all(f"{kind}/{name}" in found for kind in kinds):
        return state  # nothing was updated, by another method
    for kind in kinds:
        if f"{kind}/{name}" not in found:
            raise ValueError(
                f"the checkpoint {saved.path} has no {kind}/{name}, which "
                f"{type(optimizer).__name__} needs: it was made with another optimizer; begin "
                "without it, or train on with that one"
            )
        state[kind] = found[f"{kind}/{name}"].to(parameter.device, copy=True)
    if isinstance(optimizer, Adam | AdamW | Adafactor):
        there = group.get("fused") or group.get("capturable")
        state[STEP] = torch.tensor(done, device=parameter.device if there else "cpu")
    return state


def state_kinds(optimizer: Optimizer, group: dict, parameter: Tensor) -> tuple[str, ...]:
    """Tensors that an optimizer keeps of a parameter, by its names for them. Raises ValueError for
    an optimizer whose states are unknown here."""
    if isinstance(optimizer, Adam | AdamW):
        return KINDS[1:]
    if isinstance(optimizer, SGD):
        return ("momentum_buffer",) if group["momentum"] else ()
    if isinstance(optimizer, SgdTf):
        return (VELOCITY,) if group["momentum"] else ()
    if isinstance(optimizer, Adafactor):
        return ("row_var", "col_var") if parameter.dim() > 1 else ("variance",)
    raise ValueError(f"states of {type(optimizer).__name__} are unknown: no checkpoint holds them")
