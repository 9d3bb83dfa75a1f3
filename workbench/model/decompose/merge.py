"""Several runs of a model as one: what differs between them becomes a hole in the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workbench.model.decompose.plan import Affine, Hole, Mode, Share
from workbench.model.decompose.record import Refusal, Trace

BATCHES = (2, 3, 5)
"""One would be broadcast; three tell a straight line from a curve."""


def merged(runs: list[Trace], rule: Callable[[list], Any]) -> Trace:
    """The first run with what differs between the runs replaced by what `rule` makes of it."""
    first = runs[0]
    if any(len(run.calls) != len(first.calls) for run in runs):
        raise Refusal(f"it makes {' or '.join(str(len(run.calls)) for run in runs)} calls")
    for key, tensor in first.tensors.items():
        if any(not _alike(run.tensors.get(key), tensor) for run in runs):
            raise Refusal("it uses a tensor, made otherwise than by torch, that changes")
    whole = replace(first, calls=[], shapes=[], random=list(first.random))
    for calls in zip(*(run.calls for run in runs), strict=True):
        one = calls[0]
        if any(replace(call, leaves=()) != replace(one, leaves=()) for call in calls):
            raise Refusal(f"it calls {one.target} or something else")
        leaves = zip(*(call.leaves for call in calls), strict=True)
        whole.calls.append(replace(one, leaves=tuple(rule(list(leaf)) for leaf in leaves)))
    if any(run.dtypes != first.dtypes or run.output[0] != first.output[0] for run in runs):
        raise Refusal("it puts out other things")
    for shapes in zip(*(run.shapes for run in runs), strict=True):
        if len({len(shape) for shape in shapes}) > 1:
            raise Refusal("a tensor has another number of dimensions")
        whole.shapes.append(tuple(rule(list(sizes)) for sizes in zip(*shapes, strict=True)))
    leaves = zip(*(run.output[1] for run in runs), strict=True)
    whole.output = first.output[0], tuple(rule(list(leaf)) for leaf in leaves)
    if any(isinstance(leaf, Affine | Share) for leaf in whole.output[1]):
        raise Refusal("its output holds a number that follows the batch size")
    return whole


def of_batch(values: list) -> Any:
    """An argument at any batch size, from its values at three batch sizes."""
    first, second, third = values
    kinds = {type(value) for value in values}
    if kinds == {int} and len(set(values)) > 1:
        slope, rest = divmod(second - first, BATCHES[1] - BATCHES[0])
        line = Affine(slope, first - slope * BATCHES[0])
        if not rest and third == line.slope * BATCHES[2] + line.start:
            return line
    elif kinds == {float} and len(set(values)) > 1:
        for value, batch in zip(values, BATCHES, strict=True):
            whole = value * batch
            if [whole / b for b in BATCHES] == values:
                return Share(whole)
    elif all(_same(value, first) for value in values):
        return first
    raise Refusal(
        f"something follows the batch size in an unknown way: {', '.join(map(str, values))} at "
        f"batch {', '.join(map(str, BATCHES))}"
    )


def of_mode(values: list) -> Any:
    """An argument in both modes, from its values in training and in evaluation."""
    if _same(*values):
        return values[0]
    if any(isinstance(value, Hole) for value in values):
        raise Refusal("another tensor is used")
    return Mode(*values)


def add_modes(whole: Trace, run: Trace, other: Trace | None, mode: bool) -> None:
    """Put in what follows the mode, from runs in both. Refuses a model that is two models."""
    if other is None:
        raise Refusal("it runs in one mode only")
    both = merged([run, other] if mode else [other, run], of_mode)
    if both.shapes != run.shapes:
        raise Refusal("its tensors have other shapes in the other mode")
    calls = []
    for call, moded in zip(whole.calls, both.calls, strict=True):
        leaves = list(call.leaves)
        for i, leaf in enumerate(moded.leaves):
            if isinstance(leaf, Mode):
                if isinstance(leaves[i], Hole):
                    raise Refusal("a number follows both the batch size and the mode")
                leaves[i] = leaf
        calls.append(replace(call, leaves=tuple(leaves)))
    whole.calls = calls
    pairs = zip(whole.output[1], both.output[1], strict=True)
    leaves = tuple(moded if isinstance(moded, Mode) else leaf for leaf, moded in pairs)
    whole.output = whole.output[0], leaves


def _alike(one: Tensor | None, other: Tensor) -> bool:
    if one is other or one is None or one.is_meta or other.is_meta:
        return one is not None
    return one.shape == other.shape and torch.equal(one, other)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))
