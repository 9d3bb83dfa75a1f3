"""Performs each action of a pipeline whose units are stages, resident on their devices.

A stage is one layer or several in a row, and a process may have any of them. The counterpart of the
engine of layers that visit (pack_engine.py), for processes of any hosts: it needs no memory that
processes share and no board. Passes are autograd's (differentiation.py); gradients are added up in
one flat tensor, which replicas add up as a whole when the last backward pass of the process's
stages is done. How messages travel and who updates the weights are parts that it is given. All
state is kept by step, so several steps may be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.differentiation import Above
from workbench.runtime.passes.stage_passes import Key, StageModule, StagePasses, there, wants
from workbench.runtime.protocols import Loans, StageUpdates, Transport, Versions
from workbench.runtime.transport.group_transport import Form
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows of a step that go through the pipeline together."""

    samples: tuple[int, ...]
    """Global number of each row, counted from the start of the run."""
    weight: float
    """Its part in the sum of the losses; 0 for one that only repeats a row."""


@dataclass
class StageStep:
    """State of one step that a process's stages share."""

    micros: Sequence[MicroBatch]
    scale: float
    """Factor of each micro-batch's weight in the loss that is differentiated."""
    training: bool
    losses: dict[int, Tensor] = field(default_factory=dict)
    """Micro-batch -> its mean loss, a scalar, on the last stage."""
    complete: set[int] = field(default_factory=set)
    """Stages whose gradients are."""

    def mean_loss(self) -> tuple[float, float]:
        """This process's parts of the sum of all losses, each times its weight, and of the weights;
        nothing but on last stages."""
        if not self.losses:
            return 0.0, 0.0
        weights = [micro.weight for micro in self.micros]
        parts = [float(self.losses[n]) * weight for n, weight in enumerate(weights) if weight]
        return sum(parts), sum(weights)


