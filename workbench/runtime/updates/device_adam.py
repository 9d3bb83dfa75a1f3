"""AdamW for slabs of the device tier, behind the signature of the host update.

STRONGHOLD keeps the optimizer states of the first layers on the device (SC'22):
their gradients come last and their weights are needed first, so a host update of theirs could hide
behind nothing. On a GPU one kernel makes the host's update in one pass at the memory's speed, and
takes a speculative one back in the pass that makes it again; on a machine without a GPU the device
tier is host memory and the host kernel serves it.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from workbench.core.native import triton_works
from workbench.runtime.updates import host_adam
from workbench.runtime.updates.adam_step import AdamStep, check_slabs, plain_update

# Elements taken at a time without Triton: masters are joined into a temporary of 24 MiB, beside
# which the operations of one ``PIECE`` have theirs.
CHUNK = 6 << 20


def update(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep | None,
    *,
    decay_split: int,
    rest: Tensor | None = None,
    undo: AdamStep | None = None,
    threads: int = 1,
) -> None:
    """As ``host_adam.update``, for tensors on one device, enqueued on its current stream.

    ``threads`` matters on a CPU alone. On a GPU the result is the host's to the bit, but for values
    that are not a number. Where Triton cannot be used there, torch's operations make the update,
    which differ in the last bits, and ``undo`` takes passes of its own, after which old values are
    off by about 3 ulp of the larger of old and new one.
    """
    slabs = (weights, exp_avg, exp_avg_sq, grad)
    where = {"decay_split": decay_split, "rest": rest, "undo": undo}
    if weights.device.type == "cpu":
        host_adam.update(*slabs, hyper, **where, threads=threads)
        return
    check_slabs(*slabs, rest, decay_split, weights.device, undo)
    if (launch := _launch()) is not None:
        launch(*slabs, hyper, **where)
        return
    with torch.no_grad():
        plain_update(*slabs, hyper, **where, chunk=CHUNK, fused=False)


@functools.cache
def _launch() -> Callable[..., None] | None:
    """The kernel, or None where Triton cannot be used."""
    if not triton_works():
        return None
    from workbench.runtime.updates import device_adam_kernel

    return device_adam_kernel.launch
