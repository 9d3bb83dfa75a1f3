"""AdamW for slabs of the device tier, behind the signature of the host update.

STRONGHOLD keeps the optimizer states of the first layers on the device (SC'22):
their gradients come last and their weights are needed first, so a host update of theirs could hide
behind nothing. On a GPU torch's fused AdamW runs at memory speed; on a machine without one the
device tier is host memory and the host kernel serves it.
"""

import torch
from torch import Tensor

from workbench.runtime import host_adam
from workbench.runtime.adam_step import AdamStep, check_slabs, fused_update

# Bounds the temporary for a widened gradient to 64 MiB of the device budget; at 120 G params/s a
# launch per 16 Mi elements is already invisible.
CHUNK = 1 << 24


def update(
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep,
    *,
    decay_split: int,
    working: Tensor | None = None,
    threads: int = 1,
) -> None:
    """As ``host_adam.update``, for tensors on one device, enqueued on its current stream.

    ``threads`` matters on a CPU alone. On a GPU the result differs from torch's non-fused AdamW in
    the last bits, as torch's own fused one does.
    """
    if param.device.type == "cpu":
        host_adam.update(
            param,
            exp_avg,
            exp_avg_sq,
            grad,
            hyper,
            decay_split=decay_split,
            working=working,
            threads=threads,
        )
        return
    check_slabs(param, exp_avg, exp_avg_sq, grad, working, decay_split, param.device)
    with torch.no_grad():
        fused_update(param, exp_avg, exp_avg_sq, grad, hyper, decay_split, working, CHUNK)
