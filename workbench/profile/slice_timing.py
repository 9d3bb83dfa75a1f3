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
from time import perf_counter

import torch
from torch import Tensor, nn

from workbench.core.host import host_memory_bytes
from workbench.model.base import Context
from workbench.model.slices import Inputs, Slices, check_inputs
from workbench.profile.footprint import library_bytes_of
from workbench.profile.measure import cpu_clock, cuda_clock
from workbench.profile.slices import Slice, SlicePasses, Tied
from workbench.profile.timing import Sample, lasting, summarize, undisturbed
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.bundle import Bundle, bytes_of
from workbench.runtime.passes.stage import Given, Stage
from workbench.runtime.transport.group_transport import Form
from workbench.runtime.updates.stage_weights import StageWeights

LEAST, BURST, UPDATES = 8, 4, 5
"""Fewest passes of a size, those between two looks at the clock, and updates."""
CLOSE, LONGEST_S, BRIEFEST_S = 0.03, 1.0, 0.2
"""Spread, relative to the median, of passes that are steady, and seconds until they need not be."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class SliceBench:
    """One slice on its device."""

    def __init__(self, stage: Stage, learning: Mapping[str, bool], longest_s: float) -> None:
        self._stage, self._device, self._longest_s = stage, stage.device, longest_s
        self._weights = StageWeights([stage], learning)
        self._clock = cuda_clock if self._device.type == "cuda" else cpu_clock
        self._came: Bundle = ()
        self._above: Bundle = ()

    def passes(self, inputs: Inputs, samples: int) -> tuple[SlicePasses, list[list[float]]]:
        """Passes over a micro-batch of so many samples; and seconds of single forward, and single
        backward ones, without those far above the others. Raises what is raised where memory
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
        self._forward(keeps=False)
        stage.begin(0, micros)  # with copies of what that pass has cast
        kept, scratch = self._bytes(given.values())
        both = self._seconds()
        forward, backward = map(summarize, both)
        found = SlicePasses(
            samples=samples, forward_s=forward.seconds, backward_s=backward.seconds,
            forward_spread_s=forward.spread * forward.seconds,
            backward_spread_s=backward.spread * backward.seconds,
            kept_bytes=kept, scratch_bytes=scratch,
        )  # fmt: skip
        return found, [undisturbed([each.wall for each in some]) for some in both]

    def update(self, make: MakeOptimizer) -> tuple[int, float]:
        """Bytes of an optimizer's states, and seconds of its step."""
        trained = [each for each in self._weights.named.values() if each.requires_grad]
        if not trained:
            return 0, 0.0
        optimizer = make(trained)
        optimizer.step()
        held = [value for state in optimizer.state.values() for value in state.values()]
        reads = [self._clock(optimizer.step) for _ in range(UPDATES)]
        nbytes = bytes_of([value for value in held if isinstance(value, Tensor)])
        return nbytes, median(read().wall for read in reads)

    def _forward(self, keeps: bool) -> tuple[Bundle, Bundle]:
        """Input and output."""
        came = tuple(t.detach().requires_grad_(keeps and t.requires_grad) for t in self._came)
        with torch.set_grad_enabled(keeps), self._stage.autocast():
            return came, self._stage.run(came, 0, 0)

    def _backward(self, made: Bundle) -> None:
        pairs = zip(made, self._above, strict=True)
        ends = [(t, g.detach()) for t, g in pairs if t.requires_grad and g.requires_grad]
        if ends:
            torch.autograd.backward(*zip(*ends, strict=True))

    def _bytes(self, given: Iterable[Tensor]) -> tuple[int, int]:
        """Bytes kept between the passes, and the peak inside one beyond what a schedule counts:
        input, output of a forward pass, what is kept, and gradients of both. The graph holds the
        output until the backward pass is done, which is in that one's peak."""
        meter = device_meter(self._device)
        held = [*self._weights.named.values(), *self._stage.buffers(), self._weights.gradients]
        for tensor in (*held, *given, *self._came, *self._above):
            meter.exclude(tensor)
        with meter:
            self._burst(1)  # libraries take their workspaces
            begun = meter.now
            meter.reset_peak()
            out = self._forward(keeps=False)[1]
            output, forward = meter.now - begun, meter.peak - meter.now
            del out
            meter.reset_peak()
            came, made = self._forward(keeps=True)
            kept = meter.now - begun - output
            again = meter.peak - begun - kept
            meter.reset_peak()
            self._backward(made)
            backward = meter.peak - begun - kept
        return kept, max(forward, again, backward - bytes_of([t for t in came if t.requires_grad]))

    def _seconds(self) -> tuple[list[Sample], list[Sample]]:
        """Samples of forward and backward passes."""
        taken: tuple[list[Sample], list[Sample]] = [], []
        end = perf_counter() + lasting(self._longest_s)
        while len(taken[0]) < LEAST or (
            max(summarize(each).spread for each in taken) > CLOSE and perf_counter() < end
        ):
            for read, into in zip(self._burst(BURST), taken, strict=True):
                into += [each() for each in read]
        return taken

    def _burst(self, times: int) -> tuple[list[Callable[[], Sample]], list[Callable[[], Sample]]]:
        """Forward and backward passes, all of which a GPU has in its queue at once."""
        forward, backward = [], []
        for _ in range(times):
            forward.append(self._clock(lambda: self._forward(keeps=False)))
            made = self._forward(keeps=True)[1]
            backward.append(self._clock(lambda made=made: self._backward(made)))
        return forward, backward


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
        parameters=sum(each.numel() for each in weights), weight_bytes=nbytes,
        state_bytes=2 * nbytes, passes=(),
        boundary_bytes=bytes_of(rows) if stage.first else form_bytes(stage.came(1)),
    )  # fmt: skip
    try:
        bench = SliceBench(stage, learning, LONGEST_S if optimizer else BRIEFEST_S)
        if optimizer is not None:
            state_bytes, update_s = bench.update(optimizer)
            found = replace(found, state_bytes=state_bytes, update_s=update_s)
        for size in sizes:
            one, seconds = bench.passes(get_batch(size), size)
            found = replace(found, passes=(*found.passes, one))
            singles += seconds
    except (OutOfMemory, torch.OutOfMemoryError):
        torch.cuda.empty_cache()  # this size and larger ones are left out
    found = replace(found, state_bytes=found.state_bytes + stage.copied_bytes)
    for buffer, value in zip(stage.buffers(), before, strict=True):
        buffer.copy_(value)
    for module in stage.modules:
        module.zero_grad()
        module.to("cpu")
    if not found.passes:
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
