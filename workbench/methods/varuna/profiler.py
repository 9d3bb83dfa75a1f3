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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median, pstdev

import torch
import torch.distributed as dist
from torch import nn

from workbench.core.schema import read_as
from workbench.elastic.worker import Worker
from workbench.methods.pipeline.as_written import check_written
from workbench.methods.pipeline.checkpoints import digest_of
from workbench.methods.pipeline.making import in_turn, made
from workbench.methods.pipeline.network_timing import Network
from workbench.model.slices import Inputs, Slices
from workbench.profile import slices as form
from workbench.profile.slice_timing import MakeOptimizer, measure, memory_of, tied_in
from workbench.runtime.passes.stage import dtype_of
from workbench.runtime.transport.groups import as_one, device_of, join, new_group
from workbench.runtime.transport.neighbours import carrier
from workbench.runtime.updates.stage_weights import copies

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
        self._everybody = new_group(backend="gloo")
        self._busy = getattr(Worker.here(), "working", int)
        """Tells a launcher, where there is one, that this process gets on."""

        def make(
            module: nn.Module, _: None
        ) -> tuple[Slices, dict[str, bool], tuple[form.Tied, ...], form.Named]:
            slices = Slices(module, get_batch)
            every = [range(unit, unit + 1) for unit in range(slices.count)]
            copies(slices, every, shared_weights or ())  # refuses names that are none
            if self.rank == 0:
                check_written(slices, self._device)
            learning = slices.learning(range(slices.count))
            inputs = {f"input {n}": tuple(v.shape[1:]) for n, v in slices.inputs.items()}
            digest = digest_of({**slices.shapes(), **inputs, str(self._dtype): ()})
            named = form.Named(name=type(slices.module).__name__, digest=digest)
            own = slices, learning, tied_in(slices), named
            slices.keep(range(self.rank, slices.count, self._world))
            return own

        turn = 0 if isinstance(model, nn.Module) else max(0, local_rank)
        own = in_turn(partial(made, model), make, turn, self._everybody, busy=self._busy)
        self._slices, self._learning, self._tied, self.model = own
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
        for measured in as_one(partial(self._measured, sizes), self._everybody):
            for unit, fields, singles in measured:
                found[unit] = read_as(form.Slice, fields, f"slice {unit}"), singles
        slices, singles = zip(*(found[unit] for unit in range(self._slices.count)), strict=True)
        able = sizes[: min(len(each.costs) for each in slices)]
        memory = as_one(partial(memory_of, self._device, self._per_host), self._everybody)
        largest = max((each.boundary_bytes for each in slices[1:]), default=0) * max(able)
        within, between = self._network.wires(largest)
        sums = self._network.sums(sum(each.weight_bytes for each in slices))
        every = [seconds for of_slice in singles for seconds in of_slice]
        apart = [abs(each - median(seconds)) for seconds in every for each in seconds]
        # A pass that was disturbed all the time says nothing of the others.
        jitter = form.Deviation(median_s=median(apart), sd_s=median(map(pstdev, every)))
        profile = form.SliceProfile(
            model=self.model, machine=self.machine, device_bytes=min(room for room, _ in memory),
            samples=tuple(able),
            slices=tuple(replace(each, costs=each.costs[: len(able)]) for each in slices),
            tied=self._tied, within=within, between=between, sums=sums, jitter=jitter,
            library_bytes=max(library for _, library in memory),
            lacking=tuple(sizes[len(able) :]),
        )  # fmt: skip
        as_one(lambda: self.rank or profile.save(self._folder), self._everybody)
        return path

    def _fits(self, sizes: Sequence[int]) -> bool:
        """Whether the profile that is there will do."""
        try:
            found = form.load(self._folder, self.model, self.machine)
        except ValueError:
            return False
        many, here = self._world > 1, min(self._world, self._per_host) > 1
        apart = self._world > self._per_host
        links = (found.sums, many), (found.within, here), (found.between, apart)
        complete = all(measured or not needed for measured, needed in links)
        return complete and {*found.samples, *found.lacking}.issuperset(sizes)

    def _measured(self, sizes: Sequence[int]) -> list[tuple[int, dict, list[list[float]]]]:
        """This process's slices, one after the other on its device, as other processes read them:
        number, fields, and of each size seconds of single passes."""
        found = []
        for unit in range(self.rank, self._slices.count, self._world):
            self._busy()
            one, singles = measure(
                self._slices, unit, self._learning, sizes, self._get_batch,
                device=self._device, dtype=self._dtype, optimizer=self._optimizer,
            )  # fmt: skip
            found.append((unit, asdict(one), singles))
        return found
