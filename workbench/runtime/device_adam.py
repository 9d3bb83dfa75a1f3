"""AdamW for slabs of the device tier, behind the signature of the host update.

STRONGHOLD keeps the optimizer states of the first layers on the device (SC'22):
their gradients come last and their weights are needed first, so a host update of theirs could hide
behind nothing. On a GPU one kernel makes the host's update in one pass at the memory's speed; on a
machine without one the device tier is host memory and the host kernel serves it.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from workbench.runtime import host_adam
from workbench.runtime.adam_step import AdamStep, check_slabs, fused_update
from workbench.runtime.gpu_compiler import triton_works

# Without Triton: bounds the temporaries for a widened gradient and a joined master to 64 MiB each
# of the device budget; a launch per 16 Mi elements is already invisible.
CHUNK = 1 << 24


def update(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep,
    *,
    decay_split: int,
    rest: Tensor | None = None,
    undo: AdamStep | None = None,
    threads: int = 1,
) -> None:
    """As ``host_adam.update``, for tensors on one device, enqueued on its current stream.

    ``threads`` matters on a CPU alone. On a GPU the result is the host's to the bit, but for values
    that are not a number; where Triton cannot be used there it is that of torch's fused AdamW,
    which differs in the last bits.

    Raises ValueError for tensors an update cannot take, and for ``undo`` on a GPU: what is updated
    there is updated when the norm is known.
    """
    if weights.device.type == "cpu":
        host_adam.update(
            weights,
            exp_avg,
            exp_avg_sq,
            grad,
            hyper,
            decay_split=decay_split,
            rest=rest,
            undo=undo,
            threads=threads,
        )
        return
    if undo is not None:
        raise ValueError(
            f"undo is {undo}; an update on {weights.device} cannot be taken back, only on a CPU"
        )
    check_slabs(weights, exp_avg, exp_avg_sq, grad, rest, decay_split, weights.device)
    if (launch := _launch()) is not None:
        launch(weights, exp_avg, exp_avg_sq, grad, hyper, decay_split, rest)
        return
    with torch.no_grad():
        fused_update(
            weights,
            exp_avg,
            exp_avg_sq,
            grad,
            hyper,
            decay_split=decay_split,
            chunk=CHUNK,
            rest=rest,
        )


@functools.cache
def _launch() -> Callable[..., None] | None:
    """The kernel, or None where Triton cannot be used."""
    if not triton_works():
        return None
    from workbench.runtime import device_adam_kernel

    return device_adam_kernel.launch