class StageEngine:
    """Performs the actions of one process (the executor's `Work`)."""

    transport: Transport
    """Carrier of messages; set before the first step."""

    def __init__(
        self, stages: Mapping[int, StageModule], passes: StagePasses, gradients: Tensor,
        add_up: Callable[[Tensor], object], updates: StageUpdates, loans: Loans | None = None,
        versions: Mapping[int, Versions] | None = None,
    ) -> None:  # fmt: skip
        """`stages`: unit of the schedule -> the stage; `passes` performs their passes. `gradients`
        of all their weights, flat: each parameter's `grad` is a view. `add_up` makes them the sum
        of all replicas'. `loans` are weights that stages lend each other in the schedule;
        `versions` of stages' weights, where passes read others than the newest."""
        self._loans, self._versions = loans, versions or {}
        self._stages, self._gradients, self._add_up = stages, gradients, add_up
        self._updates, self._passes = updates, passes
        self._steps: dict[int, StageStep] = {}
        self._inputs: dict[Key, Bundle] = {}
        """Outputs of the stage before, until the backward pass of the one that they enter."""
        self._outputs: dict[Key, Bundle] = {}
        """Outputs for a stage of another process."""
        self._above: dict[Key, Bundle] = {}
        """Gradients of outputs."""
        self._below: dict[Key, Bundle] = {}
        """Gradients of inputs, for a stage of another process."""
        self._work: dict[Kind, Callable[[Action, int], None]] = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.SEND: self._send,
            Kind.RECV: self._receive,
            Kind.SEND_GRAD: self._send,
            Kind.RECV_GRAD: self._receive,
            Kind.STASH: self._stash,
            Kind.FETCH: self._fetch,
            Kind.REDUCE: self._reduce,
            Kind.UPDATE: self._update,
        }

    def begin(
        self, step: int, micros: Sequence[MicroBatch], scale: float, *, training: bool = True
    ) -> None:
        """Before a step: its micro-batches, and the factor of each one's weight in the loss that is
        differentiated. Gradients start as the updates leave them; in evaluation they stay."""
        self._steps[step] = StageStep(micros, scale, training)
        self._passes.begin()
        if training:
            self._updates.begin(self._gradients, step)

    def __contains__(self, step: int) -> bool:
        """Whether a step has begun here, and has not ended."""
        return step in self._steps

    def mean_loss(self, step: int) -> tuple[float, float]:
        """As `StageStep.mean_loss`, of a step that has not ended."""
        return self._steps[step].mean_loss()

    def end(self, step: int) -> StageStep:
        """After a step: its losses."""
        return self._steps.pop(step)

    def perform(self, action: Action, step: int) -> None:
        """Do one action of one step."""
        self._work[action.kind](action, step)

    def forms(self, action: Action, step: int) -> Sequence[Form]:
        """The tensors of a message of this process."""
        if action.microbatch is None:
            lent = self._loans.weights(self._pair(action))
            return [(tuple(weight.shape), weight.dtype, False) for weight in lent]
        unit, samples = action.unit, self._samples(action, step)
        came = action.kind in (Kind.RECV, Kind.SEND_GRAD)
        found = self._stages[unit].came(samples) if came else self._stages[unit - 1].goes(samples)
        if action.kind in (Kind.SEND_GRAD, Kind.RECV_GRAD):
            return [form for form in found if form[2]]
        return found

    def forget(self) -> None:
        """Let go of what a step that failed has left; every lane has ended."""
        self._passes.forget()
        if self._loans is not None:
            self._loans.forget()
        for held in (self._inputs, self._outputs, self._above, self._below, self._steps):
            held.clear()

    def close(self) -> None:
        """Let go of all tensors; every lane has ended."""
        self.forget()
        self.transport.close()

    def _samples(self, action: Action, step: int) -> int:
        return len(self._steps[step].micros[action.microbatch].samples)

    def _forward(self, action: Action, step: int) -> None:
        """A forward pass, or its repetition, which keeps what its backward pass needs where the
        schedule has memory for it."""
        unit, micro, state = action.unit, action.microbatch, self._steps[step]
        keeps = state.training and name.keeps(action) and not name.checkpoints(action)
        came = there(self._inputs.get((unit, micro, step), ()))
        samples = self._samples(action, step)
        with self._reading(action, step):
            made = self._passes.forward((unit, micro, step), came, samples, keeps=keeps)
        if self._stages[unit].last:
            state.losses[micro] = made[0].detach()
        elif action.kind is Kind.FORWARD:
            into = self._inputs if unit + 1 in self._stages else self._outputs
            into[unit + 1, micro, step] = tuple(t.detach() for t in made)
        if not state.training:
            self._inputs.pop((unit, micro, step), None)

    def _backward(self, action: Action, step: int) -> None:
        """A backward pass; from a checkpoint, the forward pass comes again first."""
        unit, micro, state = action.unit, action.microbatch, self._steps[step]
        key = unit, micro, step
        came, samples = there(self._inputs.pop(key, ())), self._samples(action, step)
        if self._stages[unit].last:
            above = Above(share=state.micros[micro].weight * state.scale)
        else:
            back = wants(self._stages[unit].goes(samples))
            above = Above(there(self._above.pop((unit + 1, micro, step))), back)
        into = self._above if unit - 1 in self._stages else self._below
        with self._reading(action, step):
            into[key] = self._passes.backward(key, came, samples, above)
        for pair in filter(None, map(name.loan_of, action.takes)):
            self._loans.leave(pair, step)

    def _pair(self, action: Action) -> tuple[int, int]:
        """Owner and borrower of the weights that a message is about."""
        return action.unit, self.transport.borrower(action)

    def _send(self, action: Action, step: int) -> None:
        if action.microbatch is None:
            what = self._loans.weights if action.kind is Kind.SEND else self._loans.gradients
            self.transport.send(action, what(self._pair(action)), step)
            return
        held = self._outputs if action.kind is Kind.SEND else self._below
        bundle = there(held.pop((action.unit, action.microbatch, step)))
        self.transport.send(action, bundle, step)

    def _receive(self, action: Action, step: int) -> None:
        if action.microbatch is None:
            pair, came = self._pair(action), self.transport.receive(action, step)
            if action.kind is Kind.RECV:
                self._loans.weights_came(pair, came)
            else:
                self._loans.gradients_came(pair, step, came)
            return
        held = self._inputs if action.kind is Kind.RECV else self._above
        held[action.unit, action.microbatch, step] = self.transport.receive(action, step)

    def _stash(self, action: Action, step: int) -> None:
        """Take the inputs of a stage to the host, where that is another memory."""
        key = action.unit, action.microbatch, step
        self._inputs[key] = tuple(map(_to_host, there(self._inputs[key])))

    def _fetch(self, action: Action, step: int) -> None:
        key, device = (action.unit, action.microbatch, step), self._gradients.device
        self._inputs[key] = tuple(t.to(device, non_blocking=True) for t in self._inputs[key])

    def _reading(self, action: Action, step: int) -> AbstractContextManager:
        """During a pass, the weights that it reads; in evaluation the newest."""
        if action.unit in self._versions and self._steps[step].training:
            return self._versions[action.unit].reading(action, step)
        return nullcontext()

    def _update(self, action: Action, step: int) -> None:
        if action.unit in self._versions:
            self._versions[action.unit].renew(step)
        self._updates.update(action.unit, step)

    def _reduce(self, action: Action, step: int) -> None:
        """Once the gradients of all stages here are complete."""
        complete = self._steps[step].complete
        complete.add(action.unit)
        if complete == self._stages.keys():
            self._add_up(self._gradients)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, there when the current stream has done it; itself without a GPU."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
