"""Each process makes the module, cuts it, keeps its stage's slices, and lets go of the rest.

The first process of a host makes it alone. Where the host's memory has room for as many whole
modules as there are processes, the others make theirs while the first one cuts, else one after the
other; in a later round of a launcher's job all do at once. Whoever refuses the module has all of
them refuse it. Where nobody has said where to cut, the first rank measures that (cutting.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import nn

from workbench.core.call_sets import CallSets
from workbench.core.host import available_cores
from workbench.methods.pipeline.as_written import check_written
from workbench.methods.pipeline.asynchronous_line import FP32_BYTES, Loan
from workbench.methods.pipeline.checkpoints import digest_of
from workbench.methods.pipeline.cutting import measured
from workbench.methods.pipeline.orders import held
from workbench.methods.pipeline.shares import Shares
from workbench.methods.pipeline.slice_sizes import SliceSizes, cut_of, stages_of
from workbench.methods.pipeline.stepping import StepPlan
from workbench.model.keyed import norms_in
from workbench.model.slices import Inputs, Slices
from workbench.runtime.executor.executor import Perturb
from workbench.runtime.passes.stage import Stage
from workbench.runtime.transport.group_transport import PARTS
from workbench.runtime.transport.groups import as_one
from workbench.runtime.updates.optimizer_state import Parameters
from workbench.runtime.updates.stage_loans import StageLoans
from workbench.runtime.updates.stage_weights import Held, copies
from workbench.schedule.action import Action

ROOM = 2
"""Bytes of free memory for each byte of a module that is made beside others."""
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of a module that a process keeps."""

    stages: Mapping[int, Stage]
    learning: Mapping[str, bool]
    """Parameter of the stages -> whether it is trained."""
    copies: Sequence[Held]
    """Weights of the module that are in it more than once."""
    held: Parameters
    """Slice that owns a parameter -> name -> parameter of these stages."""
    digest: str
    """Hash of the module's parameters."""
    cut: str
    """Slices of each stage."""
    sizes: SliceSizes | None
    """Of all stages, where the first rank has measured them."""
    nbytes: int
    """Of the whole module's parameters."""
    lent: Sequence[Loan]
    """Weights that stages lend each other, of a job whose stages are `apart`."""
    loans: StageLoans
    """Those of this process's stages."""

    @property
    def owned(self) -> Parameters:
        """Of `held`, what these stages' slices own."""
        units = {unit for stage in self.stages.values() for unit in stage.units}
        return {unit: own for unit, own in self.held.items() if unit in units}


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """A module's training in stages, as the caller asks for it."""

    get_batch: Callable[..., Inputs]
    plan: StepPlan
    shares: Shares
    device: torch.device
    dtype: torch.dtype
    backend: str
    """Carrier of messages and sums."""
    cut: str = ""
    """Slices of each stage, where they are given."""
    calls: CallSets | None = None
    """Calls of each slice, where slices are such."""
    device_memory: int | None = None
    """Bytes of a device that a process may use; None for all."""
    shared_weights: Sequence[tuple[str, str]] = ()
    """Pairs of names of parameters that are one weight."""
    compile: str = "off"
    """As in a spec."""
    records: bool = True
    """Whether passes on a GPU are recorded where they can be."""
    seed: int = 0
    """Of random numbers in forward passes."""
    weight_of: Callable[[Inputs], float] | None = None
    """What a micro-batch's mean loss counts; by default its rows."""
    perturb: Perturb | None = None
    latency: Callable[[Action], float] | None = None
    """How late the message of a receive is to come."""
    apart: bool = False
    """Whether stages are updated at different times: each has a copy of a weight of another, and
    passes read the weights of their moment."""

    def make(self, rank: int, module: nn.Module, found_cut: str | None) -> Part:
        """A rank's part; the first rank compares the slices with the module, and others take the
        cut that it has found. Raises ValueError for a module that cannot be trained so."""
        slices = Slices(module, self.get_batch, self.calls)
        if rank == 0:
            check_written(slices, self.device)
        plan, (here, _) = self.plan, self.plan.map.place(rank)
        cut, number = self.cut or found_cut or "", len(plan.positions)
        stages, profile = slices.stages(number, cut), None
        searches = not cut and 1 < number < slices.count
        if searches or (rank == 0 and self.device_memory is not None):
            micro_size = len(self.shares.rows(0)[0])
            profile = measured(slices, micro_size, device=self.device, dtype=self.dtype)
            room = profile.device_bytes if self.device_memory is None else self.device_memory
            profile = replace(profile, device_bytes=room)
        if searches:
            known = plan.one_each and isinstance(plan.order, str)
            order = plan.order if known else "1f1b"  # of as many positions
            # All but the last stage compute activations again, as under that rule.
            if order == "1f1b" and plan.activations == "recompute":
                order = "varuna"
            shape = number, plan.map.replicas, micro_size
            stages = stages_of(profile, order, *shape, self.shares.batch)
        self._check_norms(slices, stages)
        at = held(plan.positions)
        units = [[unit for stage in own for unit in stages[stage]] for own in at]
        learning = [slices.learning(stages[stage]) for stage in at[here]]
        found = {
            "copies": copies(slices, units, self.shared_weights),
            "learning": {n: any(of.get(n) for of in learning) for of in learning for n in of},
            "held": slices.owners(units[here]),
            "digest": digest_of(slices.shapes()),
            "cut": cut_of(stages),
            "sizes": SliceSizes(profile, stages) if profile is not None else None,
            "nbytes": bytes_of(slices.module),
        }
        lent = slices.lent(stages) if self.apart else {}
        for (owner, other), names in lent.items():
            if len(names) > PARTS:
                raise ValueError(
                    f"stages {owner} and {other} share {len(names)} weights; a message has at most "
                    f"{PARTS} tensors: use fewer stages, or move the cut points"
                )
        found["learning"] |= {name: True for names in lent.values() for name in names}
        slices.keep(units[here])
        brought: dict[int, dict[str, nn.Parameter]] = {}
        for stage in at[here]:
            names = {name for (_, other), own in lent.items() if other == stage for name in own}
            brought[stage] = slices.borrow(stages[stage], names) if names else {}
        kept = {
            stage: Stage(
                slices, stages[stage], device=self.device, dtype=self.dtype, compile=self.compile,
                steady=not self.apart,
            )
            for stage in at[here]
        }  # fmt: skip
        named = {stage: own.named_parameters() for stage, own in kept.items()}
        loans = StageLoans(
            {p: [named[p[0]][n] for n in names] for p, names in lent.items() if p[0] in kept},
            {p: [brought[p[1]][n] for n in names] for p, names in lent.items() if p[1] in kept},
        )
        pairs = [Loan(*p, FP32_BYTES * sum(own.values())) for p, own in sorted(lent.items())]
        return Part(stages=kept, lent=pairs, loans=loans, **found)

    def _check_norms(self, slices: Slices, stages: Sequence[range]) -> None:
        """BatchNorms see a sample once, and each of them lies in one stage."""
        in_stages = [
            {id(norm) for unit in units for norm in norms_in(slices.layers[unit].module).values()}
            for units in stages
        ]
        if sum(map(len, in_stages)) > len(set().union(*in_stages)):
            raise ValueError(
                "a BatchNorm is called in two stages, which would each keep running statistics of "
                "their own; use fewer stages, or move the cut points"
            )
        if any(in_stages) and self.shares.repeats:
            raise ValueError(
                f"a batch of {self.shares.batch} on {self.shares.replicas} replicas leaves one of "
                f"{self.shares.micros} micro-batches empty: it would repeat a row, and BatchNorm "
                "see it twice; use larger micro-batches, or a batch that the replicas divide"
            )


