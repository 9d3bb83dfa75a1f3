"""Evaluation of a user's own module on held-out batches, between two steps of their own loop.

As in runs (evaluation.py) a copy of the module passes forward in evaluation mode: on the GPU that
trains, in the type of training and with weights that come when a function takes them, or on the
processor in fp32. Weights are read from wherever a method keeps them, logits of the device are
there in parts, and nothing of the training is touched.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from workbench.model.called import Widened, call_of, one_number
from workbench.model.objective import PREFIX, Batch, LossFunction, Weigh
from workbench.model.postponed import Postponed
from workbench.model.tally import labels_in
from workbench.model.weights.given import Given
from workbench.runtime.checkpoint.checkpoint import ByUnit, in_memory
from workbench.runtime.passes.visiting import Arriving, Place, Visits
from workbench.training.evaluation import apart, output_of
from workbench.training.places import HOST, foreign, somewhere

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A module, and where its weights are."""

    module: nn.Module
    weights: ByUnit | None
    """By their names in the `Objective`; None before there are others than the first ones."""
    first: Given

    @cached_property
    def _source(self) -> tuple[ByUnit, dict[int, str]]:
        """Weights of all parameters, and the name of each by the `id` in the module."""
        every = self.module.named_parameters(remove_duplicate=False)
        groups = self.weights[0] if self.weights else []
        there, names, first = {name for group in groups for name in group}, {}, {}
        for name, own in ((PREFIX + name, own) for name, own in every):
            if name in there:
                names[id(own)] = name
        for name, own in self.module.named_parameters():
            if id(own) not in names:
                names[id(own)] = PREFIX + name
                first[PREFIX + name] = self.first[PREFIX + name]
        return in_memory(first, *[self.weights] if self.weights else []), names

    def at(self, place: Place) -> tuple[nn.Module, Arriving]:
        """A copy of the module in a place, and the mode in which its weights arrive there."""
        (groups, read), names = self._source
        visits, arriving, memo = Visits((groups, read), place), {}, {}
        for own in self.module.parameters():
            name = names[id(own)]
            kind = place.dtype if own.is_floating_point() else own.dtype
            stays = place.room is None
            value = visits[name] if stays else torch.empty_like(own, dtype=kind, device="meta")
            memo[id(own)] = made = nn.Parameter(value, requires_grad=False)
            arriving |= {} if stays else {id(made): name}
        there = {name for group in groups for name in group}
        for name, own in self.module.named_buffers():
            whole = PREFIX + name
            value = read([whole])[whole] if whole in there else own.detach()
            memo[id(own)] = value.to(place.device, copy=True)
        made = copy.deepcopy(self.module, memo)
        for part in made.modules():  # of Hugging Face's, whose cache no loss reads
            if getattr(getattr(part, "config", None), "use_cache", False) is True:
                part.config.use_cache = False
        return made.eval(), Arriving(visits, arriving)

    @cached_property
    def on_host(self) -> tuple[nn.Module, Arriving]:
        """As `at`, on the processor."""
        return self.at(HOST)


def evaluated(
    trained: Trained, batches: Iterable[Any], loss_fn: LossFunction, *, weight_of: Weigh | None,
    device: torch.device, dtype: torch.dtype, budget: int | None, say: Callable[[str], None],
) -> Figures:  # fmt: skip
    """Figures of a module: the number of `samples`, the mean `loss`, `accuracy` of classes and
    `perplexity` of texts. A batch weighs by `weight_of`, by the labels of its loss where that has
    one mean cross-entropy, else by its rows. Other arguments are `somewhere`'s. Raises ValueError
    for batches that cannot be evaluated."""
    sums, whole, refused = {"samples": 0.0, "loss": 0.0}, 0.0, []
    with apart(device):
        for given in batches:
            batch = Batch(given, weight_of)
            weight = float(batch.weights.sum())

            def judge(place: Place, batch: Batch = batch, told: bool = bool(weight)) -> Figures:
                return _judged(trained, batch, loss_fn if told else None, place)

            where = torch.device("cpu") if refused else device
            found = somewhere(judge, where, dtype, budget, refused.append)
            loss, labels = found.pop("loss", 0.0), found.pop("labels", weight)
            weight = labels if weight_of is None else weight
            sums["samples"] += batch.rows
            sums["loss"] += loss * weight if weight else 0.0  # the mean of nothing is no number
            whole += weight
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + value
    for words in refused:
        say(words)
    if not whole:
        raise ValueError("no label counts in the batches, so they have no mean loss; give others")
    found = {"samples": int(sums["samples"]), "loss": sums["loss"] / whole}
    if "right" in sums:
        found["accuracy"] = sums["right"] / sums["samples"]
    if "texts" in sums:
        found["perplexity"] = math.exp(found["loss"]) if found["loss"] < 700 else math.inf
    return found


def _judged(trained: Trained, batch: Batch, loss_fn: LossFunction | None, place: Place) -> Figures:
    """The mean loss of a batch, if its function is given, and how its classes or texts are."""
    host = place.room is None
    with foreign(place):
        model, arriving = trained.on_host if host else trained.at(place)
        exact = batch.filled([t.to(place.device) for t in batch.tensors], exact=True)
        args, kwargs = call_of(model, exact)(exact)
        kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
        dtype = next(kinds, torch.get_default_dtype())
        rounded = tree_map(lambda leaf: _to(leaf, dtype), (args, kwargs))
        with nullcontext() if host else Postponed(), arriving, Labels() as labels:
            outputs = model(*rounded[0], **rounded[1])
            taken = {id(leaf) for leaf in tree_flatten((args, kwargs))[0]}
            found = _classes(outputs, exact, taken)
            if loss_fn is not None:
                with nullcontext() if host else Widened(outputs):
                    found["loss"] = float(one_number(loss_fn(outputs, exact), None))
                if len(labels.counts) == 1 and labels.counts[0] is not None:
                    found["labels"] = labels.counts[0]
    return found


class Labels(TorchFunctionMode):
    """Counts the labels of each cross-entropy within."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[float | None] = []
        """Labels over which one is the mean, by the weights of their classes; None of a
        cross-entropy that is something else."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (F.cross_entropy, F.nll_loss):
            self.counts.append(_labels(*args, **kwargs))
        return func(*args, **kwargs)


def _labels(
    _: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> float | None:  # fmt: skip
    """As `Labels.counts`, by the arguments of a cross-entropy."""
    if reduction != "mean" or (size_average, reduce) != (None, None) or target.is_floating_point():
        return None
    return float(labels_in(target, weight, ignore_index))


def _to(leaf: Any, dtype: torch.dtype) -> Any:
    floats = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.to(dtype) if floats else leaf


def _classes(outputs: Any, batch: Any, taken: set[int]) -> Figures:
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
