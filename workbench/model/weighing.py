"""How much the micro-batches of a step weigh in its mean loss: by the labels that count in them.

A head gives the mean over the labels of a micro-batch that count; times their number, its weight,
that is their sum. The loss of a step is the sum of all these sums over the weight of the whole
step, wherever the micro-batches run. Who computes one has to know that weight before the first
backward pass, and can: which samples a step has follows from its number.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.model.text import Batches


def weight_of_step(
    model: LayeredModel,
    batches: Batches,
    step: int,
    known: Sequence[int] = (),
    others: Sequence[int] = (),
) -> int:
    """The number of labels of a step that count; of samples, where all have as many.

    `known`: `LayeredModel.counted` of samples that were read already; `others`: numbers of those
    that were not, which are read where their labels may be fewer. Raises ValueError where none
    counts.
    """
    weight = sum(known)
    if others:
        differ = model.counts_differ
        weight += sum(model.counted(batches.rows(others)[-1])) if differ else len(others)
    if not weight:
        raise ValueError(
            f"of the labels of step {step} none counts, so that it has no mean loss: give more "
            "samples a batch, or leave out samples without a label"
        )
    return weight


def weights_of(
    model: LayeredModel, batches: Batches, step: int, targets: Sequence[Tensor]
) -> list[float]:
    """How much the mean loss of each micro-batch weighs in that of the step, 1 on the mean, by the
    targets of all. Raises ValueError where no label counts."""
    counts = [sum(model.counted(part)) for part in targets]
    whole = weight_of_step(model, batches, step, counts)
    return [count * len(counts) / whole for count in counts]