def made(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    """The module. Raises ValueError for what is neither one nor its maker."""
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ValueError(f"model is a {type(module).__name__}; give a module or its maker")
    return module


def has_room(nbytes: int) -> bool:
    """Whether this host has memory for a module of so many bytes in each of its processes; False
    where the bytes are not known (0)."""
    here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE")
    processes = int(here or dist.get_world_size())
    return 0 < ROOM * nbytes * processes < psutil.virtual_memory().available


def in_turn(
    whole: Callable[[], nn.Module], make: Callable[[nn.Module, Any], Made], turn: int,
    everybody: dist.ProcessGroup, says: Callable[[Made], Any] = lambda _: None,
    busy: Callable[[], object] = int,
) -> Made:  # fmt: skip
    """Have a process of each host make the `whole` module and, of it, its own part, and then that
    of the next `turn`; the first rank's turn is 0. Others hear what the first rank `says` of its
    part. Where a host has room for a module in each process, its others make theirs while the
    first takes its part. Before each turn all say that they are `busy`. Raises ValueError on all
    processes where one refuses."""
    last, modules, own = torch.tensor(turn), [], []
    dist.all_reduce(last, dist.ReduceOp.MAX, group=everybody)

    def hold() -> int:
        modules.append(whole())
        return bytes_of(modules[0])

    def take(said: Any) -> Any:
        own.append(make(modules.pop() if modules else whole(), said))
        return says(own[0])

    busy()
    nbytes = _as_one(hold, everybody, when=turn == 0)
    busy()
    early = turn > 0 and has_room(nbytes)
    said = _as_one(hold if early else partial(take, None), everybody, when=early or turn == 0)
    turn = 1 if early else turn
    for now in range(1, int(last) + 1):
        busy()
        _as_one(partial(take, said), everybody, when=now == turn)
    return own[0]


def bytes_of(module: nn.Module) -> int:
    """Of its parameters."""
    return sum(parameter.nbytes for parameter in module.parameters())


def _as_one(do: Callable[[], Any], everybody: dist.ProcessGroup, *, when: bool) -> Any:
    """Do something here, with all cores, while other processes do theirs; returns what the first
    rank found."""
    threads = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    try:
        return as_one(do if when else lambda: None, everybody)[0]
    finally:
        torch.set_num_threads(threads)
