"""Each process makes the module, cuts it, keeps its stage's slices, and lets go of the rest.

The processes of a host do so one after the other, each with all cores, so that a host holds one
whole module at a time. Whoever refuses the module has all of them refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from workbench.core.host import available_cores
from workbench.core.stage_map import StageMap
from workbench.methods.varuna.checkpoints import digest_of
from workbench.methods.varuna.shares import Shares
from workbench.methods.varuna.slices import Inputs, Slices
from workbench.methods.varuna.stage import Stage
from workbench.methods.varuna.weights import Held, copies
from workbench.methods.varuna.written import check_written
from workbench.model.keyed import norms_in
from workbench.runtime.optimizer_state import Parameters

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Own:
    """The part of a module that a process keeps."""

    stage: Stage
    learning: Mapping[str, bool]
    """Parameter of the stage -> whether it is trained."""
    copies: Sequence[Held]
    """Weights of the module that are in it more than once."""
    held: Parameters
    """Slice that owns a parameter -> name -> parameter of this stage."""
    digest: str
    """Hash of the module's parameters."""

    @property
    def owned(self) -> Parameters:
        """Of `held`, what this stage's slices own."""
        return {unit: own for unit, own in self.held.items() if unit in self.stage.units}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be made."""

    model: nn.Module | Callable[[], nn.Module]
    get_batch: Callable[..., Inputs]
    places: StageMap
    shares: Shares
    shared_weights: Sequence[tuple[str, str]]
    device: torch.device
    dtype: torch.dtype

    def make(self, rank: int) -> Own:
        """A rank's part; the first rank compares the slices with the module. Raises ValueError for
        a module that cannot be trained so."""
        slices = Slices(made(self.model), self.get_batch)
        self._check_norms(slices)
        if rank == 0:
            check_written(slices, self.device)
        stages = slices.stages(self.places.stages)
        units = stages[self.places.place(rank)[0]]
        found = {
            "copies": copies(slices, stages, self.shared_weights),
            "learning": slices.learning(units),
            "held": slices.owners(units),
            "digest": digest_of(slices.shapes()),
        }
        slices.keep(units)
        stage = Stage(slices, units, device=self.device, dtype=self.dtype)
        return Own(stage=stage, **found)

    def _check_norms(self, slices: Slices) -> None:
        norms = any(norms_in(layer.module) for layer in slices.layers)
        if norms and self.places.replicas > 1:
            raise ValueError(
                f"the module has BatchNorm, and {self.places.replicas} replicas would each keep "
                "running statistics of their own; give each stage one rank"
            )


def made(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """The module. Raises ValueError for what is neither one nor its maker."""
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ValueError(f"model is a {type(module).__name__}; give a module or its maker")
    return module


def in_turn(make: Callable[[], Made], turn: int, everybody: dist.ProcessGroup) -> Made:
    """Make the part of this process when those of its host with a lower `turn` have. Raises
    ValueError on all processes where one refuses."""
    last = torch.tensor(turn)
    dist.all_reduce(last, dist.ReduceOp.MAX, group=everybody)
    refused: ValueError | None = None
    threads = torch.get_num_threads()
    for now in range(int(last) + 1):
        if now == turn:
            torch.set_num_threads(available_cores())
            try:
                own = make()
            except ValueError as error:
                refused = error
            torch.set_num_threads(threads)
        dist.barrier(group=everybody)
    faults = torch.tensor(float(refused is not None))
    dist.all_reduce(faults, group=everybody)
    if faults:
        raise refused or ValueError("another process has refused the module, and says why")
    return own
