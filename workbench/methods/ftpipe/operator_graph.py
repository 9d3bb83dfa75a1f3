"""The calls of a module, measured, as an operator graph (Eliad et al., ATC'21)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.core.call_sets import CallSets
from workbench.core.spec import RunSpec
from workbench.model.decompose.operators import Operator, operators
from workbench.model.families import blank_rows, module_of
from workbench.partition.graph import Edge, Graph, Node
from workbench.profile.operators import OperatorCost, stored_costs
from workbench.profile.table import Echo

MS, STATES = 1e3, 4
"""Weights, gradients and two states of an optimizer."""


class Traced:
    """A module, its operators, and a micro-batch of made-up inputs."""

    def __init__(self, spec: RunSpec, *, basic: Collection[str], depth: int | None) -> None:
        """Raises ValueError as `operators` does."""
        if depth is not None and depth < 1:
            raise ValueError(f"--depth is {depth}; it must be at least 1")
        self.spec, self.module = spec, module_of(spec.model, spec.seed)
        generator = torch.Generator().manual_seed(spec.seed)
        self.inputs: tuple[Tensor, ...] = tuple(
            torch.randn(row.shape, generator=generator)
            if row.is_floating_point()
            else torch.ones(row.shape, dtype=row.dtype)
            for row in blank_rows(spec.model, spec.microbatch)[:-1]
        )
        self.operators = operators(self.module, self.inputs, basic=basic, depth=depth)
        self._basic, self._depth = tuple(basic), depth

    def graph(self, results: Path, echo: Echo, *, recompute: bool, fresh: bool) -> Graph:
        """The graph, with costs that were measured here."""
        found = stored_costs(
            self.spec, results, self.operators, self.inputs, echo, fresh=fresh
        ).costs
        return graph_of_operators(self.module, self.operators, found, recompute=recompute)

    def sets(self, stage: Mapping[str, int]) -> str:
        """The calls of each stage, in words; `stage` of each operator."""
        sets: list[list[int]] = [[] for _ in range(1 + max(stage.values()))]
        for one in self.operators:
            sets[stage[one.name]].append(one.number)
        found = CallSets(sets=tuple(map(tuple, sets)), depth=self._depth, basic=self._basic)
        return str(found) if len(sets) > 1 else ""


def graph_of_operators(
    module: nn.Module, found: Sequence[Operator], costs: dict[str, OperatorCost], *, recompute: bool
) -> Graph:
    """A node an operator, an edge from each to those that read what it makes. Operators that touch
    memory which one of them writes to are in one stage, in their order, and so is who reads what is
    no stack of samples with who makes it."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    users: dict[str, list[str]] = defaultdict(list)
    for one in found:
        for key in {id(p) for p in one.program.parameters()} & names.keys():
            users[names[key]].append(one.name)
    sizes = {name: parameter.nbytes for name, parameter in module.named_parameters()}
    owned: dict[str, float] = defaultdict(float)
    shared: dict[str, list[str]] = defaultdict(list)
    for weight, used in users.items():
        owned[used[0]] += STATES * sizes[weight]
        for name in used if len(used) > 1 else ():
            shared[name].append(weight)
    made = {n: (one, k) for one in found for k, n in enumerate(one.makes)}
    edges: dict[tuple[str, str], list[float]] = {}
    before: dict[int, str] = {}
    for one in found:
        for n in one.reads:
            if n in made:
                source, place = made[n]
                cost, edge = (
                    costs[source.kind],
                    edges.setdefault((source.name, one.name), [0, 0, 1]),
                )
                edge[0] += cost.output_bytes[place]
                edge[1] = max(edge[1], cost.differentiable[place])
                edge[2] = min(edge[2], source.stacks[place])
        for storage in one.memory:
            if storage in before and before[storage] != one.name:
                edges.setdefault((before[storage], one.name), [0, 0, 1])[2] = 0
            before[storage] = one.name
    return Graph(
        nodes=[_node(one, costs[one.kind], owned, shared, recompute) for one in found],
        edges=[
            Edge(source=a, target=b, bytes=size, gradient=bool(gradient), sendable=bool(sendable))
            for (a, b), (size, gradient, sendable) in edges.items()
        ],
    )


def _node(
    one: Operator, cost: OperatorCost, owned: dict[str, float], shared: dict[str, list[str]],
    recompute: bool,
) -> Node:  # fmt: skip
    again = cost.forward_s if recompute and cost.backward_s else 0.0
    return Node(
        id=one.name, scope=one.scope, shared=sorted(shared[one.name]),
        forward_ms=MS * cost.forward_s, backward_ms=MS * (cost.backward_s + again),
        backward_kept_ms=MS * cost.backward_s, bytes=owned[one.name] + sum(cost.output_bytes),
    )  # fmt: skip
