"""An update on the device and its inverse are the host's, to the bit.

Where Triton is installed, ``TRITON_INTERPRET=1`` runs the kernel on a CPU as well.
"""

import contextlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from tests.unit.runtime.slabs import hyper
from workbench.runtime.updates import adam_step, device_adam, host_adam
from workbench.runtime.updates.split import join, split

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None

on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or INTERPRETED,
    reason="needs a CUDA device, and Triton to compile for it",
)


class Slabs:
    """Random master weights, split or whole, and zero moments, all beginning at ``offset``."""

    def __init__(self, numel: int, *, narrow: bool, device: str = "cpu", offset: int = 0) -> None:
        def slab(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(numel + offset, dtype=dtype, device=device)[offset:]

        master = torch.randn(numel, generator=torch.Generator().manual_seed(0))
        self.weights = slab(torch.bfloat16 if narrow else torch.float32)
        self.rest = slab(torch.int16) if narrow else None
        self.exp_avg, self.exp_avg_sq = slab(torch.float32), slab(torch.float32)
        self.begin(master, self.exp_avg, self.exp_avg_sq)

    def begin(
        self, master: torch.Tensor, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor
    ) -> "Slabs":
        """These slabs with other values."""
        if self.rest is None:
            self.weights.copy_(master)
        else:
            split(master.to(self.weights.device), self.weights, self.rest)
        self.exp_avg.copy_(exp_avg)
        self.exp_avg_sq.copy_(exp_avg_sq)
        return self

    @property
    def master(self) -> torch.Tensor:
        return self.weights if self.rest is None else join(self.weights, self.rest)

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


def assert_equal(ours: Slabs, theirs: Slabs) -> None:
    for a, b in zip(ours.results(), theirs.results(), strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("narrow", [True, False])
def test_on_a_cpu_it_is_the_host_update(narrow):
    ours, theirs = (Slabs(5_003, narrow=narrow) for _ in range(2))
    train(device_adam.update, ours, 3_000, torch.bfloat16)
    train(host_adam.update, theirs, 3_000, torch.bfloat16)
    assert_equal(ours, theirs)
    grad, first, second = torch.ones(5_003), hyper(13), hyper(13, grad_scale=0.5)
    for module, slabs in ((device_adam, ours), (host_adam, theirs)):
        where = {"decay_split": 9, "rest": slabs.rest, "threads": 2}
        module.update(*slabs.states(), grad, first, **where)
        module.update(*slabs.states(), grad, second, **where, undo=first)
        module.update(*slabs.states(), grad, None, **where, undo=second)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_emptied_the_weights_cannot_be_taken_back(device):
    slabs = [torch.zeros(8, device=device) for _ in range(4)]
    then, message = hyper(lr=1.0, weight_decay=1.0), "emptied the weights with cannot be taken back"
    with pytest.raises(ValueError, match=message):
        device_adam.update(*slabs, hyper(), decay_split=1, undo=then)


class Kernel(NamedTuple):
    """The kernel's update, and the device of the slabs that it takes."""

    update: Callable[..., None]
    device: str


@pytest.fixture(params=[pytest.param("cuda", marks=[on_gpu, pytest.mark.gpu]), "interpreted"])
def kernel(request, monkeypatch):
    if host_adam.backend() != "compiled":
        pytest.skip("needs a C++ compiler, for what to compare with")
    if request.param == "interpreted":
        if not INTERPRETED:
            pytest.skip("needs Triton and TRITON_INTERPRET=1")
        return interpreted(monkeypatch)
    if device_adam._launch() is None:
        pytest.skip("needs Triton")
    return Kernel(device_adam.update, "cuda")


def interpreted(monkeypatch) -> Kernel:
    """The kernel on a CPU, by Triton's interpreter with two of its operations made exact."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from workbench.runtime.updates import device_adam_kernel

    def fma(self, x, y, z):
        """Rounds once. Double holds the product; its sum is rounded to odd, so that rounding it
        again to fp32 is rounding the exact one."""
        a, b = np.broadcast_arrays(x.data.astype(np.float64) * y.data, z.data.astype(np.float64))
        total = a + b
        of_a = total - b
        error = (a - of_a) + (b - (total - of_a))
        even = np.ascontiguousarray(total).view(np.int64) % 2 == 0
        beyond = np.nextafter(total, np.copysign(np.inf, error))
        odd = np.where((error != 0) & even, beyond, total)
        return TensorHandle(odd.astype(np.float32), z.dtype.scalar)

    def cast(self, source, kind):
        """Keeps subnormal numbers of bf16."""
        if source.dtype.scalar == tl.bfloat16 and kind.scalar == tl.float32:
            whole = (source.data.astype(np.uint32) << 16).view(np.float32)
            return TensorHandle(whole, tl.float32)
        return inexact_cast(self, source, kind)

    inexact_cast = InterpreterBuilder.cast_impl
    monkeypatch.setattr(InterpreterBuilder, "create_fma", fma)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast)
    here = SimpleNamespace(device=contextlib.nullcontext)
    monkeypatch.setattr(device_adam_kernel, "cuda", here)

    def update(*slabs_and_hyper, decay_split, rest, undo=None):
        device_adam_kernel.launch(*slabs_and_hyper, decay_split=decay_split, rest=rest, undo=undo)

    return Kernel(update, "cpu")


def magnitudes(numel: int, least: float, most: float, generator: torch.Generator) -> torch.Tensor:
    """Random numbers of about 10^least to 10^most, of either sign; some are 0."""
    exponents = torch.rand(numel, generator=generator) * (most - least) + least
    values = torch.randn(numel, generator=generator) * 10.0**exponents
    return values.masked_fill_(torch.rand(numel, generator=generator) < 0.1, 0)


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("grad", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("numel", "split_at", "offset"),
    [(1, 1, 0), (511, 0, 0), (2_048, 2_048, 0), (5_003, 3_001, 0), (5_003, 1_300, 3)],
)
def test_it_takes_back_and_makes_again_to_the_bit(kernel, narrow, grad, numel, split_at, offset):
    """Numbers from subnormal ones to those that dwarf the moments, whose old values are lost."""
    generator = torch.Generator().manual_seed(2)
    master, m = (magnitudes(numel, -42, 2, generator) for _ in range(2))
    v = magnitudes(numel, -22, 2, generator).square()
    noise = magnitudes(numel, -42, 6, generator).to(grad)
    for changes in (
        {},
        {"grad_scale": 1.7, "beta1": 0.3, "lr": 0.5, "weight_decay": 1.3},
        {"beta1": 0.0, "beta2": 0.0, "weight_decay": 0.0},
        {"grad_scale": 0.9, "beta1": 0.9999, "beta2": 1 - 1e-7},
    ):
        theirs = Slabs(numel, narrow=narrow).begin(master, m, v)
        ours = Slabs(numel, narrow=narrow, device=kernel.device, offset=offset).begin(master, m, v)
        guess, right = hyper(7, **changes), hyper(7, **(changes | {"grad_scale": 0.37}))
        for now, undo in ((guess, None), (right, guess), (None, right)):
            for by, slabs in ((host_adam, theirs), (kernel, ours)):
                where = {"decay_split": split_at, "rest": slabs.rest}
                there = noise.to(slabs.weights.device)
                by.update(*slabs.states(), there, now, **where, undo=undo)
            assert all(result.isfinite().all() for result in theirs.results())
            assert_equal(ours, theirs)


@on_gpu
@pytest.mark.gpu
def test_on_cuda_no_number_makes_a_kernel_of_its_own(monkeypatch):
    if device_adam._launch() is None:
        pytest.skip("needs Triton")
    from triton import knobs

    compiled = []
    slabs = Slabs(1_000, narrow=True, device="cuda")
    grad = torch.ones(1_000, device="cuda")

    def speculate(step: int, numel: int, **changes: float) -> None:
        first, second = hyper(step, **changes), hyper(step, grad_scale=0.5**step, **changes)
        slab = [state[:numel] for state in (*slabs.states(), grad)]
        where = {"decay_split": min(step, numel), "rest": slabs.rest[:numel]}
        device_adam.update(*slab, first, **where)
        device_adam.update(*slab, second, **where, undo=first)
        device_adam.update(*slab, None, **where, undo=second)

    speculate(1, 1_000)
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **what: compiled.append(what))
    speculate(2, 1, lr=1.0)
    speculate(16, 999, lr=0.0, beta1=0.0, beta2=0.0, eps=1.0, weight_decay=0.0)
    assert not compiled


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
        assert_equal(ours, theirs)


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("narrow", [True, False])
def test_on_cuda_without_triton_it_is_the_host_update_to_a_few_bits(narrow, monkeypatch):
    monkeypatch.setattr(device_adam, "_launch", lambda: None)
    monkeypatch.setattr(device_adam, "CHUNK", 10_000)
    monkeypatch.setattr(adam_step, "PIECE", 3_000)
    theirs, ours = (Slabs(100_003, narrow=narrow, device=d) for d in ("cpu", "cuda"))
    train(host_adam.update, theirs, 70_001, torch.bfloat16)
    train(device_adam.update, ours, 70_001, torch.bfloat16)
    # torch's operations round otherwise; 1.5e-6 was the most seen on an H200.
    near = {"rtol": 5e-6, "atol": 1e-7}
    torch.testing.assert_close(ours.master.cpu(), theirs.master, **near)
    noise = torch.randn(100_003, generator=torch.Generator().manual_seed(2)) * theirs.exp_avg
    guess, right = hyper(13, grad_scale=1.7), hyper(13, grad_scale=0.4)
    for now, undo in (
        (guess, None),
        (right, guess),
        (None, right),
        (guess, None),  # what moments came back moves the weights
    ):
        for by, slabs in ((host_adam, theirs), (device_adam, ours)):
            where = {"decay_split": 70_001, "rest": slabs.rest}
            there = noise.to(slabs.weights.device)
            by.update(*slabs.states(), there, now, **where, undo=undo)
        torch.testing.assert_close(ours.master.cpu(), theirs.master, **near)


@on_gpu
@pytest.mark.gpu
def test_on_cuda_without_triton_temporaries_stay_below_128_mib(monkeypatch):
    monkeypatch.setattr(device_adam, "_launch", lambda: None)
    numel = 40_000_000
    slabs = Slabs(numel, narrow=True, device="cuda")
    grad = torch.ones(numel, dtype=torch.bfloat16, device="cuda")
    guess, right = hyper(), hyper(grad_scale=0.5)
    where = {"decay_split": numel // 2, "rest": slabs.rest}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    device_adam.update(*slabs.states(), grad, guess, **where)
    device_adam.update(*slabs.states(), grad, right, **where, undo=guess)
    device_adam.update(*slabs.states(), grad, None, **where, undo=right)
    assert torch.cuda.max_memory_allocated() - before < 128 * 2**20


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
