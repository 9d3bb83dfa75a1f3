"""The AdamW that runs on the host after a peer's backward pass: the faster of the two at hand.

torch's fused AdamW is one pass over the states and clips on the way. DeepSpeed's CPU Adam is said
to be faster on some processors, but takes a pass of its own to clip. Which one wins depends on the
machine, so both are timed on it, if DeepSpeed's is built.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from baselines import deepspeed_ops
from baselines.adamw import ClippedAdamW, clip_coefficient
from baselines.states import AdamW
from workbench.core.spec import RunSpec

TRIAL_TENSORS, TRIAL_ELEMENTS = 4, 1 << 24
"""Tensors and elements of the timing: together larger than any cache, and a second or two on any
machine."""
TRIALS = 5


class HostAdamW(AdamW, Protocol):
    """Interface of both host optimizers."""

    def step(self, lr: float, norm: Tensor) -> None:
        """Update all weights, with gradients clipped by their global norm."""


Maker = Callable[[list[dict], RunSpec], HostAdamW]


class DeepSpeedAdamW:
    """DeepSpeedCPUAdam with exact clipping; `activate` its operators before importing DeepSpeed."""

    def __init__(self, groups: list[dict], spec: RunSpec) -> None:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        self.inner = DeepSpeedCPUAdam(
            groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, adamw_mode=True
        )
        self._clip = spec.clip

    @staticmethod
    def counted(steps: int, master: Tensor) -> int:
        """A number of steps as DeepSpeed keeps it."""
        return steps

    def step(self, lr: float, norm: Tensor) -> None:
        """As `ClippedAdamW.step`."""
        if bool(norm.isfinite()):
            coefficient = float(clip_coefficient(norm, self._clip))
            if coefficient < 1:
                grads = [p.grad for group in self.inner.param_groups for p in group["params"]]
                torch._foreach_mul_(grads, coefficient)
            for group in self.inner.param_groups:
                group["lr"] = lr
            self.inner.step()
        self.inner.zero_grad()


def fastest(spec: RunSpec, device: torch.device) -> tuple[Maker, str]:
    """The maker of the faster host AdamW, and which one it is, in words.

    Without a GPU it is torch's, and nothing is timed: the host's share of the cores is not the
    whole machine there.
    """
    if device.type != "cuda":
        return ClippedAdamW, "torch's fused AdamW"
    if importlib.util.find_spec("deepspeed") is None or deepspeed_ops.missing(["cpu_adam"], "cuda"):
        return ClippedAdamW, "torch's fused AdamW (DeepSpeed's is not built here)"
    deepspeed_ops.activate("cuda")
    makers: dict[str, Maker] = {"torch's fused AdamW": ClippedAdamW, "DeepSpeed's": DeepSpeedAdamW}
    rates = {name: updates_per_s(maker, spec) for name, maker in makers.items()}
    best = max(rates, key=rates.get)
    return makers[best], f"{best} (timed: {_told(rates)})"


def torchs_is_faster(spec: RunSpec) -> tuple[bool, str]:
    """Whether torch's fused AdamW is the faster one where somebody else clips, as DeepSpeed does;
    and by how much, in words. Its operators are active."""
    torchs, theirs = (
        updates_per_s(maker, spec, clips=False) for maker in (ClippedAdamW, DeepSpeedAdamW)
    )
    return torchs > theirs, _told({"torch's fused AdamW": torchs, "DeepSpeed's": theirs})


def _told(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} {rate / 1e9:.2f} G parameters/s" for name, rate in rates.items())


def updates_per_s(maker: Maker, spec: RunSpec, *, clips: bool = True) -> float:
    """Parameters that one step of the optimizer updates per second, clipping included or not; the
    best of a few."""
    weights = [torch.zeros(TRIAL_ELEMENTS) for _ in range(TRIAL_TENSORS)]
    grads = [torch.full_like(weight, 1e-3) for weight in weights]
    optimizer = maker([{"params": weights, "weight_decay": spec.weight_decay}], spec)
    norm = torch.tensor(2.0 if spec.clip is None else 2.0 * spec.clip)
    best_s = float("inf")
    for _ in range(TRIALS):
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad
        begun_s = time.perf_counter()
        if clips:
            optimizer.step(spec.lr, norm)
        else:
            optimizer.inner.step()
        best_s = min(best_s, time.perf_counter() - begun_s)
    return TRIAL_TENSORS * TRIAL_ELEMENTS / best_s
