"""When and how units are updated within a step: norm, clip coefficient, speculation, skipping.

Exactness first: every update of a step sees one snapshot of learning rate, step number and
coefficient, the norm is that of all gradients, and a step whose norm is not finite changes nothing
anywhere.

Speculation. A host update may run before the norm is known, with a coefficient of 1. The norm of
the gradients seen so far is a lower bound of the global one, so speculation stops for the rest of a
step at the first unit that lifts it over the limit (or is not finite). Whatever was speculated
until then had gradients within the limit, so taking one back loses no more than rounding an
ordinary update does (host_adam.py states how much). `settle` makes the update what it must be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.runs.spec import RunSpec
from workbench.runtime import device_adam, host_adam
from workbench.runtime.adam_step import AdamStep
from workbench.runtime.memory import Memory
from workbench.runtime.storage import Flat
from workbench.runtime.threads import POLITENESS

SMALL = 1 << 16
"""Elements of a gradient that is not worth a launch of its own."""


@dataclass
class Step:
    """What one step shares among its actions."""

    index: int
    tokens: Tensor | None
    targets: Tensor | None
    """[B, S] on the device; None once the compute lane is done."""
    samples: tuple[int, ...]
    hyper: AdamStep
    """Snapshot for this step's updates; its clip coefficient is set once the norm is known."""
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    """Per unit the norms of its parameters' gradients, in the order units finish."""
    grad_norm: float | None = None
    skipped: bool = False
    guess: AdamStep | None = None
    """What host updates are done with before the norm is known."""
    guessed: set[int] = field(default_factory=set)
    """Units that were."""


class Optimizer:
    """Updates of one run; `device_threads` and `host_threads` are what a kernel may use."""

    def __init__(
        self,
        spec: RunSpec,
        memory: Memory,
        flats: list[Flat],
        *,
        deferred: bool,
        device_threads: int,
        host_threads: int,
    ) -> None:
        self._spec, self._memory, self._flats = spec, memory, flats
        self._deferred = deferred
        self._device_threads, self._host_threads = device_threads, host_threads
        self.done = 0
        """Optimizer steps applied so far; skipped steps do not count."""
        self.settled = {"stood": 0, "redone": 0, "waited": 0}
        """Host updates that were right the first time, that were taken back, and that had waited
        for the norm."""
        pinned = memory.device.type == "cuda"
        with memory.meter.on_host():
            self._norm_on_host = torch.zeros((), pin_memory=pinned)
            self._squares = torch.zeros(len(flats), pin_memory=pinned)
        self._device_squares: dict[int, Tensor] = {}

    def begin(self, step: int) -> AdamStep:
        """The snapshot of a step's updates, taken when its forward pass begins."""
        spec = self._spec
        hyper = AdamStep(
            step=self.done + 1,
            lr=spec.learning_rate(step),
            beta1=spec.beta1,
            beta2=spec.beta2,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
        )
        if not self._deferred:
            self.done += 1
        return hyper

    def see(self, unit: int, grads: list[Tensor], state: Step) -> None:
        """Take the norms of a unit's complete gradients, on the compute lane."""
        if self._deferred:
            norms = torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32))
            state.norms.append(norms)
            if unit not in self._memory.resident:
                self._device_squares[unit] = norms.square().sum()

    def send(self, unit: int) -> None:
        """Copy a unit's squared norm to the host, behind its gradients on the same lane."""
        if self._deferred:
            self._squares[unit].copy_(self._device_squares[unit], non_blocking=True)

    def norm(self, state: Step) -> None:
        """Exact global norm: clip coefficient and non-finite check, before any update is final."""
        self._norm_on_host.copy_(
            torch.linalg.vector_norm(torch.cat(state.norms)), non_blocking=True
        )
        if self._memory.device.type == "cuda":
            arrived = torch.cuda.Event(blocking=True)  # a spinning wait would cost updates a core
            arrived.record()
            arrived.synchronize()
        total = state.grad_norm = float(self._norm_on_host)
        state.norms.clear()
        state.skipped = not math.isfinite(total)
        scale = 1.0
        if self._spec.clip is not None and not state.skipped:
            scale = min(1.0, self._spec.clip / (total + 1e-6))
        state.hyper = replace(state.hyper, step=self.done + 1, grad_scale=scale)
        if not state.skipped:
            self.done += 1

    def update_resident(self, unit: int, state: Step, grads: list[Tensor]) -> None:
        """Update a unit on the device from gradients in the order of its pieces."""
        if state.skipped:
            return
        states, flat = self._memory.device_states(unit), self._flats[unit]
        for start, grad in _runs(flat, grads):
            part = slice(start, start + len(grad))
            device_adam.update(
                states.weights[part],
                states.exp_avg[part],
                states.exp_avg_sq[part],
                grad,
                state.hyper,
                decay_split=max(0, min(len(grad), flat.decay_split - start)),
                rest=None if states.rest is None else states.rest[part],
                threads=self._device_threads,
            )

    def update(self, unit: int, state: Step, *, speculative: bool) -> None:
        """Update a unit on the host; a speculative update is to be settled."""
        if not speculative:
            if not state.skipped:
                self._host(unit, state.hyper)
            return
        # By now the norms of this unit and of all after it are here. Whether the host lags so far
        # behind that the global one is here too must not matter: equal runs give equal bits.
        seen = sum(float(self._squares[u]) for u in self._memory.streamed if u >= unit)
        if seen <= self._spec.clip**2:  # False for what is not finite
            state.guessed.add(unit)
            self._host(unit, state.guess)

    def settle(self, unit: int, state: Step) -> None:
        """Make a speculative update what it must be, now that the norm is known."""
        if unit not in state.guessed:
            self.settled["waited"] += 1
            if not state.skipped:
                self._host(unit, state.hyper)
        elif state.skipped:
            self.settled["redone"] += 1
            host_adam.revert(*self._slabs(unit), state.guess, **self._settings(unit))
        elif state.guess != state.hyper:
            self.settled["redone"] += 1
            self._host(unit, state.hyper, undo=state.guess)
        else:
            self.settled["stood"] += 1

    def _host(self, unit: int, hyper: AdamStep, undo: AdamStep | None = None) -> None:
        host_adam.update(*self._slabs(unit), hyper, **self._settings(unit), undo=undo)

    def _slabs(self, unit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states = self._memory.states(unit)
        grad = self._memory.host_gradients(unit)
        return states.weights, states.exp_avg, states.exp_avg_sq, grad

    def _settings(self, unit: int) -> dict:
        return {
            "decay_split": self._flats[unit].decay_split,
            "rest": self._memory.states(unit).rest,
            "threads": self._host_threads,
            "niceness": POLITENESS if self._memory.device.type == "cuda" else 0,
        }


def _runs(flat: Flat, grads: list[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """(start, flat gradient) of pieces that follow one another, the small ones put together: two
    thirds of a block's parameters are biases and norms, and each launch costs what a million
    elements do.
    """
    small: list[Tensor] = []
    begin = 0
    for piece, grad in zip(flat.pieces, grads, strict=True):
        if grad.numel() <= SMALL:
            begin = begin if small else piece.start
            small.append(grad.view(-1))
            continue
        if small:
            yield begin, torch.cat(small)
            small = []
        yield piece.start, grad.view(-1)
    if small:
        yield begin, torch.cat(small) if len(small) > 1 else small[0]
