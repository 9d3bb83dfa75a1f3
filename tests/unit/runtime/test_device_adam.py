"""An update on the device is the host's, to the bit."""

import pytest
import torch

from workbench.runtime import device_adam, host_adam
from workbench.runtime.adam_step import AdamStep
from workbench.runtime.split import join, split

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def hyper(step: int = 1, **changes: float) -> AdamStep:
    defaults = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    return AdamStep(step=step, **(defaults | changes))


class Slabs:
    """Random master weights, split or whole, and zero moments, all beginning at ``offset``."""

    def __init__(self, numel: int, *, narrow: bool, device: str = "cpu", offset: int = 0) -> None:
        def slab(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(numel + offset, dtype=dtype, device=device)[offset:]

        master = torch.randn(numel, generator=torch.Generator().manual_seed(0)).to(device)
        self.weights = slab(torch.bfloat16 if narrow else torch.float32)
        self.rest = slab(torch.int16) if narrow else None
        self.exp_avg, self.exp_avg_sq = slab(torch.float32), slab(torch.float32)
        if narrow:
            split(master, self.weights, self.rest)
        else:
            self.weights.copy_(master)

    def states(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.weights, self.exp_avg, self.exp_avg_sq

    def results(self) -> list[torch.Tensor]:
        found = [*self.states()] if self.rest is None else [*self.states(), self.rest]
        return [tensor.cpu() for tensor in found]


def train(update, slabs: Slabs, split_at: int, grad: torch.dtype, **changes: float) -> None:
    """Twelve updates with a changing rate; gradients span what a clipped model may show."""
    generator = torch.Generator().manual_seed(1)
    numel, device = slabs.weights.numel(), slabs.weights.device
    sizes = torch.logspace(-10, 2, numel)[torch.randperm(numel, generator=generator)]
    for step in range(1, 13):
        noise = (torch.randn(numel, generator=generator) * sizes).to(grad).to(device)
        now = hyper(step, lr=1e-3 / step, **changes)
        update(*slabs.states(), noise, now, decay_split=split_at, rest=slabs.rest)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.view(kind), b.view(kind))


@pytest.mark.parametrize("narrow", [True, False])
def test_on_a_cpu_it_is_the_host_update(narrow):
    ours, theirs = (Slabs(5_003, narrow=narrow) for _ in range(2))
    train(device_adam.update, ours, 3_000, torch.bfloat16)
    train(host_adam.update, theirs, 3_000, torch.bfloat16)
    for a, b in zip(ours.results(), theirs.results(), strict=True):
        assert same_bits(a, b)
    grad, first, second = torch.ones(5_003), hyper(13), hyper(13, grad_scale=0.5)
    for update, slabs in ((device_adam.update, ours), (host_adam.update, theirs)):
        update(*slabs.states(), grad, first, decay_split=9, rest=slabs.rest, threads=2)
        update(*slabs.states(), grad, second, decay_split=9, rest=slabs.rest, undo=first)
    for a, b in zip(ours.results(), theirs.results(), strict=True):
        assert same_bits(a, b)


def test_elsewhere_nothing_can_be_taken_back():
    slabs = [torch.zeros(8, device="meta") for _ in range(4)]
    with pytest.raises(ValueError, match="an update on meta cannot be taken back"):
        device_adam.update(*slabs, hyper(), decay_split=0, undo=hyper())


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("grad", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("numel", "split_at", "offset"),
    [(1, 1, 0), (2_048, 0, 0), (100_003, 70_001, 0), (100_003, 100_003, 3)],
)
def test_on_cuda_it_is_the_host_update_to_the_bit(narrow, grad, numel, split_at, offset):
    if device_adam._launch() is None or host_adam.backend() != "compiled":
        pytest.skip("needs Triton and a C++ compiler")
    for changes in ({}, {"beta1": 0.3, "grad_scale": 0.7, "weight_decay": 0.0}):
        theirs = Slabs(numel, narrow=narrow)
        ours = Slabs(numel, narrow=narrow, device="cuda", offset=offset)
        train(host_adam.update, theirs, split_at, grad, **changes)
        train(device_adam.update, ours, split_at, grad, **changes)
        for a, b in zip(ours.results(), theirs.results(), strict=True):
            assert same_bits(a, b)


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("narrow", [True, False])
def test_on_cuda_without_triton_it_is_the_host_update_to_a_few_bits(narrow, monkeypatch):
    monkeypatch.setattr(device_adam, "_launch", lambda: None)
    monkeypatch.setattr(device_adam, "CHUNK", 10_000)
    theirs, ours = (Slabs(100_003, narrow=narrow, device=d) for d in ("cpu", "cuda"))
    train(host_adam.update, theirs, 70_001, torch.bfloat16)
    train(device_adam.update, ours, 70_001, torch.bfloat16)
    masters = [s.weights if s.rest is None else join(s.weights, s.rest) for s in (ours, theirs)]
    # torch's CUDA kernel rounds otherwise; 1.5e-6 was the most seen on an H200.
    torch.testing.assert_close(masters[0].cpu(), masters[1], rtol=5e-6, atol=1e-7)


@on_gpu
@pytest.mark.gpu
def test_on_cuda_a_weight_that_is_no_number_stays_none():
    slabs = Slabs(8, narrow=True, device="cuda")
    grad = torch.full((8,), float("nan"), device="cuda")
    device_adam.update(*slabs.states(), grad, hyper(), decay_split=8, rest=slabs.rest)
    assert slabs.weights.isnan().all()


@on_gpu
@pytest.mark.gpu
def test_on_cuda_a_slab_may_pass_2_to_the_31_elements():
    numel, tail = 2**31 + 4_099, 10_000
    if torch.cuda.mem_get_info()[0] < 15 * numel:
        pytest.skip(f"needs {15 * numel / 2**30:.0f} GiB of free device memory")
    large = Slabs(0, narrow=True, device="cuda")
    large.weights = torch.ones(numel, dtype=torch.bfloat16, device="cuda")
    large.rest = torch.zeros(numel, dtype=torch.int16, device="cuda")
    large.exp_avg, large.exp_avg_sq = torch.zeros(2, numel, device="cuda")
    small = Slabs(0, narrow=True)
    small.weights = torch.ones(tail, dtype=torch.bfloat16)
    small.rest = torch.zeros(tail, dtype=torch.int16)
    small.exp_avg, small.exp_avg_sq = torch.zeros(2, tail)
    cut = tail // 3  # of the tail that decays
    for update, slabs, border in (
        (device_adam.update, large, numel - tail + cut),
        (host_adam.update, small, cut),
    ):
        grad = torch.ones_like(slabs.weights)
        update(*slabs.states(), grad, hyper(), decay_split=border, rest=slabs.rest)
    for a, b in zip(large.states(), small.states(), strict=True):
        assert same_bits(a[-tail:].cpu(), b)
    assert torch.equal(large.weights[0].cpu(), small.weights[0])
