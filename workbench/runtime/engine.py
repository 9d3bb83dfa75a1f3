"""What each action does to a layered model: the work behind any single-device schedule.

The schedule decides what happens when; the engine knows only how. It owns the memory (storage.py,
tiers.py) and finds a unit's place by the slot its buffer names in the schedule, so a new method
needs no code here. Exactness is the contract: gradients accumulate over micro-batches in order,
random numbers are keyed, the clip coefficient is the global one, and every update of a step sees
the same snapshot of learning rate, step number and coefficient.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from workbench.model.base import Context, LayeredModel
from workbench.model.text import Batches
from workbench.runs.spec import RunSpec
from workbench.runtime import device_adam, host_adam
from workbench.runtime.adam_step import AdamStep
from workbench.runtime.memory import Memory
from workbench.runtime.storage import Flat
from workbench.runtime.threads import cpu_threads
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind, lane_kind
from workbench.schedule.schedule import Schedule


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
    """Per-parameter gradient norms, in the order units finish."""
    grad_norm: float | None = None
    skipped: bool = False


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
        self.memory = memory
        self.moved = {"load": 0, "store": 0, "read": 0, "write": 0}
        self.link_bytes_per_s = spec.link_bytes_per_s
        if self.link_bytes_per_s and memory.device.type != "cpu":
            raise ValueError(
                f"a link of {self.link_bytes_per_s:g} bytes/s cannot be emulated on "
                f"{memory.device}; leave link_bytes_per_s out, or use the cpu"
            )
        self.updates_done = 0
        """Optimizer steps applied so far; skipped steps do not count."""
        self._lock = threading.Lock()
        self._steps: dict[int, Step] = {}
        self._deferred = any(a.kind is Kind.NORM for a in schedule.actions)
        self._recomputed = {a.unit for a in schedule.actions if a.kind is Kind.RECOMPUTE}
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._graphs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._output_grads: dict[tuple[int, int], Tensor] = {}
        self._modules: dict[int, nn.Module] = {}
        self._slots: dict[tuple[str, str], nn.Module] = {}
        """One module for each slot and kind of unit, a view of the slot for good."""
        self._gradients: dict[int, list[Tensor]] = {}
        """Unit -> views of its gradients on the device, in the order of its pieces. Made once: two
        operations a parameter would be a sixth of all that a small model's step dispatches."""
        self._flats = [Flat.of(model, unit) for unit in range(model.num_units)]
        workers = len({a.lane for a in schedule.actions if lane_kind(a.lane) == "host"}) or 1
        threads = cpu_threads(memory.device.type)
        self._device_threads = threads.compute
        self._host_threads = max(1, threads.host // workers)
        self._work = {
            Kind.FORWARD: self._forward,
            Kind.RECOMPUTE: self._recompute,
            Kind.BACKWARD: self._backward,
            Kind.LOAD: self._load,
            Kind.STASH: self._stash,
            Kind.FETCH: self._fetch,
            Kind.GRAD_OUT: self._gradients_out,
            Kind.NORM: self._norm,
            Kind.UPDATE: self._update,
            Kind.READ: self._read,
            Kind.SPILL: self._spill,
        }
        self._fill()

    def perform(self, action: Action, step: int) -> None:
        """Do one action of one step (the executor's `Work`)."""
        self._work[action.kind](action, step)

    def close(self) -> None:
        """Let go of all memory; every lane must have ended."""
        for held in (
            self._steps,
            self._inputs,
            self._graphs,
            self._output_grads,
            self._modules,
            self._slots,
            self._gradients,
        ):
            held.clear()

    # -- set-up ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Write initial weights, one unit at a time, and point the resident units' modules."""
        memory, dtype = self.memory, self.memory.dtype
        for unit, flat in enumerate(self._flats):
            states = memory.states(unit)
            built = self.model.build(unit, seed=self.spec.seed)
            if memory.on_disk(unit) and states.working is not None:
                staging = torch.empty(flat.numel)
                flat.copy_in(built, staging)
                states.working.copy_(staging)
                memory.seed_disk(unit, staging)
            else:
                flat.copy_in(built, states.master)
                if states.working is not None:
                    states.working.copy_(states.master)
            slab = self._gradient_slab(unit)
            self._gradients[unit] = [view for _, view in flat.views(slab)]
            if unit in memory.resident:
                module = self.model.shell(unit, device=memory.device, dtype=dtype)
                flat.point_weights(module, memory.weights(unit))
                flat.point_gradients(module, self._gradients[unit])
                self._modules[unit] = module
        for (unit, local), (owner, owners) in self.model.tied().items():
            shared = self._modules[owner].get_parameter(owners)
            path, _, leaf = local.rpartition(".")
            setattr(self._modules[unit].get_submodule(path), leaf, shared)
        for unit in memory.streamed:
            slot = self.schedule.buffers[name.weights(unit)].slot
            key = (slot, self.model.kind(unit))
            if key not in self._slots:
                module = self.model.shell(unit, device=memory.device, dtype=dtype)
                slab = memory.weight_slots[slot][: self._flats[unit].numel]
                self._flats[unit].point_weights(module, slab)
                self._slots[key] = module

    def _begin(self, step: int) -> Step:
        """The shared state of a step; the first forward action makes it."""
        spec, memory = self.spec, self.memory
        with memory.meter.on_host():
            tokens, targets = (t.to(memory.device) for t in self.batches.batch(step))
        memory.meter.register(tokens)
        memory.meter.register(targets)
        hyper = AdamStep(
            step=self.updates_done + 1,
            lr=spec.learning_rate(step),
            beta1=spec.beta1,
            beta2=spec.beta2,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
        )
        state = Step(
            index=step,
            tokens=tokens,
            targets=targets,
            samples=self.batches.samples(step),
            hyper=hyper,
        )
        for unit in memory.resident:
            memory.gradients(unit).zero_()
        if not self._deferred:
            self.updates_done += 1
        with self._lock:
            self._steps[step] = state
            for old in [s for s in self._steps if s < step - 2]:
                del self._steps[old]
        return state

    # -- compute lane ---------------------------------------------------------------------------

    def _forward(self, action: Action, step: int) -> None:
        unit, micro = action.unit, action.microbatch
        state = self._begin(step) if (unit, micro) == (0, 0) else self._steps[step]
        kept = unit not in self._recomputed
        x = self._input(state, unit, micro, grad=kept)
        with torch.set_grad_enabled(kept):
            y = self._run(state, unit, micro, x)
        if kept:
            self._graphs[unit, micro] = (x, y)
        if unit == self.model.head:
            state.losses.append(y.detach())
        else:
            self._inputs[unit + 1, micro] = y.detach()

    def _recompute(self, action: Action, step: int) -> None:
        unit, micro = action.unit, action.microbatch
        state = self._steps[step]
        x = self._input(state, unit, micro, grad=True)
        with torch.enable_grad():
            self._graphs[unit, micro] = (x, self._run(state, unit, micro, x))

    def _backward(self, action: Action, step: int) -> None:
        unit, micro = action.unit, action.microbatch
        state, last = self._steps[step], self.schedule.num_microbatches - 1
        if micro == 0 and unit not in self.memory.resident:
            self._gradient_slab(unit).zero_()
            self._flats[unit].point_gradients(self._module(unit), self._gradients[unit])
        x, y = self._graphs.pop((unit, micro))
        if unit == self.model.head:
            (y / self.schedule.num_microbatches).backward()
        else:
            y.backward(self._output_grads.pop((unit, micro)))
        self._inputs.pop((unit, micro), None)
        if unit:
            self._output_grads[unit - 1, micro] = x.grad
        if micro == last and self._deferred:
            state.norms += torch._foreach_norm(self._gradients[unit], 2)

    def _norm(self, action: Action, step: int) -> None:
        """Exact global norm: clip coefficient and non-finite check, before any update."""
        state = self._steps[step]
        total = float(torch.linalg.vector_norm(torch.stack([n.float() for n in state.norms])))
        state.norms.clear()
        state.grad_norm = total
        state.skipped = not math.isfinite(total)
        scale = 1.0
        if self.spec.clip is not None and not state.skipped:
            scale = min(1.0, self.spec.clip / (total + 1e-6))
        hyper = state.hyper
        state.hyper = AdamStep(
            step=self.updates_done + 1,
            lr=hyper.lr,
            beta1=hyper.beta1,
            beta2=hyper.beta2,
            eps=hyper.eps,
            weight_decay=hyper.weight_decay,
            grad_scale=scale,
        )
        if not state.skipped:
            self.updates_done += 1

    def finish(self, step: int) -> tuple[float, Step]:
        """Mean loss and shared state of a step whose compute lane is done."""
        state = self._steps[step]
        state.tokens = state.targets = None
        return sum(float(loss) for loss in state.losses) / len(state.losses), state

    # -- transfers ------------------------------------------------------------------------------

    def _load(self, action: Action, step: int) -> None:
        unit = action.unit
        slot = self.schedule.buffers[name.weights(unit, action.turn)].slot
        source = self.memory.host_weights(unit)
        self._copy(self.memory.weight_slots[slot][: source.numel()], source)
        self._modules[unit] = self._slots[slot, self.model.kind(unit)]
        self._count("load", source.nbytes)

    def _copy(self, target: Tensor, source: Tensor) -> None:
        """One transfer over the link, at the emulated link's rate if there is one."""
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if self.link_bytes_per_s:
            due = start + source.nbytes / self.link_bytes_per_s
            time.sleep(max(0.0, due - time.perf_counter()))

    def _gradients_out(self, action: Action, step: int) -> None:
        source = self._gradient_slab(action.unit)
        self._copy(self.memory.host_gradients(action.unit), source)
        self._count("store", source.nbytes)

    def _stash(self, action: Action, step: int) -> None:
        key = (action.unit, action.microbatch)
        source = self._inputs.pop(key)
        self._copy(self.memory.host_activation(*key, like=source), source)
        if source.is_cuda:  # allocated on the compute stream, read on this one
            source.record_stream(torch.cuda.current_stream())
        self._count("store", source.nbytes)

    def _fetch(self, action: Action, step: int) -> None:
        key = (action.unit, action.microbatch)
        slot = self.schedule.buffers[name.activation(*key, 1)].slot
        source = self.memory.host_activation(*key)
        target = self.memory.fetched(slot, like=source)
        self._copy(target, source)
        self._inputs[key] = target
        self._count("load", source.nbytes)

    def _read(self, action: Action, step: int) -> None:
        self._count("read", self.memory.read_states(action.unit))

    def _spill(self, action: Action, step: int) -> None:
        self._count("write", self.memory.write_states(action.unit))

    # -- updates --------------------------------------------------------------------------------

    def _update(self, action: Action, step: int) -> None:
        unit, state = action.unit, self._steps[step]
        if state.skipped:
            return
        states, flat = self.memory.states(unit), self._flats[unit]
        if unit in self.memory.resident:
            update, threads = device_adam.update, self._device_threads
            grad = self.memory.gradients(unit)
        else:
            update, threads = host_adam.update, self._host_threads
            grad = self.memory.host_gradients(unit)
        update(
            states.master,
            states.exp_avg,
            states.exp_avg_sq,
            grad,
            state.hyper,
            decay_split=flat.decay_split,
            working=states.working,
            threads=threads,
        )

    # -- small answers --------------------------------------------------------------------------

    def _run(self, state: Step, unit: int, micro: int, x: Tensor) -> Tensor:
        rows = self._rows(state, micro)
        ctx = Context(seed=self.spec.seed, step=state.index, unit=unit, samples=state.samples[rows])
        targets = state.targets[rows] if unit == self.model.head else None
        return self.model.forward(unit, self._module(unit), x, ctx, targets)

    def _input(self, state: Step, unit: int, micro: int, *, grad: bool) -> Tensor:
        if unit == 0:
            return state.tokens[self._rows(state, micro)]
        x = self._inputs[unit, micro]
        return x.detach().requires_grad_() if grad else x

    def _rows(self, state: Step, micro: int) -> slice:
        size = len(state.samples) // self.schedule.num_microbatches
        return slice(micro * size, (micro + 1) * size)

    def _module(self, unit: int) -> nn.Module:
        return self._modules[unit]

    def _gradient_slab(self, unit: int) -> Tensor:
        if unit in self.memory.resident:
            return self.memory.gradients(unit)
        slot = self.schedule.buffers[name.gradients(unit)].slot
        return self.memory.gradient_slots[slot][: self._flats[unit].numel]

    def _count(self, way: str, nbytes: int) -> None:
        with self._lock:
            self.moved[way] += nbytes
