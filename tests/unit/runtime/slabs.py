"""Slabs of one layer to update, as the tests of the optimizer's kernels want them."""

import math

import pytest
import torch

from workbench.runtime.updates import host_adam
from workbench.runtime.updates.host_adam import AdamStep
from workbench.runtime.updates.split import join, split

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

rounds_like_torch = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"),
    reason="torch rounds its moments otherwise where it does not use fused multiply-add",
)

BETAS = (0.9, 0.95)


def hyper(step: int = 1, **changes: float) -> AdamStep:
    defaults = {"lr": 1e-3, "beta1": BETAS[0], "beta2": BETAS[1], "eps": 1e-8, "weight_decay": 0.1}
    return AdamStep(step=step, **(defaults | changes))


class Slabs:
    """Random masters, whole (fp32) or in halves (bf16 and the rest), and zero moments."""

    def __init__(self, *shape: int, seed: int = 0, halves: bool = False) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.weights, self.rest = self.random(*shape), None
        if halves:
            whole = self.weights
            self.weights, self.rest = whole.bfloat16(), torch.empty(shape, dtype=torch.int16)
            split(whole, self.weights, self.rest)
        self.exp_avg = torch.zeros(shape)
        self.exp_avg_sq = torch.zeros(shape)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    @property
    def master(self) -> torch.Tensor:
        return self.weights.clone() if self.rest is None else join(self.weights, self.rest)

    def trained(self, steps: int, scale: float = 1e-3) -> "Slabs":
        """These slabs with the small weights and the moments of some training."""
        assert self.rest is None
        self.weights.mul_(0.02)
        for step in range(1, steps + 1):
            grad = self.random(*self.weights.shape) * scale
            self.update(grad, hyper(step), decay_split=self.weights.numel())
        return self

    def copy(self, *, halves: bool = False) -> "Slabs":
        other = Slabs(*self.weights.shape, halves=halves)
        if halves:
            split(self.master, other.weights, other.rest)
        else:
            other.weights.copy_(self.master)
        other.exp_avg.copy_(self.exp_avg)
        other.exp_avg_sq.copy_(self.exp_avg_sq)
        return other

    def slabs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.weights, self.exp_avg, self.exp_avg_sq

    def states(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """fp32 master and moments."""
        return self.master, self.exp_avg.clone(), self.exp_avg_sq.clone()

    def update(self, grad: torch.Tensor, now: AdamStep | None, **settings) -> None:
        host_adam.update(*self.slabs(), grad, now, rest=self.rest, **settings)

    def revert(self, grad: torch.Tensor, then: AdamStep, **settings) -> None:
        self.update(grad, None, undo=then, **settings)


def equal(some: Slabs, others: Slabs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some.states(), others.states(), strict=True))


def ulps(error: torch.Tensor, *values: torch.Tensor) -> float:
    """The largest error, in units in the last place of the largest of the values."""
    largest = torch.stack([value.abs() for value in values]).amax(0)
    spacing = torch.nextafter(largest, torch.tensor(math.inf)) - largest
    return (error.abs() / spacing.double()).max().item()
