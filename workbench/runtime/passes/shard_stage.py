"""Consecutive operators of a model as a stage, each divided over the stage's processes by itself.

A tensor between operators lies as the one before made it; the one that reads it says how it needs
it, and whatever is between is an exchange that autograd differentiates. So stages are cut anywhere,
also inside attention, a residual passes as many stages as it must, and tp, dp and the partition
dimension change where the plan says so. Operators that a plan recomputes are computed again in
segments, which end where a layer starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.core.division import even_share
from workbench.core.model_spec import ModelSpec
from workbench.model.base import Context, LayeredModel
from workbench.model.operators.operator import OperatorList
from workbench.model.operators.place import Form, Place
from workbench.model.operators.places import fused, handed
from workbench.model.sharded import MODULES
from workbench.model.sharded.base import Rows, Sharded, of_unit
from workbench.model.sharded.pictures import BatchNorm
from workbench.model.sharded.transformer import Attention
from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.shard_ends import MAIN, Crossing, Setting
from workbench.runtime.passes.shard_runs import Call, Held, Joined, Run, runs_of, spread_of
from workbench.runtime.transport.boxes import Spread, sizes
from workbench.runtime.transport.collectives import Columns, spread
from workbench.runtime.transport.group_transport import Form as MessageForm
from workbench.runtime.transport.stage_groups import StageGroups

TARGETS = "targets"
Key = tuple[int, str]
"""Unit, and name of a parameter in it."""


class MicroRows(NamedTuple):
    """A micro-batch on the device, the rows of all processes."""

    inputs: Mapping[str, Tensor]
    """Of the model, by their numbers, and the targets, by `TARGETS`."""
    ctx: Context
    """Its unit does not matter."""
    labels: int | None
    """Number of labels that count; None where all do."""


class ShardStage:
    """A `StageModule` (stage_passes.py). Weights and tensors of passes are of its dtype."""

    def __init__(
        self, operators: OperatorList, places: list[Place], model: LayeredModel,
        spec: ModelSpec, *, first: int, settings: Sequence[Setting], came: Sequence[Crossing],
        goes: Sequence[Crossing], groups: StageGroups, device: torch.device, dtype: torch.dtype,
        fuses: bool = True, compiled: bool = False,
        turn: Callable[[int, bool], None] = lambda operator, backward: None,
    ) -> None:  # fmt: skip
        """Operators from the `first` on, one a setting. `came` and `goes` cross the stage's ends.
        `fuses`: attention is one call where all of it is divided alike. `compiled`: runs of
        operators are, unless something is dropped. `turn` is told of each
        operator of the model whose pass begins here, and whether that is a backward pass."""
        self.model, self.device, self.dtype, self._spec = model, device, dtype, spec
        self.first, self.last = first == 0, first + len(settings) == len(operators)
        self._list, self._places, self._groups = operators, places, groups
        self._came, self._goes, self._turn = came, goes, turn
        self.calls = [*self._calls(first, settings, fuses)]
        self._alone, self._settled = groups.width == 1, False
        there = {each.name: each.behind for each in came}
        self._runs = [*runs_of(self.calls, there, self._alone)]
        self._joined = Joined() if compiled and not spec.dropout else None
        self._steps: dict[int, Sequence[MicroRows]] = {}

    # -- weights --------------------------------------------------------------------------------

    def draw(self, weights: Callable[[Key], Tensor], dtype: torch.dtype) -> None:
        """Make the shards from the initial weights of the whole model, which `weights` gives."""
        tied = self.model.tied()
        for call in self.calls:
            place = call.module.place

            def whole(name: str, place: Place = place) -> Tensor:
                own = place.unit, place.local(name)
                return weights(tied.get(own, own)).detach().to(dtype)

            call.module.take(whole, self.device)

    def parameters(self) -> Iterator[tuple[Key, nn.Parameter]]:
        """Shard of each parameter."""
        for call in self.calls:
            place = call.module.place
            for name, own in call.module.owned().items():
                yield (place.unit, place.local(name)), own

    def statistics(self) -> dict[str, Tensor]:
        """Running ones of its norms, by their names in the whole model."""
        return {
            self.model.state_name(place.unit, place.local(name)): value
            for module in (call.module for call in self.calls) if isinstance(module, BatchNorm)
            for place in (module.place,) for name, value in module.statistics().items()
        }  # fmt: skip

    # -- messages -------------------------------------------------------------------------------

    def came(self, samples: int) -> list[MessageForm]:
        """Tensors from the stage before: this process's boxes."""
        return self._forms([(each.form, each.behind) for each in self._came], samples)

    def goes(self, samples: int) -> list[MessageForm]:
        """Tensors for the stage behind: this process's boxes."""
        return self._forms([(each.form, each.front) for each in self._goes], samples)

    def _forms(self, ends: Sequence[tuple[Form, Spread]], samples: int) -> list[MessageForm]:
        process = self._groups.process
        return [
            (sizes(where.box(form.shape(samples), process)), self.dtype, True)
            for form, where in ends
        ]

    # -- passes ---------------------------------------------------------------------------------

    def begin(self, step: int, rows: Sequence[MicroRows]) -> None:
        """Before a step: each of its micro-batches, whole."""
        self._steps[step] = rows

    def end(self, step: int) -> None:
        """Let go of a step's rows."""
        del self._steps[step]
        self._settled = True

    def given(self, micro: int, step: int) -> MicroRows:
        """A micro-batch of a step, whose pass begins."""
        self._turn(self.calls[0].operator, False)
        return self._steps[step][micro]

    give = begin

    @property
    def records(self) -> bool:
        """Whether passes may be recorded now: on a GPU, after a step in which they were compiled,
        where nobody is exchanged with, and nothing but tensors tells micro-batches apart."""
        if self.device.type != "cuda" or self._joined is None or not self._settled:
            return False
        norms = any(isinstance(call.module, BatchNorm) for call in self.calls)
        rows = (each for own in self._steps.values() for each in own)
        return self._alone and not norms and all(each.labels is None for each in rows)

    def addresses(self) -> list[int]:
        """Where the weights and their gradients lie."""
        own = [weight for _, weight in self.parameters()]
        return [each.data_ptr() for weight in own for each in (weight, weight.grad)]

    def run(self, came: Bundle, micro: int, step: int) -> Bundle:
        """A pass over a micro-batch of a step. Returns tensors for the stage behind, or this
        process's part of the mean loss, a scalar."""
        rows = self._steps[step][micro]
        held = {
            each.name: Held(tensor, each.form, each.behind)
            for each, tensor in zip(self._came, came, strict=True)
        }
        for number, runs in groupby(self._runs, lambda run: run.segment):
            held = self._pass([*runs], held, rows, again=number >= 0)
        if self.last:
            return (held[MAIN].tensor,)
        samples = len(rows.ctx.samples)
        return tuple(self._needed(held[each.name], each.front, samples) for each in self._goes)

    def _pass(
        self, runs: Sequence[Run], held: dict[str, Held], rows: MicroRows, *, again: bool
    ) -> dict[str, Held]:
        """Runs of one segment, with checkpoints of its inputs where it is computed `again`."""
        again = again and torch.is_grad_enabled()
        if not again or (len(runs) == 1 and self._joins(runs[0])):
            for run in runs:
                held = self._run(run, held, rows, again=again)
            return held
        came = {name: each._replace(tensor=None) for name, each in held.items()}
        made: dict[str, Held] = {}  # without tensors, too: autograd keeps this function

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            inner = _with(came, tensors)
            for each in runs:
                inner = self._run(each, inner, rows, repeats=bool(made))
            made.update({name: each._replace(tensor=None) for name, each in inner.items()})
            return tuple(each.tensor for each in inner.values())

        tensors = (each.tensor for each in held.values())
        out = checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False)
        return _with(made, out)

    def _joins(self, run: Run) -> bool:
        return self._joined is not None and run.joins

    def _run(
        self, run: Run, held: dict[str, Held], rows: MicroRows, *, again: bool = False,
        repeats: bool = False,
    ) -> dict[str, Held]:  # fmt: skip
        """One run; `again`: its graph has a checkpoint."""
        if not self._joins(run):
            for call in run.calls:
                self._call(call, held, rows, repeats=repeats)
            return held
        self._turn(run.calls[0].operator, False)
        held = run.joined(self._joined, held, again=again)
        self._tell_back(run.calls[-1], held[MAIN].tensor)
        return held

    def _tell_back(self, call: Call, made: Tensor) -> None:
        """Have it told that the backward pass of a call begins."""
        if made.requires_grad:  # its gradient is there: its own backward pass is next
            made.register_hook(lambda _: self._turn(call.operator, True))

    def _call(
        self, call: Call, held: dict[str, Held], rows: MicroRows, *, repeats: bool = False
    ) -> None:
        """One module: what it needs as it needs it, and what it leaves."""
        self._turn(call.operator, False)
        samples, own = len(rows.ctx.samples), self._rows(call, rows, repeats=repeats)
        x = own.inputs[0] if self.first and call is self.calls[0] else None
        if call.takes is not None:
            x = self._needed(held[MAIN], call.takes, samples)
        read = [self._needed(held[name], each, samples) for name, each in call.reads.items()]
        made = call.module(x, own, *read)
        made, second = made if isinstance(made, tuple) else (made, None)
        self._tell_back(call, made)
        for name in call.ends:
            held.pop(name, None)
        tensors = {MAIN: made}
        if call.makes is not None:
            extra, what, _ = call.makes
            tensors[extra.name] = {"input": x, "second": second, "output": made}[what]
        held.update((name, each._replace(tensor=tensors[name])) for name, each in call.made.items())

    def _rows(self, call: Call, rows: MicroRows, *, repeats: bool) -> Rows:
        setting, whole = call.setting, len(rows.ctx.samples)
        first, end = even_share(whole, self._groups.process // setting.tp, setting.dp)
        ctx = of_unit(rows.ctx, call.module.place.unit, first, end)
        *inputs, targets = (each[first:end] for each in rows.inputs.values())
        every, number = rows.labels is None, rows.inputs[TARGETS].numel()
        labels = number if every else rows.labels
        return Rows(tuple(inputs), targets, ctx, labels, every, whole, repeats)

    def _needed(self, held: Held, need: Spread, samples: int) -> Tensor:
        shape, groups = held.form.shape(samples), self._groups
        return spread(held.tensor, held.spread, need, shape, groups.process, groups.all)

    # -- structure ------------------------------------------------------------------------------

    def _calls(self, first: int, settings: Sequence[Setting], fuses: bool) -> Iterator[Call]:
        at, segment, before = 0, -1, False
        while at < len(settings):
            count = self._alike(first + at, settings[at:]) if fuses else 1
            setting, here = settings[at], range(first + at, first + at + count)
            starts = self._list.operators[here.start].starts_layer
            if setting.recompute and (starts or not before):
                segment += 1
            before = setting.recompute
            yield self._made(here, setting, segment if before else -1)
            at += count

    def _alike(self, first: int, settings: Sequence[Setting]) -> int:
        """How many of the next operators one call computes, all of which are divided alike; it is
        computed again where the first of them is."""
        count = fused(self._list.operators[first:], self._places[first])
        own = settings[:count]
        alike = {(each.tp, each.dp) for each in own}
        return count if len(own) == count and len(alike) == 1 else 1

    def _made(self, here: range, setting: Setting, segment: int) -> Call:
        every, places, columns = self._list.operators, self._places, self._groups.columns
        kind = every[here.start].kind
        build: type[Sharded] = Attention if len(here) > 1 else MODULES[kind]

        def sharded(at: int, side: int) -> bool:
            return every[at].layouts[setting.algo][side].shard is not None

        extras = handed(self._list, places)
        into, out = sharded(here.start, 0), sharded(here.stop - 1, 1)
        form = places[here.stop - 1].form
        rows = Columns(self._groups.replicas(setting.tp))
        module = build(
            self._spec, places[here.start], columns(setting.tp), rows, sharded=into,
            algo=setting.algo,
        )  # fmt: skip
        takes = None
        if kind != "embedding" and here.start:
            takes = spread_of(places[here.start - 1].form, setting, into)
        return Call(
            operator=here.start, module=module, setting=setting, takes=takes,
            gives=spread_of(form, setting, out), form=form,
            makes=next((each for each in extras if each.extra.made_by in here), None),
            reads={
                extra.name: spread_of(form, setting, sharded(at, 0))
                for extra, _, form in extras for at in extra.read_by if at in here
            },
            ends=tuple(extra.name for extra, *_ in extras if extra.read_by[-1] in here),
            segment=segment, starts=every[here.start].starts_layer,
        )  # fmt: skip


def _with(held: Mapping[str, Held], tensors: Sequence[Tensor]) -> dict[str, Held]:
    pairs = zip(held.items(), tensors, strict=True)
    return {name: each._replace(tensor=tensor) for (name, each), tensor in pairs}
