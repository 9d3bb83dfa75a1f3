"""Passes of one rank over its units: forward, backward, and backward in two halves.

Where a unit's weights lie, where its input comes from and where its output goes is written in the
schedule (links.py); what a pass keeps for another one is kept here. With CUDA graphs a block's
passes are replayed instead (replay.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from workbench.model.base import Context
from workbench.model.weighing import weight_of_step
from workbench.runtime.memory.pack_memory import PackMemory
from workbench.runtime.passes.activation_store import ActivationStore
from workbench.runtime.passes.alike import Alike
from workbench.runtime.passes.bundle import Boundary, Bundle, bundled, single
from workbench.runtime.passes.chains import RecordedPass, recorded_passes
from workbench.runtime.passes.differentiation import Above, Differentiation
from workbench.runtime.passes.links import Links
from workbench.runtime.passes.rank_context import RankContext
from workbench.runtime.passes.replay import Chain, Replays
from workbench.runtime.passes.statistics import Statistics
from workbench.runtime.passes.template import Template, compiles
from workbench.schedule import buffers as name
from workbench.schedule.action import Action, Kind


@dataclass
class RankStepState:
    """State of one step that this rank's actions share."""

    inputs: Bundle
    targets: Tensor
    """Targets of all samples that pass this rank, on the device."""
    samples: tuple[int, ...]
    """Their global numbers."""
    counts: list[int]
    """How many labels of each count, where this rank runs the head."""
    weight: int
    """Labels that count in the whole minibatch."""
    uniform: list[bool]
    """Whether each sample is uniform (`LayeredModel.uniform`)."""
    losses: list[Tensor] = field(default_factory=list)
    """Parts of the minibatch's mean loss."""


