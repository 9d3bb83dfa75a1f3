"""Performs each action of a pipeline whose units are stages, resident on their devices.

The counterpart of the engine of layers that visit (pack_engine.py), for processes of any hosts: it
needs no memory that processes share and no board. A pass is one call of a stage's module and one of
autograd; gradients are added up in one flat tensor, which replicas reduce as a whole when the last
backward pass of the process's stages is done. The weights' update is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.runtime.bundle import Bundle
from workbench.runtime.group_transport import Form, GroupTransport
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind

Key = tuple[int, int]
"""A stage, for what it puts out the one behind it, and a micro-batch."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows of a step that go through the pipeline together."""

    samples: tuple[int, ...]
    """Global number of each row, counted from the start of the run."""
    weight: float
    """Its part in the sum of the losses; 0 for one that only repeats a row."""


class StageModule(Protocol):
    """A stage of a model."""

    last: bool

    def came(self, samples: int) -> Sequence[Form]:
        """Tensors from the stage before."""

    def goes(self, samples: int) -> Sequence[Form]:
        """Tensors for the stage behind."""

    def run(self, came: Bundle, micro: int) -> Bundle:
        """A pass over a micro-batch of the step: tensors for the stage behind, or its mean loss."""


class StageEngine:
    """Performs the actions of one process (the executor's `Work`)."""

    def __init__(
        self,
        stages: Mapping[int, StageModule],
        gradients: Tensor,
        replicas: dist.ProcessGroup | None,
    ) -> None:
        """`stages`: unit of the schedule -> the stage. `gradients` of all their weights, flat:
        each parameter's `grad` is a view. `replicas` add them up; None for one replica. Set
        `transport` before the first step."""
        self.transport: GroupTransport
        self._stages, self._gradients, self._replicas = stages, gradients, replicas
        self._micros: Sequence[MicroBatch] = ()
        self._scale, self._training = 1.0, True
        self._inputs: dict[Key, Bundle] = {}
        """What came from the stage before, until its backward pass."""
        self._graphs: dict[Key, tuple[Bundle, Bundle]] = {}
        self._outputs: dict[Key, Bundle] = {}
        self._above: dict[Key, Bundle] = {}
        """Gradients of what a stage puts out."""
        self._below: dict[Key, Bundle] = {}
        self._reduced: set[int] = set()
        """Stages whose gradients are complete."""
        self.losses: dict[int, Tensor] = {}
        """Micro-batch -> its mean loss, on the last stage."""
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
            Kind.UPDATE: lambda action, step: None,
        }

    def begin(self, micros: Sequence[MicroBatch], scale: float, *, training: bool = True) -> None:
        """Before a step: its micro-batches, and the factor of each one's weight in the loss that is
        differentiated. Gradients start at zero; in evaluation they stay."""
        self._micros, self._scale, self._training = micros, scale, training
        self.losses.clear()
        if training:
            self._gradients.zero_()

    def perform(self, action: Action, step: int) -> None:
        """Do one action of one step."""
        self._work[action.kind](action, step)

    def forms(self, action: Action) -> Sequence[Form]:
        """The tensors of a message of this process."""
        samples, unit = len(self._micros[action.microbatch].samples), action.unit
        came = action.kind in (Kind.RECV, Kind.SEND_GRAD)
        found = self._stages[unit].came(samples) if came else self._stages[unit - 1].goes(samples)
        if action.kind in (Kind.SEND_GRAD, Kind.RECV_GRAD):
            return [form for form in found if form[2]]
        return found

    def forget(self) -> None:
        """Let go of what a step that failed has left; every lane has ended."""
        for held in (self._inputs, self._graphs, self._outputs, self._above, self._below):
            held.clear()
        self._reduced.clear()

    def close(self) -> None:
        """Let go of all tensors; every lane has ended."""
        self.forget()
        self.transport.close()

    def _forward(self, action: Action, step: int) -> None:
        """A forward pass, or its repetition, which keeps what its backward pass needs where the
        schedule has memory for it."""
        unit, micro = action.unit, action.microbatch
        keeps = self._training and name.keeps(action) and not name.checkpoints(action)
        made = self._pass(unit, micro, keeps=keeps)
        if self._stages[unit].last:
            self.losses[micro] = made[0].detach()
        elif action.kind is Kind.FORWARD:
            into = self._inputs if unit + 1 in self._stages else self._outputs
            into[unit + 1, micro] = tuple(t.detach() for t in made)
        if not self._training:
            self._inputs.pop((unit, micro), None)

    def _pass(self, unit: int, micro: int, *, keeps: bool) -> Bundle:
        stage, came = self._stages[unit], _used_here(self._inputs.get((unit, micro), ()))
        if keeps and came:
            wanted = [form[2] for form in stage.came(len(self._micros[micro].samples))]
            came = tuple(t.detach().requires_grad_(w) for t, w in zip(came, wanted, strict=True))
        with torch.set_grad_enabled(keeps):
            made = stage.run(came, micro)
        if keeps:
            self._graphs[unit, micro] = came, made
        return made

    def _backward(self, action: Action, step: int) -> None:
        """A backward pass; from a checkpoint, the forward pass comes again first."""
        unit, micro = action.unit, action.microbatch
        if (unit, micro) not in self._graphs:
            self._pass(unit, micro, keeps=True)
        came, made = self._graphs.pop((unit, micro))
        self._inputs.pop((unit, micro), None)
        if self._stages[unit].last:
            weight = self._micros[micro].weight * self._scale
            ends, pulls = ([made[0] * weight], [None]) if weight else ([], [])
        else:
            forms = self._stages[unit].goes(len(self._micros[micro].samples))
            back = [t for t, form in zip(made, forms, strict=True) if form[2]]
            above = _used_here(self._above.pop((unit + 1, micro)))
            pairs = [(t, g) for t, g in zip(back, above, strict=True) if t.requires_grad]
            ends, pulls = [t for t, _ in pairs], [g for _, g in pairs]
        if any(t.requires_grad for t in ends):
            torch.autograd.backward(ends, pulls)
        through = (t for t in came if t.requires_grad)
        into = self._above if unit - 1 in self._stages else self._below
        into[unit, micro] = tuple(
            torch.zeros_like(t) if t.grad is None else t.grad for t in through
        )

    def _send(self, action: Action, step: int) -> None:
        held = self._outputs if action.kind is Kind.SEND else self._below
        bundle = _used_here(held.pop((action.unit, action.microbatch)))
        self.transport.send(action, bundle, step)

    def _receive(self, action: Action, step: int) -> None:
        held = self._inputs if action.kind is Kind.RECV else self._above
        held[action.unit, action.microbatch] = self.transport.receive(action, step)

    def _stash(self, action: Action, step: int) -> None:
        """Take the inputs of a stage to the host, where that is another memory."""
        key = action.unit, action.microbatch
        self._inputs[key] = tuple(map(_to_host, _used_here(self._inputs[key])))

    def _fetch(self, action: Action, step: int) -> None:
        key, device = (action.unit, action.microbatch), self._gradients.device
        self._inputs[key] = tuple(t.to(device, non_blocking=True) for t in self._inputs[key])

    def _reduce(self, action: Action, step: int) -> None:
        """Once the gradients of all stages here are complete."""
        self._reduced.add(action.unit)
        if self._reduced == self._stages.keys():
            self._reduced.clear()
            dist.all_reduce(self._gradients, group=self._replicas)


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, there when the current stream has done it; itself without a GPU."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _used_here(bundle: Bundle) -> Bundle:
    """Tensors that another stream made, and the current one uses: their memory is not used again
    before it is done."""
    for tensor in bundle:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return bundle
