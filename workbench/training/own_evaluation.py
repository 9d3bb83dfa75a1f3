"""Evaluation of a user's own module on held-out batches, between two steps of their own loop.

As in runs (evaluation.py) a copy of the module passes forward, in evaluation mode, in fp32 and on
the processor. Its weights are gathered from wherever a method keeps them, and nothing of the
training is touched.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from workbench.model.called import call_of, one_number
from workbench.model.objective import Batch, LossFunction, Weigh
from workbench.training.evaluation import apart, output_of

Figures = dict[str, float]


def evaluated(
    module: nn.Module, state: Mapping[str, Tensor], batches: Iterable[Any], loss_fn: LossFunction,
    *, weight_of: Weigh | None, weigh: Callable[[Batch], float], on_gpu: bool,
) -> Figures:  # fmt: skip
    """Figures of a module with the weights of a `state` dict: the number of `samples`, the mean
    `loss`, each batch weighed as `weigh` does, `accuracy` of classes and `perplexity` of texts.
    `on_gpu`: training leaves the processor free. Raises ValueError for batches that cannot be
    evaluated."""
    sums, whole = {"samples": 0.0, "loss": 0.0}, 0.0
    with apart(on_gpu=on_gpu):
        model = _with(module, state).eval()
        kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
        dtype = next(kinds, torch.get_default_dtype())
        for given in batches:
            batch = Batch(given, weight_of)
            exact = batch.filled(batch.tensors, exact=True)
            args, kwargs = call_of(model, exact)(exact)
            rounded = tree_map(lambda leaf: _to(leaf, dtype), (args, kwargs))
            outputs = model(*rounded[0], **rounded[1])
            sums["samples"] += batch.rows
            if weight := weigh(batch):
                loss = float(one_number(loss_fn(outputs, exact), None))
                sums["loss"] += loss * weight
                whole += weight
            taken = {id(leaf) for leaf in tree_flatten((args, kwargs))[0]}
            for name, value in _judged(outputs, exact, taken).items():
                sums[name] = sums.get(name, 0.0) + value
    if not whole:
        raise ValueError("no label counts in the batches, so they have no mean loss; give others")
    found = {"samples": int(sums["samples"]), "loss": sums["loss"] / whole}
    if "right" in sums:
        found["accuracy"] = sums["right"] / sums["samples"]
    if "texts" in sums:
        found["perplexity"] = math.exp(found["loss"]) if found["loss"] < 700 else math.inf
    return found


def _with(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a module on the processor, whose weights are those of a state dict."""
    memo: dict[int, Any] = {}
    for name, own in module.named_parameters():
        memo[id(own)] = nn.Parameter(state[name], requires_grad=False)
    for name, own in module.named_buffers():
        memo[id(own)] = state[name] if name in state else own.detach().cpu().clone()
    return copy.deepcopy(module, memo)


def _to(leaf: Any, dtype: torch.dtype) -> Any:
    floats = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.to(dtype) if floats else leaf


def _judged(outputs: Any, batch: Any, taken: set[int]) -> Figures:
    """Rows whose likeliest class is right, or texts, of a batch whose labels are the one tensor of
    whole numbers that the module has not `taken`, or else its `labels`."""
    logits = output_of(outputs)
    every = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, Tensor)]
    labels = [leaf for leaf in every if id(leaf) not in taken and not leaf.is_floating_point()]
    if not labels and isinstance(batch, Mapping) and isinstance(batch.get("labels"), Tensor):
        labels = [batch["labels"]]
    if logits is None or len(labels) != 1 or labels[0].shape != logits.shape[:-1]:
        return {}
    if logits.dim() == 2:
        return {"right": float((logits.argmax(-1) == labels[0]).sum())}
    return {"texts": float(len(labels[0]))}
