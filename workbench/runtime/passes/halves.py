"""A backward pass in two halves: the gradient of the input first, those of the weights later.

Zero-bubble pipelines (Qi et al., ICLR 2024) fill a stage's idle time with the second half. In the
graph that autograd has kept, a *fork* is a node on the way from the output to the input where a
branch leads to weights: the node of a matrix product, say. The first half goes down to the input
and keeps the gradient that arrives at each fork; the second half starts at the forks, so that
nothing is computed twice but what one node computes for both. Gradients of parameters that no fork
serves alone are made in the first half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


@dataclass(frozen=True, kw_only=True)
class WeightHalf:
    """Inputs of the second half of a backward pass; it holds the pass's graph."""

    parameters: Sequence[Tensor]
    known: Mapping[int, Tensor]
    """Gradients that the first half has made already, by the number of the parameter."""
    starts: Sequence[
        tuple[Sequence[Tensor | GradientEdge], Sequence[Tensor] | None, frozenset[int]]
    ]
    """(outputs, their gradients, numbers of the parameters whose gradients come from there)."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Gradients of the parameters, in their order and shapes; zeros where nothing leads."""
        found = dict(self.known)
        for outputs, above, numbers in self.starts:
            ordered = sorted(numbers)
            wanted = [self.parameters[number] for number in ordered]
            grads = torch.autograd.grad(
                outputs, wanted, above, retain_graph=True, materialize_grads=True
            )
            found |= zip(ordered, grads, strict=True)
        return tuple(
            found[number] if number in found else torch.zeros_like(parameter)
            for number, parameter in enumerate(self.parameters)
        )


def input_half(
    outputs: Sequence[Tensor],
    above: Sequence[Tensor] | None,
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[tuple[Tensor, ...], WeightHalf]:
    """Gradients of the inputs, and the other half. `above` are the outputs' gradients, of their
    shapes, None where the output is a loss; inputs and parameters are leaves. Without inputs all is
    left to the other half."""
    everything = frozenset(range(len(parameters)))
    whole = (outputs, above, everything)
    if not outputs or not inputs:
        starts = [whole] if outputs and parameters else []
        grads = tuple(torch.zeros_like(t) for t in inputs)
        return grads, WeightHalf(parameters=parameters, known={}, starts=starts)
    forks, beside = _forks(outputs, inputs, parameters)
    met: dict[Node, Sequence[Tensor | None]] = {}
    hooks = [
        node.register_prehook(lambda grads, node=node: met.__setitem__(node, grads))
        for node in forks
    ]
    times = Counter(number for numbers in forks.values() for number in numbers)
    at_fork = {number for number, count in times.items() if count == 1} - beside
    rest = sorted(everything - at_fork)  # used in several places, or not at a fork alone
    wanted = [*inputs, *(parameters[number] for number in rest)]
    try:
        grads = torch.autograd.grad(
            outputs, wanted, above, retain_graph=True, materialize_grads=True
        )
    finally:
        for hook in hooks:
            hook.remove()
    grads, known = grads[: len(inputs)], dict(zip(rest, grads[len(inputs) :], strict=True))
    starts = []
    for node, numbers in forks.items():
        arrived = [(i, grad) for i, grad in enumerate(met.get(node, ())) if grad is not None]
        if arrived and (own := numbers & at_fork):
            edges = [GradientEdge(node, i) for i, _ in arrived]
            starts.append((edges, [grad for _, grad in arrived], own))
    return grads, WeightHalf(parameters=parameters, known=known, starts=starts)


def _forks(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[dict[Node, frozenset[int]], frozenset[int]]:
    """Forks of the graph, each with the numbers of the parameters that its branches lead to, and
    the parameters that are reached from an output which depends on no input. A node of a Python
    function is no fork: torch 2.11 starts no backward pass at one."""
    ends = {get_gradient_edge(t).node for t in inputs}
    leaves: dict[Node, frozenset[int]] = {
        get_gradient_edge(t).node: frozenset([number]) for number, t in enumerate(parameters)
    }
    reaches: dict[Node, bool] = {}
    weights: dict[Node, frozenset[int]] = {}
    stack = [get_gradient_edge(t).node for t in outputs]
    while stack:
        node = stack[-1]
        below = [child for child, _ in node.next_functions if child is not None]
        if missing := [child for child in below if child not in reaches]:
            stack += missing
            continue
        stack.pop()
        reaches[node] = node in ends or any(reaches[child] for child in below)
        branches = (weights[child] for child in below if not reaches[child])
        weights[node] = leaves.get(node, frozenset()).union(*branches)
    found = {
        node: weights[node]
        for node in reaches
        if reaches[node] and weights[node] and not isinstance(node, BackwardCFunction)
    }
    tops = [get_gradient_edge(t).node for t in outputs]
    return found, frozenset().union(*(weights[node] for node in tops if not reaches[node]))
