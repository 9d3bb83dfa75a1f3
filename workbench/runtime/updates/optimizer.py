"""When and how units are updated within a step: norm, clip coefficient, speculation, skipping.

Exactness first: every update of a step sees one snapshot of learning rate, step number and
coefficient, the norm is that of all gradients, and a step whose norm is not finite changes nothing
anywhere. Without clipping nobody waits for a norm, and such a step ends the run (`check`).

Speculation. An update may run before the norm is known, with a coefficient of 1, in `calm` weather
only: where the step before was not clipped, since steps that are follow each other. The norm of the
gradients seen so far is a lower bound of the global one, so speculation stops for the rest of a
step at the first unit that lifts it over the limit (or is not finite). Whatever was speculated
until then had gradients within the limit, so taking one back loses no more than rounding an
ordinary update does (adam_step.py states how much). `settle` makes the update what it must be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.runtime.executor.threads import POLITENESS
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import Flat
from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.pinned_scalars import PinnedScalars
from workbench.runtime.updates import device_adam, host_adam
from workbench.runtime.updates.adam_step import AdamStep, Diverged, Part, clip_coefficient
from workbench.runtime.updates.guesses import Settled, apply
from workbench.schedule.action import GUESS, VERDICT, Kind

SMALL = 1 << 16
"""Elements of a gradient that is not worth a launch of its own."""


@dataclass
class StepState:
    """State of one step that its actions share."""

    index: int
    inputs: Bundle
    targets: Tensor | None
    """[B, ...] on the device; none once the compute lane is done."""
    samples: tuple[int, ...]
    weights: list[float]
    """How much the mean loss of each micro-batch weighs in that of the step, 1 on the mean."""
    uniform: list[bool]
    """Of each micro-batch whether its samples are (`LayeredModel.uniform`)."""
    hyper: AdamStep
    """Snapshot for this step's updates; its clip coefficient is set once the norm is known."""
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    """Per unit the norms of its parameters' gradients, in the order units finish."""
    seen: list[int] = field(default_factory=list)
    """These units."""
    grad_norm: float | None = None
    skipped: bool = False
    guess: AdamStep | None = None
    """Scalars of the updates that are made before the norm is known."""
    guessed: set[int] = field(default_factory=set)
    """Units that were."""
    ahead: set[int] = field(default_factory=set)
    """Units whose weights are updated, and whose moments are not yet."""
    calm: bool = False
    """Whether updates may be made before the norm is known."""
    held: bool = False
    """Whether its gradients wait for those of the next step, and nothing is updated."""
    replayed: frozenset[int] = frozenset()
    """Units whose passes are recordings."""
    left_out: Collection[Kind] = ()
    """Actions that are not performed in it."""
    carried: bool = False
    """Whether those of the step before wait."""

    def stands(self, unit: int) -> bool:
        """Whether a unit was updated as it must be, now that the norm is known."""
        return unit in self.guessed and not self.skipped and self.guess == self.hyper


