"""Passes of stages as CUDA graphs: one launch for a whole stage, however many its kernels are.

A processor that launches a stage's kernels one by one is slower than the GPU that does them: each
of two H200s with 24 blocks of GPT-2 XL worked for 138 of 153 ms. A recording does the same kernels
on the same numbers. It knows addresses, not tensors: inputs are copied to where it reads, and
outputs are copied from where it writes. Gradients of weights are added to each weight's `grad`, as
autograd adds them.

Three passes of a stage are recorded, each when the schedule first asks for it: forward alone;
backward from a checkpoint; and a pass that keeps what its backward pass needs, with the latter. A
stage's passes stay autograd's before its weights have copies in 16 bits (working.py, the first two
steps), where it draws random numbers or has BatchNorm, and where a recording fails, as it does for
a pass that asks the device for a number. Where several passes are kept at a time, each has
recordings of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import torch

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.differentiation import Above
from workbench.runtime.passes.graphs import pool_bytes, recording
from workbench.runtime.passes.stage_passes import Key, StageModule, StagePasses, wants

SPARE, MESSAGES = 64 << 20, 8
"""Bytes, and messages, for which a device must have room beside recordings: they keep what they
work in, and others cannot have it."""
RECORDED = -1
"""The step of the micro-batch at the addresses that recordings read."""


class Recordable(StageModule, Protocol):
    """A stage whose passes can be recorded. A micro-batch that it is `given` has `inputs`, tensors
    by their names, and a `ctx`, and is a NamedTuple."""

    device: torch.device
    records: bool
    """Whether passes may be recorded now."""

    def given(self, micro: int, step: int) -> Any:
        """A micro-batch of a step."""

    def give(self, step: int, given: Sequence[Any]) -> None:
        """Have the micro-batches of a step."""

    def end(self, step: int) -> None:
        """Let go of them."""

    def addresses(self) -> list[int]:
        """Where weights, gradients and buffers lie."""


class Recording(NamedTuple):
    """A graph, and where it leaves what comes out."""

    graph: torch.cuda.CUDAGraph
    made: Bundle

    def replay(self) -> Bundle:
        """Have the GPU do it again. What it leaves is copied: the next one may overwrite it."""
        self.graph.replay()
        return tuple(tensor.clone() for tensor in self.made)


class RecordedStage:
    """Recordings of a stage's passes over micro-batches of one shape."""

    def __init__(self, stage: Recordable, given: Any, came: Bundle, samples: int) -> None:
        """`given` and `came`: inputs of a micro-batch of `samples`, as all recorded ones are."""
        self._stage, self._samples = stage, samples
        self._inputs = {name: value.clone() for name, value in given.inputs.items()}
        self._came = tuple(torch.empty_like(tensor) for tensor in came)
        self._wanted = wants(stage.came(samples)) if came else []
        back = [] if stage.last else [form for form in stage.goes(samples) if form[2]]
        device = stage.device
        self._above = tuple(torch.empty(form[0], dtype=form[1], device=device) for form in back)
        self._share = torch.ones((), device=device)  # scalar
        self._given = given._replace(inputs=self._inputs)
        self._addresses = stage.addresses()
        self.pools = self._alone, self._pair = [torch.cuda.graph_pool_handle() for _ in range(2)]
        self._recordings: dict[str, Recording] = {}
        self.kept: Key | None = None
        """The pass that was kept, until its backward pass."""

    def takes(self, given: Any, came: Bundle) -> bool:
        """Whether inputs are of the shapes that are recorded."""
        own = [*self._inputs.values(), *self._came]
        new = [*given.inputs.values(), *came]
        return [(t.shape, t.dtype) for t in own] == [(t.shape, t.dtype) for t in new]

    @property
    def moved(self) -> bool:
        """Whether weights lie elsewhere than recordings know."""
        return self._addresses != self._stage.addresses()

    def __contains__(self, kind: str) -> bool:
        """Whether a kind of pass is recorded."""
        return kind in self._recordings

    def record(self, kind: str) -> None:
        """Record ``forward``, ``keep`` or ``checkpoint``. Raises RuntimeError for a pass that
        cannot be recorded."""
        torch.cuda.empty_cache()  # what autograd's passes worked in
        self._stage.give(RECORDED, [self._given])
        try:
            self._record(kind)
        finally:
            self._stage.end(RECORDED)

    def _record(self, kind: str) -> None:
        if kind == "forward":
            with torch.no_grad():
                made = _recorded(self._alone, lambda: self._run(self._came))
            self._recordings[kind] = made
        elif kind == "checkpoint":
            both = _recorded(self._alone, lambda: self._backward(*self._differentiated()))
            self._recordings[kind] = both
        else:
            ends: list[Bundle] = []

            def keep() -> Bundle:
                ends.extend(self._differentiated())
                return tuple(tensor.detach() for tensor in ends[1])

            self._recordings[kind] = _recorded(self._pair, keep)
            back = _recorded(self._pair, lambda: self._backward(*ends))
            self._recordings["backward"] = back

    def forward(self, given: Any, came: Bundle) -> Bundle:
        """Outputs, without what a backward pass needs."""
        self._enter(given, came)
        return self._recordings["forward"].replay()

    def keep(self, key: Key, given: Any, came: Bundle) -> Bundle:
        """Outputs of a pass that keeps what its backward pass needs."""
        self._enter(given, came)
        self.kept = key
        return self._recordings["keep"].replay()

    def backward(self, above: Above) -> Bundle:
        """Gradients of the differentiable inputs of the pass that was kept."""
        self.kept = None
        self._begin(above)
        return self._recordings["backward"].replay()

    def from_checkpoint(self, given: Any, came: Bundle, above: Above) -> Bundle:
        """Gradients of the differentiable inputs, by both passes."""
        self._enter(given, came)
        self._begin(above)
        return self._recordings["checkpoint"].replay()

    def close(self) -> None:
        """Let go of all recordings; the GPU has done them."""
        self._recordings.clear()

    def _run(self, came: Bundle) -> Bundle:
        return self._stage.run(came, 0, RECORDED)

    def _differentiated(self) -> tuple[Bundle, Bundle]:
        """Inputs and outputs."""
        pairs = zip(self._came, self._wanted, strict=True)
        came = tuple(t.detach().requires_grad_(wanted) for t, wanted in pairs)
        with torch.enable_grad():
            return came, self._run(came)

    def _backward(self, came: Bundle, made: Bundle) -> Bundle:
        if self._stage.last:
            ends, above = [made[0] * self._share], None
        else:
            back = wants(self._stage.goes(self._samples))
            ends, above = Above(self._above, back).ends(made)
        torch.autograd.backward(ends, above)
        through = (t for t in came if t.requires_grad)
        return tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in through)

    def _enter(self, given: Any, came: Bundle) -> None:
        new = [*given.inputs.values(), *came]
        for own, tensor in zip([*self._inputs.values(), *self._came], new, strict=True):
            own.copy_(tensor)

    def _begin(self, above: Above) -> None:
        if above.share is not None:
            self._share.fill_(above.share)
        for own, tensor in zip(self._above, above.gradients, strict=True):
            own.copy_(tensor)


