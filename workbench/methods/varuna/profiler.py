"""Measures a user's module, slice by slice, for the choice of its shape.

    profiler = Profiler(net, get_batch, local_rank=args.local_rank, bf16=True)
    profiler.profile_all([1, 2, 4, 8])

All processes of a job run it, or one alone. Slices are dealt to them in turn, and each is on its
device alone while it is measured, so a model needs to fit no device. Then all measure messages and
sums, and the first rank writes what AutoConfig reads (profile.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, pstdev

import torch
import torch.distributed as dist
from torch import nn

from workbench.core.host import host_memory_bytes
from workbench.methods.varuna import profile as form
from workbench.methods.varuna.checkpoints import digest_of
from workbench.methods.varuna.groups import carrier, device_of, join
from workbench.methods.varuna.making import in_turn, made
from workbench.methods.varuna.network_timing import Network
from workbench.methods.varuna.slice_timing import MakeOptimizer, SliceBench, form_bytes
from workbench.methods.varuna.slices import Inputs, Slices
from workbench.methods.varuna.stage import Stage, dtype_of
from workbench.methods.varuna.weights import copies
from workbench.methods.varuna.written import check_written
from workbench.profile.footprint import library_bytes_of
from workbench.runtime.bundle import bytes_of
from workbench.runtime.device_budget import device_meter
from workbench.runtime.groups import as_one
from workbench.runtime.tiers import OutOfMemory

Found = dict[int, tuple[form.Slice, list[list[float]]]]
"""Slice -> it, with the sizes that found memory; and of each size seconds of single passes."""


class Profiler:
    """One process's part in the measurement of a module."""

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        get_batch: Callable[..., Inputs],
        device: int | str | torch.device = -1,
        gpus_per_node: int | None = None,
        fp16: bool = False,
        out_folder: str | Path = "profiles",
        local_rank: int = -1,
        *,
        bf16: bool = False,
        optimizer: MakeOptimizer | None = None,
        shared_weights: Sequence[tuple[str, str]] | None = None,
        transport: str = "auto",
    ) -> None:
        """Arguments are those of Varuna; a `model` that is a module is of no use afterwards.
        `gpus_per_node` ranks in a row are those of a host, by default as many as the launcher has
        started there. `optimizer` makes one of parameters, by default AdamW. Raises ValueError, one
        sentence, for what cannot be trained."""
        self._device = device_of(device, local_rank)
        backend = carrier(transport, self._device)
        self._dtype = dtype_of(fp16=fp16, bf16=bf16)
        self._get_batch, self._folder = get_batch, Path(out_folder)
        self._optimizer = optimizer or torch.optim.AdamW
        join(self._device)
        self.rank, self._world = dist.get_rank(), dist.get_world_size()
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self._world))
        self._per_host = here if gpus_per_node is None else gpus_per_node
        if self._per_host < 1:
            raise ValueError(f"gpus_per_node is {gpus_per_node}; it must be 1 or more")
        self._everybody = dist.new_group(backend="gloo")

        def make() -> tuple[Slices, dict[str, bool], form.Named]:
            slices = Slices(made(model), get_batch)
            every = [range(unit, unit + 1) for unit in range(slices.count)]
            copies(slices, every, shared_weights or ())  # refuses names that are none
            if self.rank == 0:
                check_written(slices, self._device)
            learning = slices.learning(range(slices.count))
            inputs = {f"input {n}": tuple(v.shape[1:]) for n, v in slices.inputs.items()}
            digest = digest_of({**slices.shapes(), **inputs, str(self._dtype): ()})
            slices.keep(range(self.rank, slices.count, self._world))
            return slices, learning, form.Named(name=type(slices.module).__name__, digest=digest)

        turn = 0 if isinstance(model, nn.Module) else max(0, local_rank)
        self._slices, self._learning, self.model = in_turn(make, turn, self._everybody)
        """`model`: its name in the profile, with a digest of parameters, inputs and precision."""
        self.machine = form.machine_of(self._device.type)
        self._network = Network(self._everybody, backend, self._device, self._per_host)

    def set_optimizer(self, make: MakeOptimizer) -> None:
        """Have `make` make the optimizer, of the parameters that it is given."""
        self._optimizer = make

    def profile_all(self, microbatch_sizes: Sequence[int], *, anew: bool = True) -> Path:
        """Measure micro-batches of these numbers of samples and write the profile; returns its
        path. Unless `anew`, one that is there and is of this model, machine and these sizes stays.
        Sizes that find no memory are left out, and named in it. Raises ValueError where none is
        left, and OSError where nothing can be written."""
        sizes, path = sorted({*microbatch_sizes}), self._folder / form.FILE
        if not sizes or sizes[0] < 1:
            raise ValueError(f"microbatch_sizes are {microbatch_sizes}; give numbers from 1 on")
        if not anew and as_one(partial(self._fits, sizes), self._everybody)[0]:
            return path
        found: Found = {}
        for each in as_one(partial(self._measured, sizes), self._everybody):
            found |= each
        slices, singles = zip(*(found[unit] for unit in range(self._slices.count)), strict=True)
        able = set.intersection(*({one.samples for one in each.passes} for each in slices))
        if not able:
            raise ValueError(
                f"a slice finds no memory for {sizes[0]} samples; give smaller micro-batches, or "
                "set more cut points"
            )
        memory = as_one(self._memory, self._everybody)
        largest = max((each.boundary_bytes for each in slices[1:]), default=0) * max(able)
        within, between = self._network.wires(largest)
        sums = self._network.sums(sum(each.weight_bytes for each in slices))
        every = [seconds for of_slice in singles for seconds in of_slice]
        apart = [abs(each - median(seconds)) for seconds in every for each in seconds]
        # A pass that was disturbed all the time says nothing of the others.
        jitter = form.Deviation(median_s=median(apart), sd_s=median(map(pstdev, every)))
        passes = [tuple(one for one in each.passes if one.samples in able) for each in slices]
        profile = form.ModelProfile(
            model=self.model, machine=self.machine, device_bytes=min(room for room, _ in memory),
            slices=tuple(replace(s, passes=p) for s, p in zip(slices, passes, strict=True)),
            within=within, between=between, sums=sums, jitter=jitter,
            library_bytes=max(library for _, library in memory),
            lacking=tuple(size for size in sizes if size not in able),
        )  # fmt: skip
        as_one(lambda: self.rank or profile.save(self._folder), self._everybody)
        return path

    def _fits(self, sizes: Sequence[int]) -> bool:
        """Whether the profile that is there will do."""
        try:
            found = form.load(self._folder, self.model, self.machine)
        except ValueError:
            return False
        return {*found.samples, *found.lacking}.issuperset(sizes)

    def _measured(self, sizes: Sequence[int]) -> Found:
        """This process's slices, one after the other on its device."""
        found: Found = {}
        for unit in range(self.rank, self._slices.count, self._world):
            units = range(unit, unit + 1)
            stage = Stage(self._slices, units, device=self._device, dtype=self._dtype)
            found[unit] = self._slice(stage, sizes)
            for module in stage.modules:
                module.zero_grad()
                module.to("cpu")
        return found

    def _slice(self, stage: Stage, sizes: Sequence[int]) -> tuple[form.Slice, list[list[float]]]:
        rows = [value[:1] if value.dim() else value for value in self._slices.inputs.values()]
        weights = [*stage.named_parameters().values()]
        found = form.Slice(
            parameters=sum(each.numel() for each in weights), weight_bytes=bytes_of(weights),
            state_bytes=0, passes=(),
            boundary_bytes=bytes_of(rows) if stage.first else form_bytes(stage.came(1)),
        )  # fmt: skip
        singles: list[list[float]] = []
        try:
            bench = SliceBench(stage, self._learning)
            state_bytes, update_s = bench.update(self._optimizer)
            found = replace(found, state_bytes=state_bytes, update_s=update_s)
            for size in sizes:
                one, seconds = bench.passes(self._get_batch(size), size)
                found = replace(found, passes=(*found.passes, one))
                singles += seconds
        except (OutOfMemory, torch.OutOfMemoryError):
            torch.cuda.empty_cache()  # this size and larger ones are left out
        return found, singles

    def _memory(self) -> tuple[int, int]:
        """Bytes of the device that this process may use, and those of them that libraries keep."""
        if self._device.type == "cpu":
            return host_memory_bytes() // self._per_host, 0
        libraries = library_bytes_of(device_meter(self._device))
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self._device)[0]
        return free + torch.cuda.memory_reserved(self._device), libraries
