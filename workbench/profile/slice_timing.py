"""Seconds and bytes of one slice's passes, run as the engine of stages runs them.

A slice is on its device alone meanwhile. Neighbours' tensors are made up. Bytes are those that the
runtime's meter sees; seconds are medians of as many passes as make them steady.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from statistics import median

import torch
from torch import Tensor, nn

from workbench.core.host import host_memory_bytes
from workbench.model.base import Context
from workbench.model.slices import Inputs, Slices, check_inputs
from workbench.profile.bench import phases, timed, weigh
from workbench.profile.footprint import library_bytes_of
from workbench.profile.slices import Slice, Tied
from workbench.profile.timing import Sample, summarize, undisturbed
from workbench.profile.units import UnitCost
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.bundle import Bundle, bytes_of
from workbench.runtime.passes.stage import Given, Stage
from workbench.runtime.transport.group_transport import Form
from workbench.runtime.updates.stage_weights import StageWeights

LEAST, BURST, UPDATES = 8, 4, 5
"""Fewest passes of a size, those in a GPU's queue at once, and updates."""
CLOSE, LONGEST_S, BRIEFEST_S = 0.03, 1.0, 0.2
"""Spread, relative to the median, of passes that are steady, and seconds until they need not be."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class SliceBench:
    """One slice on its device."""

    def __init__(self, stage: Stage, learning: Mapping[str, bool], longest_s: float) -> None:
        self._stage, self._device, self._longest_s = stage, stage.device, longest_s
        self._weights = StageWeights([stage], learning)
        self._came: Bundle = ()
        self._above: Bundle = ()

    def passes(self, inputs: Inputs, samples: int) -> tuple[UnitCost, list[list[float]]]:
        """Cost of a micro-batch of so many samples; and seconds of single forward, and single
        backward passes, without those far above the others. Raises what is raised where memory
        runs out."""
        stage, rows = self._stage, tuple(range(samples))
        stage.check(inputs)
        given = {n: t.to(self._device) for n, t in check_inputs(inputs, samples).items()}
        micros = [Given(given, Context(seed=0, step=-1, unit=0, samples=rows))]
        stage.begin(0, micros)
        above = [((), torch.float32, True)] if stage.last else stage.goes(samples)
        self._came, self._above = (
            tuple(_made_up(form, self._device) for form in forms)
            for forms in (stage.came(samples), above)
        )
        self._forward()
        stage.begin(0, micros)  # with copies of what that pass has cast
        nbytes = self._bytes(given.values())
        taken = self._seconds()
        forward, again, backward = map(summarize, taken)
        found = UnitCost(
            kind="slice", parameters=sum(p.numel() for p in stage.named_parameters().values()),
            forward_s=forward.seconds, recompute_s=again.seconds, backward_s=backward.seconds,
            spread=backward.spread, input_bytes=bytes_of(self._came), **nbytes,
        )  # fmt: skip
        single = taken[0], taken[2]
        return found, [undisturbed([each.wall for each in some]) for some in single]

    def update(self, make: MakeOptimizer) -> tuple[int, float]:
        """Bytes of an optimizer's states, and seconds of its step."""
        trained = [each for each in self._weights.named.values() if each.requires_grad]
        if not trained:
            return 0, 0.0
        optimizer = make(trained)
        (seconds,) = timed([optimizer.step], self._device, least=UPDATES, burst=UPDATES)
        held = [value for state in optimizer.state.values() for value in state.values()]
        nbytes = bytes_of([value for value in held if isinstance(value, Tensor)])
        return nbytes, median(each.wall for each in seconds)

    def _forward(self) -> Bundle:
        """Output of a forward pass without autograd."""
        with torch.no_grad(), self._stage.autocast():
            return self._stage.run(self._came, 0, 0)

    def _graph(self) -> tuple[Bundle, Bundle]:
        """Input and output of a forward pass with autograd."""
        came = tuple(t.detach().requires_grad_(t.requires_grad) for t in self._came)
        with torch.enable_grad(), self._stage.autocast():
            return came, self._stage.run(came, 0, 0)

    def _backward(self, came: Bundle, made: Bundle) -> None:
        pairs = zip(made, self._above, strict=True)
        ends = [(t, g.detach()) for t, g in pairs if t.requires_grad and g.requires_grad]
        if ends:
            torch.autograd.backward(*zip(*ends, strict=True))

    def _bytes(self, given: Iterable[Tensor]) -> dict[str, int]:
        """Bytes of the passes beyond what a schedule counts: input, output, what is kept, and
        gradients of both; gradients of weights are added to those of the stage."""
        meter = device_meter(self._device)
        held = [*self._weights.named.values(), *self._stage.buffers(), self._weights.gradients]
        for tensor in (*held, *given, *self._came, *self._above):
            meter.exclude(tensor)
        with meter:
            self._backward(*self._graph())  # libraries take their workspaces
            returned = bytes_of([t for t in self._came if t.requires_grad])
            return weigh(meter, self._forward, self._graph, self._backward, returned=returned)

    def _seconds(self) -> list[list[Sample]]:
        """Samples of forward passes, of those with autograd, and of backward passes."""
        return timed(
            phases(self._forward, self._graph, self._backward).values(), self._device,
            seconds=self._longest_s, least=LEAST, burst=BURST, steady=CLOSE,
        )  # fmt: skip


