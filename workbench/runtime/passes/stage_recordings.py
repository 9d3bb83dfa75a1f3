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
a pass that asks the device for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.differentiation import Above
from workbench.runtime.passes.replay import recording
from workbench.runtime.passes.stage import Given, Stage
from workbench.runtime.passes.stage_passes import Key, StagePasses, wants

RECORDED = -1
"""The step of the micro-batch at the addresses that recordings read."""


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

    def __init__(self, stage: Stage, given: Given, came: Bundle, samples: int) -> None:
        """`given` and `came`: inputs of a micro-batch of `samples`, as all recorded ones are."""
        self._stage, self._samples = stage, samples
        self._inputs = {name: value.clone() for name, value in given.inputs.items()}
        self._came = tuple(torch.empty_like(tensor) for tensor in came)
        self._wanted = wants(stage.came(samples)) if came else []
        back = [] if stage.last else [form for form in stage.goes(samples) if form[2]]
        device = stage.device
        self._above = tuple(torch.empty(form[0], dtype=form[1], device=device) for form in back)
        self._share = torch.ones((), device=device)  # scalar
        stage.give(RECORDED, [given._replace(inputs=self._inputs)])
        self._addresses = stage.addresses()
        self._alone, self._pair = (torch.cuda.graph_pool_handle() for _ in range(2))
        self._recordings: dict[str, Recording] = {}
        self.kept: Key | None = None
        """The pass that was kept, until its backward pass."""

    def takes(self, given: Given, came: Bundle) -> bool:
        """Whether inputs are of the shapes that are recorded."""
        own = [*self._inputs.values(), *self._came]
        new = [*given.inputs.values(), *came]
        return [(t.shape, t.dtype) for t in own] == [(t.shape, t.dtype) for t in new]

    @property
    def moved(self) -> bool:
        """Whether weights lie elsewhere than recordings know."""
        return self._addresses != self._stage.addresses()

    def record(self, kind: str) -> None:
        """Record ``forward``, ``keep`` or ``checkpoint``, unless it was. Raises RuntimeError for a
        pass that cannot be recorded."""
        if kind in self._recordings:
            return
        torch.cuda.empty_cache()  # what autograd's passes worked in
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

    def forward(self, given: Given, came: Bundle) -> Bundle:
        """Outputs, without what a backward pass needs."""
        self._enter(given, came)
        return self._recordings["forward"].replay()

    def keep(self, key: Key, given: Given, came: Bundle) -> Bundle:
        """Outputs of a pass that keeps what its backward pass needs."""
        self._enter(given, came)
        self.kept = key
        return self._recordings["keep"].replay()

    def backward(self, above: Above) -> Bundle:
        """Gradients of the differentiable inputs of the pass that was kept."""
        self.kept = None
        self._begin(above)
        return self._recordings["backward"].replay()

    def from_checkpoint(self, given: Given, came: Bundle, above: Above) -> Bundle:
        """Gradients of the differentiable inputs, by both passes."""
        self._enter(given, came)
        self._begin(above)
        return self._recordings["checkpoint"].replay()

    def close(self) -> None:
        """Let go of all recordings; the GPU has done them."""
        self._recordings.clear()
        self._stage.end(RECORDED)

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

    def _enter(self, given: Given, came: Bundle) -> None:
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

    _stages: Mapping[int, Stage]

    def __init__(self, stages: Mapping[int, Stage]) -> None:
        super().__init__(stages)
        self._recorded: dict[int, RecordedStage] = {}
        self._refused: set[int] = set()
        """Stages that could not be recorded."""

    def begin(self) -> None:
        for unit, recorded in [*self._recorded.items()]:
            if recorded.moved:
                self._let_go(unit)

    def forward(self, key: Key, came: Bundle, samples: int, *, keeps: bool) -> Bundle:
        found = self._of(key, came, samples, "keep" if keeps else "forward")
        if found is None or (keeps and found.kept is not None):
            return super().forward(key, came, samples, keeps=keeps)
        given = self._stages[key[0]].given(*key[1:])
        return found.keep(key, given, came) if keeps else found.forward(given, came)

    def backward(self, key: Key, came: Bundle, samples: int, above: Above) -> Bundle:
        held = self._recorded.get(key[0])
        keeps = held is not None and held.kept == key
        if keeps and above.share != 0:
            return held.backward(above)
        if keeps:
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
        given = stage.given(micro, step)
        if unit in self._refused or not stage.records or not given.ctx.training:
            return None
        if unit not in self._recorded:
            self._recorded[unit] = RecordedStage(stage, given, came, samples)
        if not (found := self._recorded[unit]).takes(given, came):
            return None
        try:
            found.record(kind)
        except RuntimeError:
            self._refused.add(unit)
            self._let_go(unit)
            return None
        return found

    def _let_go(self, unit: int) -> None:
        self._recorded.pop(unit).close()
        torch.cuda.empty_cache()
