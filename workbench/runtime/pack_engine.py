"""What each action does on one of several ranks, whose layers visit it from shared host memory.

The single-device engine's counterpart (engine.py) for schedules of several ranks. It too knows only
how: where a layer's weights lie on the device, where an input comes from and an output goes, all of
that is written in the schedule as the buffers an action takes, uses and frees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.core.spec import RunSpec
from workbench.model.base import Context, LayeredModel
from workbench.model.text import Batches
from workbench.runtime.alike import Alike
from workbench.runtime.board import Board
from workbench.runtime.bundle import Boundary, Bundle, bundled, bytes_of, copy_into, single
from workbench.runtime.chains import Place, places
from workbench.runtime.device_budget import DeviceMeter
from workbench.runtime.flow import Flow
from workbench.runtime.groups import Groups
from workbench.runtime.halves import WeightHalf, input_half
from workbench.runtime.host_updates import HostUpdates
from workbench.runtime.inbox import Inbox
from workbench.runtime.links import Links, links_of
from workbench.runtime.mail import Mail
from workbench.runtime.match import ON_RANKS
from workbench.runtime.pack_memory import PackMemory
from workbench.runtime.replay import Chain, Replays
from workbench.runtime.residents import Residents
from workbench.runtime.shared import SharedHost
from workbench.runtime.spent import Spent
from workbench.runtime.statistics import Statistics
from workbench.runtime.template import Template, compiles
from workbench.runtime.traffic import Traffic
from workbench.runtime.visits import VisitLayout
from workbench.schedule import buffers as name
from workbench.schedule.action import GUESS, RECEIVES, SENDS, Action, Kind
from workbench.schedule.schedule import Schedule


@dataclass
class Step:
    """What one step shares among this rank's actions."""

    inputs: Bundle
    targets: Tensor
    """Of all samples that pass this rank, on the device."""
    samples: tuple[int, ...]
    """Their global numbers."""
    losses: list[Tensor] = field(default_factory=list)
    """Parts of the minibatch's mean loss."""


