"""The calls of a module as operators, each of which runs by itself.

A module without children is one operator, and so is one that is named as a block; outside of these
each function is one. What depends on no input is made again by each operator that reads it, of
weights too, unless it draws random numbers. Operators that share memory which one of them writes to
are to stay together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.decompose.cut import Cutter
from workbench.model.decompose.layer import Layer, Value
from workbench.model.decompose.plan import Hole, State
from workbench.model.decompose.probe import record
from workbench.model.decompose.program import Program
from workbench.model.decompose.record import Trace


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One call."""

    name: str
    """Begins with the number of the call."""
    scope: str
    """``Class[attribute]`` segments from the model to the module that is called."""
    kind: str
    """Operators of one kind do equal work."""
    program: Program
    """Takes the tensors of the numbers `reads`, and a tensor [B] where `sized` is false."""
    takes: tuple[Value, ...]
    """Tensors that the program takes."""
    reads: tuple[int, ...]
    sized: bool
    makes: tuple[int, ...]
    stacks: tuple[bool, ...]
    """Whether each of them is a stack of samples, or does not grow with the batch: stages can hand
    on such tensors only."""
    writes: bool
    """Whether it writes to memory that was there before; its gradient is then not asked for."""
    memory: frozenset[int]
    """What it touches of the memory that some operator writes to."""
    draws: bool
    """Whether it draws random numbers in training."""

    @property
    def number(self) -> int:
        """Number of the call."""
        return int(self.name.partition(".")[0])

    def layer(self) -> Layer:
        """The operator as a layer by itself."""
        return Layer(
            index=self.number, name=self.name, module=self.program, inputs=self.takes, outputs=(),
            state={}, shared={},
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CallTrace:
    """The calls of a module as they were seen."""

    model: nn.Module
    trace: Trace
    blocks: set[str]
    mode: bool | None
    """Value of `training` that they are right for; None for both."""

    @classmethod
    def of(
        cls, model: nn.Module, inputs: tuple[Tensor, ...], *, basic: Collection[str] = (),
        depth: int | None = None, named: Mapping[str, Any] | None = None,
    ) -> CallTrace:  # fmt: skip
        """Look at a module: those of a class in `basic`, and below `depth` others, are one call.
        Raises ValueError for calls that cannot be found."""
        blocks = {
            path for path, module in model.named_modules()
            if path and (type(module).__name__ in basic or path.count(".") + 1 == depth)
        }  # fmt: skip
        trace, mode = record(model, inputs, dict(named or {}), blocks, grow=True, dice=True)
        return cls(model=model, trace=trace, blocks=blocks, mode=mode)


def operators(
    model: nn.Module, inputs: tuple[Tensor, ...], *, basic: Collection[str] = (),
    depth: int | None = None,
) -> list[Operator]:  # fmt: skip
    """The operators in the order of their calls; tensors are numbered, the inputs first. Modules of
    a class in `basic`, and those below `depth` others, are one operator. Raises ValueError for
    calls that cannot be found, and for a class that no module has."""
    classes = {type(module).__name__ for module in model.modules()}
    if lost := sorted({*basic} - classes):
        known = ", ".join(sorted(classes))
        raise ValueError(f"no module is a {lost[0]!r}; the model has {known}")
    return operators_of(CallTrace.of(model, inputs, basic=basic, depth=depth))


def operators_of(traced: CallTrace) -> list[Operator]:
    """The operators of calls that were seen."""
    trace, model = traced.trace, traced.model
    paths = dict(model.named_modules())
    cutter = Cutter(trace, traced.blocks, model, again=True)
    written = [frozenset().union(*a.written) for a in trace.aliasing]
    found: list[Operator] = []
    for position, i in enumerate(cutter.order):
        plan = cutter.single(position)
        call, own = trace.calls[i], isinstance(trace.calls[i].target, str)
        plan.mode = traced.mode
        parts = {c.target: paths[c.target] for c in plan.calls if isinstance(c.target, str)}
        keys = [leaf.key for leaf in plan.leaves() if isinstance(leaf, State)]
        program = Program(plan, parts, {key: trace.tensors[key] for key in keys})
        program.training = model.training
        sized = len(trace.names) not in plan.takes
        reads = tuple(n for n in plan.takes if n < len(trace.names))
        memory = frozenset(
            storage
            for a, hot in zip(trace.aliasing, written, strict=True)
            for storage in hot & ({a.storage[n] for n in (*reads, *call.results)} | a.written[i])
        )
        takes = [cutter.value(n, position) for n in reads]
        if not sized:
            takes.append(Value("samples", (), torch.get_default_dtype(), False))
        shapes = [str((trace.shapes[n], trace.dtypes[n])) for n in reads]
        shapes += [str(len(plan.calls))] * (len(plan.calls) > 1)
        plain = [repr(leaf) for leaf in call.leaves if not isinstance(leaf, Hole)]
        name = call.target if own else getattr(call.target, "__name__", "call")
        what = _looks(paths[name]) if own else f"{name} {plain}"
        found.append(
            Operator(
                name=f"{i}.{name}", scope=_scope(model, call.target) if own else "",
                kind=f"{what} {shapes}", program=program, takes=tuple(takes), reads=reads,
                sized=sized, makes=call.results,
                stacks=tuple(cutter.samples[n] is not None for n in call.results),
                writes=any(a.written[i] for a in trace.aliasing), memory=memory,
                draws=trace.random[i],
            )
        )  # fmt: skip
    return found


def _looks(module: nn.Module) -> str:
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    return f"{type(module).__qualname__} {module.extra_repr()} {shapes}"


def _scope(model: nn.Module, path: str) -> str:
    scope, at = f"{type(model).__name__}[model]", model
    for name in path.split("."):
        at = at.get_submodule(name)
        scope += f"/{type(at).__name__}[{name}]"
    return scope