def measure(
    slices: Slices, unit: int, learning: Mapping[str, bool], sizes: Sequence[int],
    get_batch: Callable[[int], Inputs], *, device: torch.device, dtype: torch.dtype,
    optimizer: MakeOptimizer | None = None,
) -> tuple[Slice, list[list[float]]]:  # fmt: skip
    """A slice, with micro-batches of those ascending sizes that found memory; and of each seconds
    of single passes. Without an `optimizer` its weights and buffers are afterwards as before,
    states are taken to be AdamW's, and less time is taken. Raises ValueError where no size finds
    memory."""
    stage = Stage(slices, range(unit, unit + 1), device=device, dtype=dtype)
    before = [buffer.clone() for buffer in stage.buffers()]
    rows = [value[:1] if value.dim() else value for value in slices.inputs.values()]
    weights = [*stage.named_parameters().values()]
    nbytes, singles = bytes_of(weights), []
    found = Slice(
        weight_bytes=nbytes, state_bytes=2 * nbytes, costs=(),
        boundary_bytes=bytes_of(rows) if stage.first else form_bytes(stage.came(1)),
    )  # fmt: skip
    try:
        bench = SliceBench(stage, learning, LONGEST_S if optimizer else BRIEFEST_S)
        if optimizer is not None:
            state_bytes, update_s = bench.update(optimizer)
            found = replace(found, state_bytes=state_bytes, update_s=update_s)
        for size in sizes:
            one, seconds = bench.passes(get_batch(size), size)
            found = replace(found, costs=(*found.costs, one))
            singles += seconds
    except (OutOfMemory, torch.OutOfMemoryError):
        torch.cuda.empty_cache()  # this size and larger ones are left out
    found = replace(found, state_bytes=found.state_bytes + stage.copied_bytes)
    for buffer, value in zip(stage.buffers(), before, strict=True):
        buffer.copy_(value)
    for module in stage.modules:
        module.zero_grad()
        module.to("cpu")
    if not found.costs:
        raise ValueError(
            f"a slice finds no memory for {sizes[0]} samples; give smaller micro-batches, or set "
            "more cut points"
        )
    return found, singles


def tied_in(slices: Slices) -> tuple[Tied, ...]:
    """Weights that several slices hold, by pairs of these."""
    nbytes = {slices.names[id(each)]: each.nbytes for each in slices.module.parameters()}
    holders = slices.holders([range(unit, unit + 1) for unit in range(slices.count)])
    return tuple(
        Tied(first=one, second=other, nbytes=nbytes[name])
        for name, those in holders.items()
        for one, other in pairwise(those)
    )


def memory_of(device: torch.device, processes: int) -> tuple[int, int]:
    """Bytes of a device that this process, one of so many of its host, may use, and those of them
    that libraries keep."""
    if device.type == "cpu":
        return host_memory_bytes() // processes, 0
    libraries = library_bytes_of(device_meter(device))
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    return free + torch.cuda.memory_reserved(device), libraries


def form_bytes(forms: Iterable[Form]) -> int:
    """Bytes of the tensors of a message."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype, _ in forms)


def _made_up(form: Form, device: torch.device) -> Tensor:
    shape, dtype, differentiable = form
    if differentiable:
        own = torch.Generator(device).manual_seed(0)  # the script's numbers do not change
        return torch.randn(shape, dtype=dtype, device=device, generator=own, requires_grad=True)
    full = dtype.is_floating_point or dtype == torch.bool  # masks let all through
    return torch.full(shape, full, dtype=dtype, device=device)