class RankPasses:
    """Performs a rank's passes; `statistics` are BatchNorm's, of the layers that it runs."""

    def __init__(
        self, context: RankContext, *, links: Mapping[str, Links], span: tuple[int, int],
        memory: PackMemory, activations: ActivationStore, boundaries: Mapping[int, Boundary],
        complete: Callable[[Action], None],
    ) -> None:  # fmt: skip
        """`span` are the samples that pass the rank, counted among those of its replica. `complete`
        hears of each pass that has added to gradients."""
        model, schedule, spec = context.model, context.schedule, context.spec
        mine, replica, rank = context.actions, context.board.replica, context.board.position
        self._model, self._spec, self._batches = model, spec, context.batches
        self._links, self._memory, self._activations = links, memory, activations
        self._complete, device, dtype = complete, context.device, context.dtype
        self._meter, self._device, self._dtype = context.meter, device, dtype
        self._first, self._end = span
        self._ahead, _ = schedule.mesh.share(spec.batch, replica)
        """Samples of the minibatch that are other replicas', before this one's."""
        self._full = span[1] - span[0] if schedule.replicas > 1 else schedule.num_microbatches
        """Micro-batches that are not empty. Those after them repeat a sample, which counts there
        for nothing."""
        self._heads = any(a.unit == model.head and a.microbatch is not None for a in mine)
        """Whether losses are made here."""
        self._steps: dict[int, RankStepState] = {}
        self._autograd = Differentiation()
        halved = any(action.kind is Kind.WEIGHT_GRAD for action in schedule.actions)
        # A compiled block is one node of autograd's, which has no halves.
        compiled = not halved and compiles(spec.compile, device.type, dtype)
        self._template = Template(model, compiled=compiled)
        self._alike = Alike(boundaries)
        self._boundaries = boundaries
        self._recorded: dict[str, RecordedPass] = {}
        """Passes that are recorded, by action."""
        self._replays: Replays | None = None
        if name.on_rank(rank, name.REPLAYS) in schedule.buffers:
            self._record(mine)
        modules = self._differentiated(mine)
        self.statistics = Statistics(model, schedule, rank, modules, spec.batch, replica)

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """On which passes were recorded, if some were: the compute lane is to run there."""
        return self._replays.stream if self._replays is not None else None

    def end_step(self, step: int) -> float | None:
        """This rank's part of a step's loss; None where it had no work."""
        state = self._steps.pop(step, None)
        return None if state is None else sum(float(loss) for loss in state.losses)

    def prepare(self, step: int) -> None:
        """Get a step's samples: its first pass would wait for them, and the ranks behind it."""
        self._state(step)

    def forget(self) -> None:
        """Let go of what a step that failed has left."""
        self._autograd.forget()
        self._steps.clear()
        self.statistics.forget()

    def close(self) -> None:
        """Let go of all memory; every lane must have ended."""
        if self._replays is not None:
            self._replays.close()
            self._replays = None
        self._autograd.forget()
        self._steps.clear()
        self._recorded.clear()

    def _record(self, mine: Sequence[Action]) -> None:
        """The passes of blocks."""
        memory = self._memory
        self._recorded = recorded_passes(mine, self._links, memory.modules, self._model.head)
        recorded: tuple[dict, dict, dict] = {}, {}, {}  # as `Replays.record` takes them
        kinds = {action.name: action.kind for action in mine}
        for label, one in self._recorded.items():
            alone = 2 if kinds[label] is Kind.BACKWARD else 0
            recorded[alone if one.index is None else 1][one.key] = Chain(
                kinds=tuple(map(self._model.kind, one.units)),
                modules=one.modules,
                parameters=tuple(memory.parameters[module] for module in one.modules),
                rows=one.rows,
            )
        unit = min(unit for one in self._recorded.values() for unit in one.units)
        self._replays = Replays(
            self._template.block, self._boundaries[unit], self._meter,
            checkpointed=self._template.checkpointed_block,
        )  # fmt: skip
        self._replays.record(*recorded)

    def _differentiated(self, mine: Sequence[Action]) -> dict[int, nn.Module]:
        """Unit -> the module of its passes that keep what backward passes need."""
        passes = [a for a in mine if name.keeps(a)]
        return {a.unit: self._memory.modules[self._links[a.name].weights] for a in passes}

    def _state(self, step: int) -> RankStepState:
        if step not in self._steps:
            first, end = self._ahead + self._first, self._ahead + self._end
            minibatch, counts, weight = self._batches.samples(step), [], 0
            samples = minibatch[first:end]
            with self._meter.on_host():
                rows = self._batches.rows(samples)
                if self._heads:
                    others = minibatch[:first] + minibatch[end:]
                    counts = self._model.counted(rows[-1])
                    weight = weight_of_step(self._model, self._batches, step, counts, others)
                uniform = self._model.uniform(rows[:-1])
                *inputs, targets = (t.to(self._device) for t in rows)
                inputs = tuple(t.to(self._dtype) if t.is_floating_point() else t for t in inputs)
            self._steps[step] = RankStepState(
                inputs=inputs, targets=targets, samples=samples, counts=counts, weight=weight,
                uniform=uniform,
            )  # fmt: skip
        return self._steps[step]

    def _uniform(self, action: Action, step: int) -> bool:
        first, end = action.span
        return all(self._state(step).uniform[first - self._first : end - self._first])

    def _share(self, action: Action, step: int) -> float:
        """The share of a micro-batch's mean loss in that of the minibatch."""
        if action.microbatch >= self._full:
            return 0.0
        state, (first, end) = self._steps[step], action.span
        return sum(state.counts[first - self._first : end - self._first]) / state.weight

    def forward(self, action: Action, links: Links, step: int) -> None:
        """A pass that keeps what its backward pass needs, where the schedule has memory for it."""
        if action.name in self._recorded:
            self._replay_forward(action, links, step)
            return
        unit, state, span = action.unit, self._state(step), action.span
        keeps = name.keeps(action)
        rows = slice(span[0] - self._first, span[1] - self._first)
        x = (
            tuple(t[rows] for t in state.inputs)
            if unit == 0
            else self._activations.read(links.source, span)
        )
        ctx = Context(
            seed=self._spec.seed, step=step, unit=unit, samples=state.samples[rows],
            uniform=self._uniform(action, step),
        )  # fmt: skip
        targets = state.targets[rows] if unit == self._model.head else None
        module = self._memory.modules[links.weights]
        if keeps:
            self.statistics.begin(unit, span)

        def run(x: Bundle) -> Bundle:
            if name.checkpoints(action):
                return bundled(self._template.checkpointed(unit, module, single(x), ctx))
            return bundled(self._template.forward(unit, module, single(x), ctx, targets))

        wanted = self._activations.boundary_of(unit).differentiable if unit else [False] * len(x)
        key = unit, action.microbatch
        y = self._autograd.forward(key, run, x, wanted if keeps else None)
        if unit == self._model.head:
            share = self._share(action, step)  # the mean of nothing is no number
            state.losses.append(y[0].detach() * share if share else torch.zeros_like(y[0]))
        elif links.target is not None:
            self._alike.see(unit, step, y)
            self._activations.write(links.target, tuple(t.detach() for t in y), action)
        self._activations.drop(action, step)

    def _replay_forward(self, action: Action, links: Links, step: int) -> None:
        one, span, y = self._recorded[action.name], action.span, None
        key = one.key, self._uniform(action, step)
        x = self._activations.read(links.source, span) if one.first else None
        if one.index is None:
            y = self._replays.forward(key, x)
        else:
            self._replays.recompute(key, x, one.index)
            if one.last and links.target is not None:
                y = self._replays.output(key)
        if y is not None:
            self._activations.write(links.target, y, action, borrowed=True)
        self._activations.drop(action, step)

    def _replay_backward(self, action: Action, links: Links, step: int) -> list[Tensor]:
        one, span = self._recorded[action.name], action.span
        key = one.key, self._uniform(action, step)
        above = self._activations.read(links.output_gradient, span) if one.last else ()
        if one.index is None:
            x = self._activations.read(links.source, span)
            input_grads, grads = self._replays.from_checkpoint(key, x, above)
        else:
            input_grads, grads = self._replays.backward(key, above, one.index)
        if input_grads:
            self._activations.write(links.input_gradient, input_grads, action, borrowed=True)
        return grads

    def backward(self, action: Action, links: Links, step: int) -> None:
        """A whole backward pass."""
        if action.name in self._recorded:
            grads = self._replay_backward(action, links, step)
        else:
            grads = self._differentiate(action, links, step)
        self._add(action, links, grads)
        self._activations.drop(action, step)

    def input_half(self, action: Action, links: Links, step: int) -> None:
        """The half of a backward pass that makes the gradient of the input."""
        key, parameters = (action.unit, action.microbatch), self._parameters(links)
        grads = self._autograd.input_half(key, self._above(action, links, step), parameters)
        self._activations.write(links.input_gradient, grads, action)
        self._activations.drop(action, step)

    def weight_half(self, action: Action, links: Links, step: int) -> None:
        """The half that makes the gradients of the weights."""
        if action.unit:
            grads = self._autograd.weight_half((action.unit, action.microbatch))
            self.statistics.end(action.unit, action.span)
        else:  # whose input has no gradient
            grads = self._differentiate(action, links, step)
        self._add(action, links, grads)
        self._activations.drop(action, step)

    def _add(self, action: Action, links: Links, grads: Sequence[Tensor]) -> None:
        """Add gradients of a micro-batch to those of the micro-batches before."""
        views = self._memory.gradients[links.gradients]
        if views:  # a layer may have no weights
            first = links.gradients in action.takes
            (torch._foreach_copy_ if first else torch._foreach_add_)(views, grads)
        self._complete(action)

    def _parameters(self, links: Links) -> Sequence[Tensor]:
        return self._memory.parameters[self._memory.modules[links.weights]]

    def _above(self, action: Action, links: Links, step: int) -> Above:
        """The beginning of a backward pass."""
        if action.unit == self._model.head:
            return Above(share=self._share(action, step))
        wanted = self._activations.boundary_of(action.unit + 1).differentiable
        return Above(self._activations.read(links.output_gradient, action.span), wanted)

    def _differentiate(self, action: Action, links: Links, step: int) -> Bundle:
        """A backward pass; the parameters' gradients."""
        key, above = (action.unit, action.microbatch), self._above(action, links, step)
        through, grads = self._autograd.backward(key, above, self._parameters(links))
        self.statistics.end(action.unit, action.span)
        if action.unit:
            self._activations.write(links.input_gradient, through, action)
        return grads
