"""Times and bytes of a module's operators, one at a time on the inputs that they have, equal kinds
once. They are stored beside those of layers (store.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.model.decompose.operators import Operator
from workbench.profile.bench import timed
from workbench.profile.files import kept
from workbench.profile.machine import Machine, this_machine
from workbench.profile.store import path_of
from workbench.profile.table import Echo
from workbench.profile.timing import summarize

SECONDS, LEAST = 0.05, 3
"""About what the timing of one kind takes, and its rounds at least."""


@dataclass(frozen=True, kw_only=True)
class OperatorCost:
    """One kind of operator."""

    forward_s: float
    backward_s: float
    """Without the forward pass again; 0 where no gradient is asked for."""
    output_bytes: tuple[int, ...]
    """Of each tensor that comes out."""
    differentiable: tuple[bool, ...]
    """Whether each has a gradient."""


@dataclass(frozen=True, kw_only=True)
class OperatorCosts:
    """Costs of the operators of one model."""

    machine: Machine
    costs: dict[str, OperatorCost]
    """By kind."""


def stored_costs(
    spec: RunSpec, results: Path, found: Sequence[Operator], inputs: Sequence[Tensor], echo: Echo,
    *, fresh: bool = False,
) -> OperatorCosts:  # fmt: skip
    """Cost by kind on this machine, measured unless they are stored, or `fresh`."""
    machine, kinds = this_machine(spec.device), {one.kind for one in found}
    path = path_of(spec, results, machine, "operators", spec.microbatch, spec.dtype, sorted(kinds))

    def measured() -> OperatorCosts:
        echo(f"measuring {len(kinds)} kinds of operators at a micro-batch of {spec.microbatch}")
        return OperatorCosts(machine=machine, costs=operator_costs(found, inputs, machine.device))

    return kept(path, machine, OperatorCosts, echo, measured, holds=lambda _: not fresh)


def operator_costs(
    found: Sequence[Operator], inputs: Sequence[Tensor], device: str
) -> dict[str, OperatorCost]:
    """Cost by kind. `inputs` are a micro-batch of what the module is called with. The device has
    one operator at a time, so that a model need not fit there. Operators that write to memory take
    no time of their own."""
    values: dict[int, Tensor] = dict(enumerate(inputs))
    grads = dict.fromkeys(values, False)
    last = {n: at for at, one in enumerate(found) for n in one.reads}
    costs: dict[str, OperatorCost] = {}
    for at, one in enumerate(found):
        given = [values[n].to(device) for n in one.reads]
        extra = [] if one.sized else [torch.zeros(len(inputs[0]), device=device)]
        one.program.to(device)
        with torch.no_grad():
            made = one.program(*given, *extra)
        if one.kind not in costs:
            costs[one.kind] = _cost(one, given, [grads[n] for n in one.reads], extra, made)
        flags = costs[one.kind].differentiable
        for n, tensor, flag in zip(one.makes, made, flags, strict=True):
            values[n], grads[n] = tensor.cpu(), flag
        one.program.cpu()
        for n in {*one.reads, *one.makes}:
            if last.get(n, -1) <= at:
                del values[n]
    return costs


def _cost(
    one: Operator, given: Sequence[Tensor], wanted: Sequence[bool], extra: list[Tensor], made: Any
) -> OperatorCost:
    sizes = tuple(tensor.nbytes for tensor in made)
    if one.writes:
        flags = tuple(t.is_floating_point() and any(wanted) for t in made)
        return OperatorCost(forward_s=0.0, backward_s=0.0, output_bytes=sizes, differentiable=flags)
    through = [t.detach().requires_grad_(w) for t, w in zip(given, wanted, strict=True)]
    parameters = [p for p in one.program.parameters() if p.requires_grad]
    leaves = [t for t in (*through, *parameters) if t.requires_grad]

    def forward() -> Any:
        with torch.no_grad():
            return one.program(*given, *extra)

    def graph() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return one.program(*through, *extra)

    flags = tuple(bool(leaves) and t.requires_grad for t in graph())

    def backward() -> Any:
        ends = [t for t in graph() if t.requires_grad]
        return torch.autograd.grad(ends, leaves, [*map(torch.ones_like, ends)], allow_unused=True)

    actions = [forward, graph, backward] if any(flags) else [forward]
    taken = timed(actions, made[0].device, seconds=SECONDS, least=LEAST)
    seconds = [summarize(samples).seconds for samples in taken]
    back = max(0.0, seconds[2] - seconds[1]) if any(flags) else 0.0
    return OperatorCost(
        forward_s=seconds[0], backward_s=back, output_bytes=sizes, differentiable=flags
    )
