"""torch's fused AdamW with exact clipping inside its kernel, for baselines that bring no optimizer.

The kernel divides gradients by a scale and leaves a step out when a flag is up: what GradScaler
uses to undo a loss scale. Here the scale is the inverse of the clip coefficient and the flag says
that the norm is not finite. So clipping takes no pass of its own over the gradients, and nothing
waits for the norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.core.spec import RunSpec

MARGIN = 1e-6
"""Added to the norm in the clip coefficient, as torch's clipping does."""
ROW = 1024
"""Elements summed in one go on a CPU. torch's norm of 100 M fp32 numbers there is 1 % too small,
since it adds small squares to large sums; over rows of this length it is right to 1e-6 and as fast.
"""


def global_norm(grads: Sequence[Tensor]) -> Tensor:
    """2-norm of all elements of all gradients: an fp32 scalar on their device, not waited for."""
    if grads[0].device.type == "cpu":
        norms = [norm for grad in grads for norm in _norms_on_cpu(grad.detach().view(-1))]
    else:
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack(list(norms)))


def clip_coefficient(norm: Tensor, clip: float | None) -> Tensor:
    """min(1, clip / norm), a scalar on the norm's device."""
    if clip is None:
        return torch.ones_like(norm)
    return (clip / (norm + MARGIN)).clamp(max=1.0)


class ClippedAdamW:
    """AdamW over fp32 parameters, on whichever device they are."""

    def __init__(self, groups: list[dict], spec: RunSpec) -> None:
        """`groups` as torch's optimizers take them; their parameters get a `grad` before a step."""
        self.inner = torch.optim.AdamW(
            groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True
        )
        self._clip = spec.clip

    @staticmethod
    def counted(steps: int, master: Tensor) -> Tensor:
        """A number of steps as torch's fused kernel keeps it: on the parameter's device."""
        return torch.full((), float(steps), device=master.device)

    def step(self, lr: float, norm: Tensor) -> None:
        """Update, and let go of the gradients. `norm` is theirs, all of them taken together; if it
        is not finite, moments, weights and step number stay as they are."""
        for group in self.inner.param_groups:
            group["lr"] = lr
        self.inner.found_inf = (~norm.isfinite()).float()
        self.inner.grad_scale = 1 / clip_coefficient(norm, self._clip)
        self.inner.step()
        self.inner.zero_grad()


def _norms_on_cpu(flat: Tensor) -> list[Tensor]:
    """Norms of the parts of one gradient, [N]: whole rows, and what is left."""
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    return [torch.linalg.vector_norm(rows), rest]