class PackEngine:
    """Performs the actions of one rank (the executor's `Work`)."""

    def __init__(
        self,
        model: LayeredModel,
        schedule: Schedule,
        spec: RunSpec,
        batches: Batches,
        host: SharedHost,
        board: Board,
        meter: DeviceMeter,
        layouts: list[VisitLayout],
        updates: HostUpdates,
        *,
        device: torch.device,
        dtype: torch.dtype,
        inbox: Inbox,
        folder: Path,
    ) -> None:
        """In `folder` the ranks tell each other what their messages need."""
        self.model, self.schedule, self.spec, self.batches = model, schedule, spec, batches
        self.device, self.dtype, self.board, self.meter = device, dtype, board, meter
        position, batch = board.position, spec.batch // schedule.replicas
        self._own = board.replica * batch
        """The first sample of this replica's part of the minibatch."""
        self.traffic = Traffic(device)
        self._host, self._layouts, self._updates = host, layouts, updates
        self._groups = Groups(schedule)
        self._steps: dict[int, Step] = {}
        self._graphs: dict[tuple[int, int], tuple[Bundle, Bundle]] = {}
        self._halves: dict[tuple[int, int], WeightHalf] = {}
        halved = any(action.kind is Kind.WEIGHT_GRAD for action in schedule.actions)
        # A compiled block is one node of autograd's, which has no halves.
        compiled = not halved and compiles(spec.compile, device.type, dtype)
        self._template = Template(model, compiled=compiled)
        mine = [action for action in schedule.actions if action.rank == position]
        self._links = {action.name: links_of(action, schedule) for action in mine}
        spans = [action.span for action in mine if action.samples] or [(0, 0)]
        self._first, self._end = min(spans)[0], max(end for _, end in spans)
        """The first sample that passes this rank, and the one after the last."""
        boundaries = {
            unit: Boundary(model.boundary(unit, spec.model.seq), dtype)
            for unit in range(1, model.num_units)
        }
        spent = Spent(schedule, position)
        self._flow = Flow(boundaries, self._first, self._end, device, spent)
        self._alike = Alike(boundaries)
        self.mail = Mail(
            schedule, board, inbox, self._flow, self.traffic,
            folder=folder, device=device, dtype=dtype,
        )  # fmt: skip
        self._memory = PackMemory(model, schedule, layouts, position, meter, dtype, device)
        self._residents = Residents(self._memory, layouts, mine, updates, board)
        self._places: dict[str, Place] = {}
        """Passes that are recorded, by action."""
        self._replays: Replays | None = None
        if name.on_rank(position, name.REPLAYS) in schedule.buffers:
            self._record(mine)
        self.statistics = Statistics(model, schedule, position, self._differentiated(mine))
        self._work: dict[Kind, Callable[[Action, Links, int], None]] = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.LOAD: self._load,
            Kind.STASH: self._stash,
            Kind.FETCH: self._fetch,
            Kind.INPUT_GRAD: self._input_half,
            Kind.WEIGHT_GRAD: self._weight_half,
            **dict.fromkeys(SENDS, self._send),
            **dict.fromkeys(RECEIVES, self._receive),
            Kind.REDUCE: self._reduce,
            Kind.GRAD_OUT: self._gradients_out,
            Kind.SUM_OUT: self._sum,
            Kind.SUM_IN: self._sum,
            Kind.NORM: self._norm,
            Kind.UPDATE: self._update,
            Kind.SETTLE: lambda action, links, step: updates.settle(action.unit, step),
        }
        assert self._work.keys() == ON_RANKS

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """On which passes were recorded, if some were: the compute lane is to run there."""
        return self._replays.stream if self._replays is not None else None

    def perform(self, action: Action, step: int) -> None:
        """Do one action of one step."""
        self._flow.begin(action, step)
        self._work[action.kind](action, self._links[action.name], step)

    @property
    def settled(self) -> dict[str, int]:
        """Of this rank's updates before the norm was known: how many stood, and so on."""
        return self._updates.settled

    def bring(self) -> None:
        """Layers that stay come from the host, before the first step."""
        self._residents.bring()

    def give_back(self, step: int) -> None:
        """Write them to the host, where checkpoints are made, after a step and with all lanes done;
        raises Diverged."""
        self._updates.check(step)
        self._residents.give_back()

    def end_step(self, step: int) -> None:
        """Put this rank's part of the loss on the board, and get the next step's samples: its first
        pass would wait for them, and the ranks behind it for that."""
        state = self._steps.pop(step, None)
        loss = sum(float(loss) for loss in state.losses) if state else 0.0
        self.board.end_step(step, loss, worked=state is not None)
        self._updates.check(step)
        if state:
            self._state(step + 1)

    def close(self) -> None:
        """Let go of all memory; every lane must have ended."""
        if self._replays is not None:
            self._replays.close()
            self._replays = None
        for held in (
            self._flow,
            self._graphs,
            self._halves,
            self._steps,
            self._places,
            self._memory,
        ):
            held.clear()
        self.mail.close()

    # -- set-up ---------------------------------------------------------------------------------

    def _record(self, mine: list[Action]) -> None:
        """The passes of blocks."""
        memory = self._memory
        self._places = places(mine, self._links, memory.modules, self.model.head)
        recorded: tuple[dict, dict] = {}, {}  # forward passes, and chains
        for place in self._places.values():
            recorded[place.place is not None][place.key] = Chain(
                modules=place.modules,
                parameters=tuple(memory.parameters[module] for module in place.modules),
                rows=place.rows,
            )
        most = max(place.rows for place in self._places.values())
        shape = most, self.spec.model.seq, self.model.hidden
        self._replays = Replays(self._template.block, shape, self.dtype, self.meter)
        self._replays.record(*recorded)

    def _differentiated(self, mine: list[Action]) -> dict[int, nn.Module]:
        """Unit -> the module of its passes that keep what backward passes need."""
        passes = [a for a in mine if name.keeps(a)]
        return {a.unit: self._memory.modules[self._links[a.name].weights] for a in passes}

    # -- compute --------------------------------------------------------------------------------

    def _state(self, step: int) -> Step:
        if step not in self._steps:
            first, end = self._own + self._first, self._own + self._end
            samples = self.batches.samples(step)[first:end]
            with self.meter.on_host():
                *inputs, targets = (t.to(self.device) for t in self.batches.rows(samples))
                inputs = tuple(t.to(self.dtype) if t.is_floating_point() else t for t in inputs)
            self._steps[step] = Step(inputs=inputs, targets=targets, samples=samples)
        return self._steps[step]

    def _forward(self, action: Action, links: Links, step: int) -> None:
        """A pass that keeps what its backward pass needs, where the schedule has memory for it."""
        if action.name in self._places:
            self._replay_forward(action, links, step)
            return
        unit, state, span = action.unit, self._state(step), action.span
        keeps = name.keeps(action)
        rows = slice(span[0] - self._first, span[1] - self._first)
        x = (
            tuple(t[rows] for t in state.inputs)
            if unit == 0
            else self._flow.read(links.source, span)
        )
        if keeps and unit:
            wanted = self._flow.boundary_of(unit).differentiable
            x = tuple(t.detach().requires_grad_(d) for t, d in zip(x, wanted, strict=True))
        ctx = Context(seed=self.spec.seed, step=step, unit=unit, samples=state.samples[rows])
        targets = state.targets[rows] if unit == self.model.head else None
        module = self._memory.modules[links.weights]
        if keeps:
            self.statistics.begin(unit, span)
        with torch.set_grad_enabled(keeps):
            y = bundled(self._template.forward(unit, module, single(x), ctx, targets))
        if keeps:
            self._graphs[unit, action.microbatch] = (x, y)
        if unit == self.model.head:
            state.losses.append(y[0].detach() * ((span[1] - span[0]) / self.spec.batch))
        elif links.target is not None:
            self._alike.see(unit, step, y)
            self._flow.write(links.target, tuple(t.detach() for t in y), action)
        self._flow.drop(action, step)

    def _replay_forward(self, action: Action, links: Links, step: int) -> None:
        place, span, y = self._places[action.name], action.span, None
        x = single(self._flow.read(links.source, span)) if place.first else None
        if place.place is None:
            y = self._replays.forward(place.key, x)
        else:
            self._replays.recompute(place.key, x, place.place)
            if place.last and links.target is not None:
                y = self._replays.output(place.key)
        if y is not None:
            self._flow.write(links.target, (y,), action, borrowed=True)
        self._flow.drop(action, step)

    def _replay_backward(self, action: Action, links: Links) -> list[Tensor]:
        place, span = self._places[action.name], action.span
        above = single(self._flow.read(links.output_gradient, span)) if place.last else None
        input_grad, grads = self._replays.backward(place.key, above, place.place)
        if input_grad is not None:
            self._flow.write(links.input_gradient, (input_grad,), action, borrowed=True)
        return grads

    def _backward(self, action: Action, links: Links, step: int) -> None:
        recorded = action.name in self._places
        grads = (self._replay_backward if recorded else self._differentiate)(action, links)
        self._add(action, links, grads)
        self._flow.drop(action, step)

    def _input_half(self, action: Action, links: Links, step: int) -> None:
        x, ends, above = self._ends(action, links)
        through = [t for t in x if t.requires_grad]
        parameters = self._memory.parameters[self._memory.modules[links.weights]]
        grads, self._halves[action.unit, action.microbatch] = input_half(
            ends, above, through, parameters
        )
        self._flow.write(links.input_gradient, grads, action)
        self._flow.drop(action, step)

    def _weight_half(self, action: Action, links: Links, step: int) -> None:
        if action.unit:
            grads = self._halves.pop((action.unit, action.microbatch)).gradients()
            self.statistics.end(action.unit, action.span)
        else:  # whose input has no gradient
            grads = self._differentiate(action, links)
        self._add(action, links, grads)
        self._flow.drop(action, step)

    def _add(self, action: Action, links: Links, grads: Sequence[Tensor]) -> None:
        """Add gradients of a micro-batch to those of the micro-batches before."""
        views = self._memory.gradients[links.gradients]
        if views:  # a layer may have no weights
            first = links.gradients in action.takes
            (torch._foreach_copy_ if first else torch._foreach_add_)(views, grads)
        self._residents.passed(action)

    def _ends(self, action: Action, links: Links) -> tuple[Bundle, Sequence[Tensor], Sequence]:
        """Where a backward pass begins: inputs of the unit, outputs, and the outputs' gradients."""
        unit, span = action.unit, action.span
        x, y = self._graphs.pop((unit, action.microbatch))
        if unit == self.model.head:
            loss = y[0] * ((span[1] - span[0]) / self.spec.batch)
            ends, above = [loss], [torch.ones_like(loss)]
        else:
            wanted = self._flow.boundary_of(unit + 1).differentiable
            back = [t for t, d in zip(y, wanted, strict=True) if d]
            pairs = zip(back, self._flow.read(links.output_gradient, span), strict=True)
            pairs = [(t, g) for t, g in pairs if t.requires_grad]
            ends, above = [t for t, _ in pairs], [g for _, g in pairs]
        return x, ends, above

    def _differentiate(self, action: Action, links: Links) -> tuple[Tensor, ...]:
        """A backward pass; the parameters' gradients."""
        unit, span = action.unit, action.span
        x, ends, above = self._ends(action, links)
        parameters = self._memory.parameters[self._memory.modules[links.weights]]
        through = [t for t in x if t.requires_grad] if unit else []
        wanted = [*through, *parameters]
        if ends:
            grads = torch.autograd.grad(ends, wanted, above, materialize_grads=True)
        else:  # nothing is learned below
            grads = tuple(map(torch.zeros_like, wanted))
        self.statistics.end(unit, span)
        if unit:
            self._flow.write(links.input_gradient, grads[: len(through)], action)
        return grads[len(through) :]

    def _norm(self, action: Action, links: Links, step: int) -> None:
        """The global norm, taken by the first replica for all."""
        if self.board.replica == 0:
            self._updates.norm(step)
        else:
            self.board.wait(self.schedule.actions.index(action), step, replica=0)

    def _update(self, action: Action, links: Links, step: int) -> None:
        if action.turn == GUESS:
            self._updates.guess(action.unit, step)
            return
        if action.unit in self._residents:
            self._residents.update(action.unit, step)
        else:
            self._updates.update(action.unit, step)

    # -- transfers ------------------------------------------------------------------------------

    def _load(self, action: Action, links: Links, step: int) -> None:
        layout = self._layouts[action.unit]
        place = self._memory.place(links.weights, layout.numel)
        own = self._host.view(name.host_weights(action.unit), self.dtype)
        place[: layout.flat.numel].copy_(own, non_blocking=True)
        for loan in layout.loans:
            lent = self._host.view(name.host_weights(loan.owner), self.dtype)
            place[loan.place].copy_(lent[loan.lent], non_blocking=True)
        self.traffic.count("load", layout.numel * self.dtype.itemsize, action.kind)

    def _send(self, action: Action, links: Links, step: int) -> None:
        if action.microbatch is None:
            gradients, borrower = action.kind is Kind.SEND_GRAD, self.mail.borrower(action)
            source = self._residents.lent(action.unit, borrower, gradients=gradients)
        else:
            source = self._flow.read(links.source, action.span)
        self.mail.send(action, tuple(source), step)

    def _receive(self, action: Action, links: Links, step: int) -> None:
        came = self.mail.receive(action, step)
        if action.microbatch is None:
            gradients, borrower = action.kind is Kind.RECV_GRAD, self.mail.borrower(action)
            self._residents.receive(action.unit, borrower, came[0], gradients=gradients)
        else:
            self._flow[links.target] = came

    def _gradients_out(self, action: Action, links: Links, step: int) -> None:
        layout = self._layouts[action.unit]
        target = self._updates.gradients(action.unit, self.board.position)
        number = self._updates.part_number(action.unit)
        source = self._memory.share(links.gradients, layout, number, len(target))
        self._updates.see(action.unit, source)
        target[: len(source)].copy_(source, non_blocking=True)
        self.traffic.count("store", target.nbytes, action.kind)

    def _sum(self, action: Action, links: Links, step: int) -> None:
        """A sum of gradients that lacks micro-batches, away from the device or back to it."""
        here = self._memory.place(links.gradients, self._layouts[action.unit].numel)
        there, out = self._host.view(links.host, self.dtype), action.kind is Kind.SUM_OUT
        ends = (there, here) if out else (here, there)
        self.traffic.copy("store" if out else "load", *ends, action.kind)

    def _stash(self, action: Action, links: Links, step: int) -> None:
        source = self._flow.read(links.source, action.span)
        copy_into(self._flow.stashed(action, links.host, self._host, self.spec.batch), source)
        self.traffic.count("store", bytes_of(source), action.kind)
        self._flow.drop(action, step)

    def _fetch(self, action: Action, links: Links, step: int) -> None:
        source = self._flow.stashed(action, links.host, self._host, self.spec.batch)
        with self.meter:
            here = tuple(t.to(self.device, non_blocking=True, copy=True) for t in source)
        self._flow.lay(links.target, here, action)
        self.traffic.count("load", bytes_of(source), action.kind)

    def _reduce(self, action: Action, links: Links, step: int) -> None:
        gradients = self._memory.place(links.gradients, self._layouts[action.unit].numel)
        first = self._groups.add_up(gradients, action)
        self.traffic.between(gradients.nbytes, action.kind)
        self._residents.passed(action, counts=first == self.board.rank)