def _recorded(pool: tuple[int, int], work: Callable[[], Bundle]) -> Recording:
    with recording(pool) as graph:
        made = work()
    return Recording(graph, made)


class RecordedPasses(StagePasses):
    """Passes of stages, recorded where they can be."""

    _stages: Mapping[int, Recordable]

    def __init__(self, stages: Mapping[int, Recordable], most: int = 1) -> None:
        """Recordings of up to `most` passes that are kept at a time, each in memory of its own."""
        super().__init__(stages)
        self._recorded: dict[int, list[RecordedStage]] = defaultdict(list)
        self._most, self._new = most, False
        self._refused: set[int] = set()
        """Stages that could not be recorded."""

    def new_bytes(self) -> int | None:
        """Bytes in which recordings work, of which the allocator counts nothing; None where none
        were made since it was asked."""
        made, self._new = self._new, False
        held = (each for own in self._recorded.values() for each in own)
        return pool_bytes([pool for each in held for pool in each.pools]) if made else None

    def begin(self) -> None:
        for unit, own in [*self._recorded.items()]:
            if any(recorded.moved for recorded in own):
                self._let_go(unit)

    def forward(self, key: Key, came: Bundle, samples: int, *, keeps: bool) -> Bundle:
        found = self._of(key, came, samples, "keep" if keeps else "forward")
        if found is None:
            return super().forward(key, came, samples, keeps=keeps)
        given = self._stages[key[0]].given(*key[1:])
        return found.keep(key, given, came) if keeps else found.forward(given, came)

    def backward(self, key: Key, came: Bundle, samples: int, above: Above) -> Bundle:
        own = self._recorded.get(key[0], ())
        held = next((each for each in own if each.kept == key), None)
        if held is not None and above.share != 0:
            return held.backward(above)
        if held is not None:
            held.kept = None  # autograd begins nothing of a loss that does not count
        found = None
        if key not in self._autograd and above.share != 0:
            found = self._of(key, came, samples, "checkpoint")
        if found is None:
            return super().backward(key, came, samples, above)
        return found.from_checkpoint(self._stages[key[0]].given(*key[1:]), came, above)

    def forget(self) -> None:
        """Let go of all graphs, and of recordings, whose passes may have been cut short."""
        super().forget()
        for unit in [*self._recorded]:
            self._let_go(unit)

    def _of(self, key: Key, came: Bundle, samples: int, kind: str) -> RecordedStage | None:
        """Recordings that have this kind of pass; None where autograd is to do it."""
        unit, micro, step = key
        stage = self._stages[unit]
        if unit in self._refused or not stage.records:
            return None
        given, own = stage.given(micro, step), self._recorded[unit]
        if not given.ctx.training:
            return None
        free = [each for each in own if each.kept is None] if kind == "keep" else own
        if not free and len(own) < self._most:
            own.append(RecordedStage(stage, given, came, samples))
            free = own[-1:]
        if not free or not free[0].takes(given, came):
            return None
        try:
            if kind not in free[0]:
                free[0].record(kind)
                self._new = True
                _check_room(stage, samples)
        except RuntimeError:
            self._refused.add(unit)
            self._let_go(unit)
            return None
        return free[0]

    def _let_go(self, unit: int) -> None:
        torch.cuda.synchronize()  # passes that go on
        for recorded in self._recorded.pop(unit):
            recorded.close()
        torch.cuda.empty_cache()


def _check_room(stage: Recordable, samples: int) -> None:
    """Raise RuntimeError unless memory is left beside recordings for what comes and goes."""
    forms = [*stage.came(samples), *([] if stage.last else stage.goes(samples))]
    nbytes = sum(prod(shape) * dtype.itemsize for shape, dtype, _ in forms)
    torch.empty(SPARE + MESSAGES * nbytes, dtype=torch.uint8, device=stage.device)