class Optimizer:
    """Updates of one run; `device_threads` and `host_threads` are what a kernel may use."""

    def __init__(
        self,
        spec: RunSpec,
        memory: Memory,
        flats: list[Flat],
        *,
        deferred: bool,
        settled: set[int],
        later: set[int],
        device_threads: int,
        host_threads: int,
    ) -> None:
        self._spec, self._memory, self._flats = spec, memory, flats
        self._deferred = deferred
        self.awaiting = frozenset(settled)
        """Units whose updates may be guesses that await a verdict."""
        self._later = later
        """Units whose moments are updated after their weights."""
        self._device_threads, self._host_threads = device_threads, host_threads
        self.done = 0
        """Optimizer steps applied so far; skipped steps do not count."""
        self.settled = Settled()
        self.calm = False
        """Whether the last step was neither clipped nor skipped."""
        with memory.meter.on_host():
            self._seen = PinnedScalars(len(flats), memory.device)
            self._total = PinnedScalars(1, memory.device)

    def resume(self, done: int, grad_norms: list[float | None]) -> None:
        """Go on after `done` updates, and steps with these norms: what is guessed next depends on
        them, and the bits of what is taken back on what was guessed."""
        self.done = done
        last = grad_norms[-1] if grad_norms else None
        if last is not None:
            self.calm = math.isfinite(last) and self._scale(last) == 1.0

    def begin(self, step: int) -> AdamStep:
        """The snapshot of a step's updates, taken when its forward pass begins."""
        return AdamStep.of(self._spec, step, number=self.done + 1)

    def see(self, unit: int, grads: list[Tensor], state: StepState) -> None:
        """Take the norms of a unit's complete gradients, on the compute lane."""
        # A layer may own no weights.
        none = [torch.zeros((), device=self._memory.device)]
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32) if grads else none
        state.norms.append(torch.stack(norms))  # [pieces]
        state.seen.append(unit)
        if unit in self.awaiting:
            self._seen.write_norm(unit, state.norms)

    def check(self, state: StepState) -> None:
        """Count a step. Raises Diverged for one that should have been skipped and was not."""
        if self._deferred:
            return
        self.done += 1
        if bool(torch.cat(state.norms).isfinite().all()):
            return
        found = zip(state.norms, state.seen, strict=True)  # where it began comes first
        raise Diverged(state.index, next(u for norms, u in found if not norms.isfinite().all()))

    def norm(self, state: StepState) -> None:
        """Exact global norm: clip coefficient and non-finite check, before any update is final."""
        self._total.write_norm(0, state.norms)
        self._arrive()
        total = state.grad_norm = self._total[0]
        state.norms.clear()
        state.skipped = not math.isfinite(total)
        scale = 1.0 if state.skipped else self._scale(total)
        state.hyper = replace(state.hyper, step=self.done + 1, grad_scale=scale)
        if not state.skipped:
            self.done += 1
        self.calm = scale == 1.0 and not state.skipped

    def _scale(self, norm: float) -> float:
        """The clip coefficient."""
        return clip_coefficient(self._spec.clip, norm)

    def _arrive(self) -> None:
        """Wait until what this lane waits for and has begun is done."""
        if self._memory.device.type == "cuda":
            arrived = torch.cuda.Event(blocking=True)  # a spinning wait would cost updates a core
            arrived.record()
            arrived.synchronize()

    # -- updates on the device --------------------------------------------------------------------

    def comes(self, unit: int, turn: int, state: StepState) -> bool:
        """Whether a pulled unit's states come to the device in this turn of the step: not for a
        guess that nobody makes, nor for a verdict that leaves nothing to do."""
        if turn == GUESS:
            return state.calm
        return turn != VERDICT or not (state.stands(unit) or self._untouched(unit, state))

    def goes(self, unit: int, turn: int, state: StepState) -> bool:
        """Whether they go back changed."""
        return unit in state.guessed if turn == GUESS else self.comes(unit, turn, state)

    def update_resident(
        self, unit: int, state: StepState, grads: list[Tensor], *, joined: bool = False
    ) -> None:
        """Update a unit on the device from gradients in the order of its pieces; where there is
        memory for it, they are `joined` to one before."""
        if unit not in self.awaiting:
            if not state.skipped:
                self._device(unit, 0, grads, state.hyper, joined=joined)
        elif state.calm:
            self._arrive()
            if self._guesses(unit, state):
                self._device(unit, GUESS, grads, state.guess)

    def settle_resident(self, unit: int, state: StepState, grads: list[Tensor]) -> None:
        """Make such an update what it must be, now that the norm is known."""
        hyper, undo = self._verdict(unit, state)
        if hyper or undo:
            self._device(unit, VERDICT, grads, hyper, undo)

    def _device(
        self,
        unit: int,
        turn: int,
        grads: list[Tensor],
        hyper: AdamStep | None,
        undo: AdamStep | None = None,
        *,
        joined: bool = False,
    ) -> None:
        states, flat = self._memory.device_states(unit, turn), self._flats[unit]
        runs = [(0, torch.cat([g.view(-1) for g in grads]))] if joined else _runs(flat, grads)
        for start, grad in runs:
            part = slice(start, start + len(grad))
            apply(
                device_adam,
                (states.weights[part], states.exp_avg[part], states.exp_avg_sq[part], grad),
                hyper,
                undo,
                decay_split=max(0, min(len(grad), flat.decay_split - start)),
                rest=None if states.rest is None else states.rest[part],
                threads=self._device_threads,
            )

    # -- updates on the host ----------------------------------------------------------------------

    def update(self, unit: int, state: StepState) -> None:
        """Update a unit on the host, for good or as a guess."""
        if unit not in self.awaiting:
            if not state.skipped:
                self._host_for_good(unit, state)
        elif self._guesses(unit, state):
            self._host(unit, state.guess)

    def settle(self, unit: int, state: StepState) -> None:
        """Make such an update what it must be, now that the norm is known."""
        hyper, undo = self._verdict(unit, state)
        if hyper is None or undo is not None:
            self._host(unit, hyper, undo)
        else:
            self._host_for_good(unit, state)

    def moments(self, unit: int, state: StepState) -> None:
        """Update a unit's moments on the host, if its weights were updated alone."""
        if unit in state.ahead:
            self._host(unit, state.hyper, part="moments")
            state.ahead.remove(unit)

    def _host_for_good(self, unit: int, state: StepState) -> None:
        """Update a unit, or its weights alone where moments come later."""
        if unit not in self._later:
            self._host(unit, state.hyper)
            return
        self._host(unit, state.hyper, part="weights")
        state.ahead.add(unit)

    def _guesses(self, unit: int, state: StepState) -> bool:
        """Whether a unit is updated before the norm is known: in calm weather, since steps that are
        clipped follow each other, and while the gradients seen are within the limit.

        By now the norm of its gradients and all before is here. Whether the global one happens to
        be here too must not matter: equal runs give equal bits.
        """
        if not state.calm or not self._seen[unit] <= self._spec.clip:  # so for what is not finite
            return False
        state.guessed.add(unit)
        return True

    def _verdict(self, unit: int, state: StepState) -> tuple[AdamStep | None, AdamStep | None]:
        """(update still to make, update to take back before) of a unit."""
        guess = state.guess if unit in state.guessed else None
        return self.settled.verdict(guess, None if state.skipped else state.hyper)

    def _untouched(self, unit: int, state: StepState) -> bool:
        return state.skipped and unit not in state.guessed

    def _host(
        self,
        unit: int,
        hyper: AdamStep | None,
        undo: AdamStep | None = None,
        part: Part = "all",
    ) -> None:
        apply(host_adam, self._slabs(unit), hyper, undo, part=part, **self._settings(unit))

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
    """(start, flat gradient) of pieces that follow one another: all, where they lie in one slab;
    else the small ones put together, for two thirds of a block's parameters are biases and norms,
    and each launch costs what a million elements do.
    """
    if not grads:
        return
    if (slab := flat.slab_of(grads)) is not None:
        yield 0, slab
        return
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
