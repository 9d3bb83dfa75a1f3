"""Samples of a user's own model, and its loss (custom.py).

Torch's cross entropy leaves out labels of -100, and is the mean over the others. So a batch that is
divided into micro-batches weighs their losses by the labels that count in them (weighing.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.model.drawn import generators
from workbench.model.keys import key, place_of
from workbench.model.text import IGNORED, Batches, Text

HASHED = 16
"""Samples that the digest is of, and that are looked at before anything runs."""
LOGITS = "logits"
"""Name by which libraries call the compared tensor among all outputs of their models."""


def loss(output: Any, targets: Tensor) -> Tensor:
    """Mean over all labels that count, in fp32; 0 where none does, as a micro-batch may have it."""
    output = _compared(output)
    if targets.is_floating_point():
        return F.mse_loss(output.float(), targets.float())
    if output.shape[:-1] == targets.shape:
        output, targets = output.flatten(0, -2), targets.flatten()
    count = (targets != IGNORED).sum().clamp(min=1)
    return F.cross_entropy(output.float(), targets, reduction="sum") / count


def counted(targets: Tensor) -> list[int]:
    """How many labels of each sample count."""
    return (targets != IGNORED).reshape(len(targets), -1).sum(1).tolist()


def classes_of(output: Any, targets: Tensor, name: str) -> int | None:
    """How many labels a model tells apart by what it puts out; None where its targets are no
    labels. Raises ValueError where `loss` cannot compare the two."""
    output = _compared(output)
    if not isinstance(output, Tensor):
        raise ValueError(
            f"the module of {name} puts out a {type(output).__name__}; it must put out one tensor, "
            f"or something with {LOGITS!r}"
        )
    found, wanted = tuple(output.shape), tuple(targets.shape)
    shapes = f"{name} puts out {_words(found)} for targets of {_words(wanted)}"
    if targets.is_floating_point():
        if found != wanted:
            raise ValueError(f"{shapes}; the mean squared error needs the same shape")
        return None
    if targets.dtype != torch.int64:
        kind = str(targets.dtype).removeprefix("torch.")
        raise ValueError(f"targets of {name} are {kind}; labels are int64, other targets float32")
    if found[:-1] == wanted:
        return found[-1]
    if len(found) > 1 and found[:1] + found[2:] == wanted:
        return found[1]
    raise ValueError(f"{shapes}; logits are of the same shape with the classes last, or second")


def _compared(output: Any) -> Any:
    """Output that is compared with the targets; libraries put out more."""
    return output[LOGITS] if isinstance(output, Mapping) and LOGITS in output else output


class Words(Batches):
    """Samples of a text."""

    def __init__(self, text: Text, seq: int, seed: int, classes: int | None) -> None:
        """Raises ValueError for more tokens than classes."""
        if classes is not None and text.tokenizer.words > classes:
            raise ValueError(
                f"the text is of {text.tokenizer.words} tokens, and the model tells {classes} apart"
            )
        super().__init__(text.tokens, seq, 1, seed)
        self.name = text.name


class Samples:
    """Samples of any indexed collection, in an order that only the seed decides."""

    def __init__(self, items: Any, *, name: str, seed: int, classes: int | None = None) -> None:
        """Raises ValueError for no samples, such as are no tuples, and targets that cannot be."""
        self._items, self.name, self._seed, self._classes = items, name, seed, classes
        if len(items) < 1:
            raise ValueError(f"{name} gave no samples; at least one is needed")
        step = max(1, len(items) // HASHED)
        digest = hashlib.sha256(str(len(items)).encode())
        for at in range(0, len(items), step):
            parts = item_of(items, at)
            self._check(parts[-1][None])
            for part in parts:
                digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy())
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self._items)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """Inputs of the model, the targets last, on the CPU. Raises ValueError for samples that are
        unlike each other, and for labels that cannot be."""
        return self.at([place_of(sample, len(self), self._seed) for sample in samples], samples)

    def at(self, places: Sequence[int], samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `rows`, of the items at some places, which draw random numbers as these samples."""
        items = [
            item_of(self._items, place, key(self._seed, "item", sample))
            for place, sample in zip(places, samples, strict=True)
        ]
        try:
            rows = tuple(torch.stack(parts) for parts in zip(*items, strict=True))
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"samples of {self.name} are unlike each other: {error}") from error
        self._check(rows[-1])
        return rows

    def _check(self, targets: Tensor) -> None:
        if not targets.is_floating_point():
            _check_labels(targets, self._classes, self.name)


def item_of(items: Any, at: int, seed: int = 0) -> tuple[Tensor, ...]:
    """One sample; what it draws of random numbers belongs to the seed. Raises ValueError where it
    is no tuple of inputs and a target, and for numbers that no model here computes with."""
    with generators(seed):
        item = items[at]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise ValueError(
            f"sample {at} is a {type(item).__name__}; it must be a tuple of what the model takes "
            "and, last, the target"
        )
    parts = tuple(torch.as_tensor(part) for part in item)
    for part in parts:
        if part.is_floating_point() and part.dtype != torch.float32:
            kind = str(part.dtype).removeprefix("torch.")
            raise ValueError(f"sample {at} holds {kind} numbers; give them as float32")
    return parts


def _check_labels(targets: Tensor, classes: int | None, name: str) -> None:
    """Raise ValueError for a label that is not among so many classes."""
    labels = targets[targets != IGNORED]
    if classes is None or not labels.numel():
        return
    for label in (int(labels.min()), int(labels.max())):
        if not 0 <= label < classes:
            raise ValueError(
                f"{name} has the label {label}, and the model tells {classes} apart: labels are 0 "
                f"to {classes - 1}"
            )


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) if shape else "one number"
