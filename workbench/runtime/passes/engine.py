"""Performs each action on a layered model: the work behind any single-device schedule.

The schedule decides what happens when; the engine knows only how. It owns the memory (storage.py,
tiers.py) and finds a unit's place by the slot its buffer names in the schedule, so a new method
needs no code here. Exactness is the contract: gradients accumulate over micro-batches in order,
random numbers are keyed, the clip coefficient is the global one, and every update of a step sees
the same snapshot of learning rate, step number and coefficient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from workbench.core.division import even_share
from workbench.core.spec import RunSpec
from workbench.model.base import Context, LayeredModel
from workbench.model.text import Batches
from workbench.model.weighing import weights_of
from workbench.runtime.executor.executor import CHANGES
from workbench.runtime.executor.match import ON_ONE_DEVICE
from workbench.runtime.executor.threads import cpu_threads
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import Flat, read_here
from workbench.runtime.memory.traffic import Traffic, in_passing
from workbench.runtime.passes.bundle import Bundle, bundled, single
from workbench.runtime.passes.gradients import Gradients
from workbench.runtime.passes.recorded_blocks import RecordedBlocks
from workbench.runtime.passes.statistics import clones, take_up, undivided
from workbench.runtime.passes.unit_passes import Passes, make_room
from workbench.runtime.updates.optimizer import Optimizer, StepState
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind, lane_kind
from workbench.schedule.schedule import Schedule

PASSING = (Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD, Kind.STASH, Kind.FETCH)
"""Actions of passes, and on what they leave."""
NO_UNITS: frozenset[int] = frozenset()


class Engine:
    """Executes actions (`perform`) for one model under one schedule."""

    def __init__(
        self,
        model: LayeredModel,
        schedule: Schedule,
        spec: RunSpec,
        batches: Batches,
        memory: Memory,
    ) -> None:
        self.model, self.schedule, self.spec, self.batches = model, schedule, spec, batches
        self.memory, self.traffic = memory, Traffic(memory.device, spec.link_bytes_per_s)
        self._lock, self._micros = threading.Lock(), schedule.num_microbatches
        self._steps: dict[int, StepState] = {}
        self._recomputed = {a.unit for a in schedule.actions if a.kind is Kind.RECOMPUTE}
        self._inputs: dict[tuple[int, int], Bundle] = {}
        self._graphs: dict[tuple[int, int], tuple[Bundle, Bundle]] = {}
        self._output_grads: dict[tuple[int, int], Bundle] = {}
        self._flats = [Flat.of(model, unit) for unit in range(model.num_units)]
        self._gradients = Gradients(memory, schedule, self._flats, self.traffic)
        self.holds = False
        """Whether steps that begin now leave their gradients to the next, and update nothing."""
        self.bare = False
        """Whether they pass nothing, and update from gradients that were left to them."""
        workers = len({a.lane for a in schedule.actions if lane_kind(a.lane) == "host"}) or 1
        threads = cpu_threads(memory.device.type)
        self.optimizer = Optimizer(
            spec,
            memory,
            self._flats,
            deferred=any(a.kind is Kind.NORM for a in schedule.actions),
            settled={a.unit for a in schedule.actions if a.kind is Kind.SETTLE},
            later={a.unit for a in schedule.actions if a.kind is Kind.MOMENTS},
            device_threads=threads.compute,
            host_threads=max(1, threads.host // workers),
        )
        self._work = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._recompute,
            Kind.BACKWARD: self._backward,
            Kind.LOAD: self._load,
            Kind.STASH: self._stash,
            Kind.FETCH: self._fetch,
            Kind.GRAD_OUT: self._gradients_out,
            Kind.NORM: lambda action, step: self.optimizer.norm(self._steps[step]),
            Kind.UPDATE: self._update,
            Kind.SETTLE: self._settle,
            Kind.MOMENTS: lambda action, step: self.optimizer.moments(
                action.unit, self._steps[step]
            ),
            Kind.PULL: self._pull,
            Kind.PUSH: self._push,
            Kind.READ: self._read,
            Kind.SPILL: self._spill,
        }
        assert self._work.keys() == ON_ONE_DEVICE
        self._passes: dict[LayeredModel, Passes] = {}
        """Of models that had batches here, the first one's first."""
        self._take(model)
        self._replays: RecordedBlocks | None = None
        if name.REPLAYS in schedule.buffers:
            self._replays = RecordedBlocks(
                model, self._modules, self._template, self._boundaries,
                rows=spec.microbatch, recomputed=self._recomputed, meter=memory.meter,
            )  # fmt: skip

    def have(self, model: LayeredModel) -> None:
        """Have these layers pass batches of their form, from the next step on; their weights are
        those of the first model. Raises ValueError for layers that do not fit in the memory."""
        if model is not self.model:
            before = clones(self.statistics)
            self._take(model)
            self.take_up(before)

    def _take(self, model: LayeredModel) -> None:
        if model not in self._passes:
            made, slots = self._passes, {unit: self._slot(unit) for unit in self.memory.streamed}
            make_room(made)
            made[model] = Passes(
                model, self.spec, self.memory, self._flats, slots, self._gradients,
                within=next(iter(made.values()), None),
            )  # fmt: skip
        self.model, of = model, self._passes[model]
        self._boundaries, self._template, self._modules = of.boundaries, of.template, of.modules

    @property
    def statistics(self) -> dict[str, Tensor]:
        """BatchNorm's running ones, by their names in the whole model's `state_dict`."""
        return undivided(self.model, self._units())

    def take_up(self, statistics: Mapping[str, Tensor]) -> None:
        """Have a checkpoint's, by their names there."""
        take_up(self.model, self._units(), statistics)

    def _units(self) -> Iterator[nn.Module]:
        return map(self._modules.__getitem__, range(self.model.num_units))

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """On which passes were recorded, if some were: the compute lane is to run there."""
        return self._replays.stream if self._replays is not None else None

    def perform(self, action: Action, step: int) -> None:
        """Do one action of one step (the executor's `Work`)."""
        if (action.kind, action.unit, action.microbatch) == (Kind.FORWARD, 0, 0):
            self._begin(step)
        state = self._steps.get(step)  # none yet for a load that runs ahead
        if state is None or action.kind not in state.left_out:
            self._work[action.kind](action, step)
        elif action.kind is Kind.BACKWARD and action.microbatch == 0:
            self._gradients.recall(action.unit)
            self.optimizer.see(action.unit, self._gradients[action.unit], state)

    def drop(self, step: int) -> None:
        """Let go of a step that only passed forward, but not of gradients that it was to add to;
        every lane must have ended."""
        held = self._steps[step].carried
        self._forget_passes()
        self._gradients.held = held

    def forget(self) -> None:
        """Let go of what a step that failed has left; every lane must have ended."""
        self._forget_passes()
        self._gradients.forget()

    def _forget_passes(self) -> None:
        for held in (self._steps, self._inputs, self._graphs, self._output_grads):
            held.clear()
        if self._replays is not None:
            self._replays.forget()

    def launch(self) -> bool:
        """Have no recorded passes any more, between two steps; whether there were some."""
        return self._replays is not None and self._replays.let_go()

    def close(self) -> None:
        """Let go of all memory; every lane must have ended."""
        self.forget()
        for passes in self._passes.values():
            passes.modules.clear()
        self._gradients.clear()
        if self._replays is not None:
            self._replays.close()
            self._replays = None

    # -- set-up ---------------------------------------------------------------------------------

    def _slot(self, unit: int, turn: int = 0) -> str:
        return self.schedule.buffers[name.weights(unit, turn)].slot

    def _begin(self, step: int) -> None:
        """Make the shared state of a step, whose first forward action comes."""
        memory = self.memory
        with memory.meter.on_host():
            *inputs, targets = self.batches.batch(step)
            *first, parts = (t.tensor_split(self._micros) for t in (*inputs, targets))
            uniform = [all(self.model.uniform(each)) for each in zip(*first, strict=True)]
            weights = weights_of(self.model, self.batches, step, parts)
            inputs = [t.to(memory.dtype) if t.is_floating_point() else t for t in inputs]
            *inputs, targets = (in_passing(t, memory.device) for t in (*inputs, targets))
        for tensor in (*inputs, targets):
            memory.meter.register(tensor)
        hyper = self.optimizer.begin(step)
        state = StepState(
            index=step,
            inputs=tuple(inputs),
            targets=targets,
            weights=[] if self.bare else weights,
            uniform=uniform,
            samples=self.batches.samples(step),
            hyper=hyper,
            guess=hyper,
            calm=self.optimizer.calm and not self.holds,
            held=self.holds,
            replayed=self._replays.units_of(self.model, parts) if self._replays else NO_UNITS,
            left_out=CHANGES if self.holds else PASSING if self.bare else (),
            skipped=self.holds,
            carried=self._gradients.held,
        )
        self._gradients.held = self.holds
        for unit in () if state.carried else (0, self.model.head):
            memory.gradients(unit).zero_()
        with self._lock:
            self._steps[step] = state
            self._steps.pop(step - 3, None)

    # -- compute lane ---------------------------------------------------------------------------

    def _forward(self, action: Action, step: int) -> None:
        unit, micro, state = action.unit, action.microbatch, self._steps[step]
        if unit in state.replayed:
            x = self._inputs[unit, micro]
            self._inputs[unit + 1, micro] = self._replays.forward(unit, x, state.uniform[micro])
            return
        kept = unit not in self._recomputed
        x = self._input(state, unit, micro, grad=kept)
        with torch.set_grad_enabled(kept):
            y = self._run(state, unit, micro, x)
        if kept:
            self._graphs[unit, micro] = (x, y)
        if unit == self.model.head:
            state.losses.append(y[0].detach())
        else:
            self._inputs[unit + 1, micro] = tuple(t.detach() for t in y)

    def _recompute(self, action: Action, step: int) -> None:
        unit, micro, state = action.unit, action.microbatch, self._steps[step]
        if unit in state.replayed:
            self._replays.recompute(unit, self._inputs[unit, micro], state.uniform[micro])
            return
        x = self._input(state, unit, micro, grad=True)
        with torch.enable_grad():
            self._graphs[unit, micro] = (x, self._run(state, unit, micro, x))

    def _backward(self, action: Action, step: int) -> None:
        unit, micro = action.unit, action.microbatch
        state, last = self._steps[step], self._micros - 1
        x, y = ((), ()) if unit in state.replayed else self._graphs.pop((unit, micro))
        through = [t for t in x if t.requires_grad]
        above = () if unit == self.model.head else self._output_grads.pop((unit, micro))
        if unit in state.replayed:
            back, grads = self._replays.backward(unit, above, state.uniform[micro])
            self._take_gradients(action, state, grads)
        elif self._modules.ends(unit):
            if unit == self.model.head:
                if state.weights[micro]:  # the mean of nothing is no number, nor are its gradients
                    (y[0] / self._micros * state.weights[micro]).backward()
            elif ends := self._ends(unit, y, above):
                torch.autograd.backward(*zip(*ends, strict=True))
            back = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in through)
        else:
            wanted = [*through, *self._modules.parameters(unit)]
            if ends := self._ends(unit, y, above):
                tensors, gradients = zip(*ends, strict=True)
                grads = torch.autograd.grad(tensors, wanted, gradients, materialize_grads=True)
            else:  # nothing is learned below
                grads = tuple(map(torch.zeros_like, wanted))
            back = grads[: len(through)]
            self._take_gradients(action, state, list(grads[len(through) :]))
        if unit:
            self._output_grads[unit - 1, micro] = back
        self._inputs.pop((unit, micro), None)
        if micro == last and not state.held:
            self.optimizer.see(unit, self._gradients[unit], state)

    def _ends(self, unit: int, y: Bundle, above: Bundle) -> list[tuple[Tensor, Tensor]]:
        """Where a backward pass begins: outputs of the unit, each with its gradient."""
        wanted = self._boundaries[unit + 1].differentiable
        back = [t for t, differentiable in zip(y, wanted, strict=True) if differentiable]
        return [(t, g) for t, g in zip(back, above, strict=True) if t.requires_grad]

    def _take_gradients(self, action: Action, state: StepState, grads: list[Tensor]) -> None:
        how = {"first": action.microbatch == 0, "own": action.unit in state.replayed}
        self._gradients.take(action.unit, grads, carried=state.carried, **how)

    def finish(self, step: int) -> tuple[float, StepState]:
        """Mean loss (of a bare step 0) and state of one whose compute lane is done, or Diverged."""
        state = self._steps[step]
        if not state.held:
            self.optimizer.check(state)
        state.inputs, state.targets = (), None
        weighed = zip(state.losses, state.weights, strict=True)
        loss = sum(float(loss) * weight for loss, weight in weighed if weight)
        return loss / max(1, len(state.losses)), state

    # -- transfers ------------------------------------------------------------------------------

    def _load(self, action: Action, step: int) -> None:
        unit = action.unit
        slot = self._slot(unit, action.turn)
        source = self.memory.host_weights(unit)
        self.traffic.copy("load", self.memory.weight_slots[slot][: source.numel()], source)

    def _gradients_out(self, action: Action, step: int) -> None:
        self._gradients.out(action.unit, held=self._steps[step].held)

    def _stash(self, action: Action, step: int) -> None:
        key = (action.unit, action.microbatch)
        source = self._inputs.pop(key)
        for target, own in zip(self._stashed(*key, step), source, strict=True):
            self.traffic.copy("store", target, own)
            read_here(own)

    def _fetch(self, action: Action, step: int) -> None:
        key = (action.unit, action.microbatch)
        slot = self.schedule.buffers[name.activation(*key, 1)].slot
        fetched = self.memory.fetched(slot)
        target = self._carved(*key, step, fetched)
        for own, source in zip(target, self._stashed(*key, step), strict=True):
            self.traffic.copy("load", own, source)
        self._inputs[key] = target

    def _stashed(self, unit: int, micro: int, step: int) -> Bundle:
        """Where a unit's input lies on the host."""
        return self._carved(unit, micro, step, self.memory.host_activation(unit, micro))

    def _carved(self, unit: int, micro: int, step: int, raw: Tensor) -> Bundle:
        rows = self._rows(self._steps[step], micro)
        return self._boundaries[unit].carve(raw, rows.stop - rows.start)

    def _pull(self, action: Action, step: int) -> None:
        # The only visit of a step may begin before the step does.
        if not action.turn or self.optimizer.comes(action.unit, action.turn, self._steps[step]):
            home, visiting = self.memory.visit(action.unit, action.turn)
            self.traffic.copy("load", visiting, home)

    def _push(self, action: Action, step: int) -> None:
        if self.optimizer.goes(action.unit, action.turn, self._steps[step]):
            home, visiting = self.memory.visit(action.unit, action.turn)
            self.traffic.copy("store", home, visiting)

    def _read(self, action: Action, step: int) -> None:
        self.traffic.count("read", self.memory.read_states(action.unit))

    def _spill(self, action: Action, step: int) -> None:
        self.traffic.count("write", self.memory.write_states(action.unit))

    def _update(self, action: Action, step: int) -> None:
        unit, state = action.unit, self._steps[step]
        if unit not in self.memory.resident:
            self.optimizer.update(unit, state)
            return
        joined = any(map(name.is_scratch, action.takes))
        self.optimizer.update_resident(unit, state, self._gradients[unit], joined=joined)
        if unit not in self.optimizer.awaiting:
            self._gradients.drop(unit)

    def _settle(self, action: Action, step: int) -> None:
        unit, state = action.unit, self._steps[step]
        if unit not in self.memory.resident:
            self.optimizer.settle(unit, state)
            return
        self.optimizer.settle_resident(unit, state, self._gradients[unit])
        self._gradients.drop(unit)

    # -- small answers --------------------------------------------------------------------------

    def _run(self, state: StepState, unit: int, micro: int, x: Bundle) -> Bundle:
        rows = self._rows(state, micro)
        how = {"samples": state.samples[rows], "uniform": state.uniform[micro]}
        ctx = Context(seed=self.spec.seed, step=state.index, unit=unit, **how)
        targets = state.targets[rows] if unit == self.model.head else None
        module = self._modules[unit]
        return bundled(self._template.forward(unit, module, single(x), ctx, targets))

    def _input(self, state: StepState, unit: int, micro: int, *, grad: bool) -> Bundle:
        if unit == 0:
            return tuple(t[self._rows(state, micro)] for t in state.inputs)
        x, wanted = self._inputs[unit, micro], self._boundaries[unit].differentiable
        if not grad:
            return x
        return tuple(t.detach().requires_grad_(d) for t, d in zip(x, wanted, strict=True))

    def _rows(self, state: StepState, micro: int) -> slice:
        return slice(*even_share(len(state.samples), micro, self._micros))
