"""Micro-batches of a minibatch, and their conversion from the forward to the backward size.

Harmony runs forward and backward passes with sizes of their own: a forward pass keeps less, so it
may take more samples at a time. Stashed activations then arrive in forward sizes and are cut anew.
"""

from __future__ import annotations


def split(samples: int, size: int) -> tuple[int, ...]:
    """Micro-batches of `size` samples, and a smaller last one for what is left."""
    if samples < 1 or not 1 <= size <= samples:
        raise ValueError(
            f"cannot cut {samples} samples into micro-batches of {size}: give a size from 1 to the "
            "number of samples"
        )
    whole, rest = divmod(samples, size)
    return (size,) * whole + ((rest,) if rest else ())


def shares(minibatch: int, gpus: int) -> tuple[int, ...]:
    """Samples of each GPU in data parallel: the first ones get one more where it is uneven."""
    if not 1 <= gpus <= minibatch:
        raise ValueError(
            f"a minibatch of {minibatch} samples leaves some of {gpus} GPUs without any"
        )
    return tuple(minibatch // gpus + (rank < minibatch % gpus) for rank in range(gpus))


def converted(sizes: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """Per micro-batch of `sizes`, the micro-batches of `size` samples that are complete with it.

    What is too little for a whole one waits for the next; with the last comes the rest.
    """
    waiting, emitted = 0, []
    for index, arrived in enumerate(sizes):
        whole, waiting = divmod(waiting + arrived, size)
        last = (waiting,) if waiting and index == len(sizes) - 1 else ()
        emitted.append((size,) * whole + last)
    return tuple(emitted)
