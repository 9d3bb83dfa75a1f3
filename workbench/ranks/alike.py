"""What all processes of a loop must have alike, and the sentence for processes that disagree.

Each process reads its own arguments, module and loss function. One rank's learning rate, or a
weight that is frozen there alone, would train something that no process was asked for. So all is
told once, before the first step, and the learning rate before each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import isclose
from types import CodeType
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

RATE = "the learning rate"
LOSS, WEIGHS = "the code of loss_fn", "the code of weight_of"
ADVICE = {
    RATE: "give all of them one in each step, as from a scheduler that hears the mean of their "
    "losses",
    LOSS: "give all of them one function",
    WEIGHS: "give all of them one function, or none",
}
CLOSE = 1e-9
"""Relative difference of learning rates that hosts may compute otherwise."""


def training(
    module: nn.Module,
    loss_fn: Callable,
    weight_of: Callable | None,
    no_decay: Collection[str],
    arguments: Mapping[str, Any],
) -> dict[str, str]:
    """A process's training by the names of what decides it, each in words. Parameters of the module
    in `no_decay` have no weight decay; `arguments` are those of an engine."""
    told = {name: repr(value) for name, value in arguments.items()}
    told |= {LOSS: code_of(loss_fn), WEIGHS: code_of(weight_of)}
    for path, part in module.named_modules():
        told[f"the class of module {path!r}" if path else "the model"] = type(part).__name__
    for name, parameter in module.named_parameters(remove_duplicate=False):
        learns = "trained" if parameter.requires_grad else "not trained"
        decays = ", without weight decay" if name in no_decay else ""
        shape = "no shape yet" if is_lazy(parameter) else [*parameter.shape]
        told[f"parameter {name!r}"] = f"of {shape}, {learns}{decays}"
    return told


def code_of(function: Any) -> str:
    """Digest of a function's code, equal in processes that run one script; of another callable the
    name of its class."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function).__name__
    return hashlib.sha256(_parts(code).encode()).hexdigest()[:16]


def _parts(code: CodeType) -> str:
    constants = [
        _parts(each) if isinstance(each, CodeType)
        else str(sorted(map(repr, each))) if isinstance(each, frozenset)  # in any order
        else repr(each)
        for each in code.co_consts
    ]  # fmt: skip
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def disagreement(told: Sequence[Mapping[str, Any]]) -> str:
    """The sentence for the first thing that processes told otherwise than the first one; empty
    where they agree."""
    first = told[0]
    for rank, theirs in enumerate(told):
        for name in {**first, **theirs}:
            own, other = first.get(name, "missing"), theirs.get(name, "missing")
            if own == other or (name == RATE and isclose(own, other, rel_tol=CLOSE)):
                continue
            found = f"{name} is {own} in rank 0 and {other} in rank {rank}"
            if name in (LOSS, WEIGHS):
                found = f"{name} differs between rank 0 and rank {rank}"
            advice = ADVICE.get(name, "give all of them the same")
            return f"the processes disagree: {found}; {advice}"
    return ""
