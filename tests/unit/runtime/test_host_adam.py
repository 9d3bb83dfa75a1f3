"""The host update equals torch's AdamW, moves every element, and calls of it overlap."""

import functools
import math
import threading

import pytest
import torch

from workbench.runtime import device_adam, host_adam, native
from workbench.runtime.host_adam import AdamStep

BETAS = (0.9, 0.95)


def hyper(step: int = 1, **changes: float) -> AdamStep:
    defaults = {"lr": 1e-3, "beta1": BETAS[0], "beta2": BETAS[1], "eps": 1e-8, "weight_decay": 0.1}
    return AdamStep(step=step, **(defaults | changes))


class Slabs:
    """Random master weights and zero moments."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.param = self.random(*shape)
        self.exp_avg = torch.zeros(shape)
        self.exp_avg_sq = torch.zeros(shape)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def states(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.param, self.exp_avg, self.exp_avg_sq


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    """Runs the test with the compiled kernel, and again with torch's as without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    elif host_adam.backend() != "compiled":
        pytest.skip("this machine has no C++ compiler")
    return request.param


@pytest.fixture
def compiled():
    if host_adam.backend() != "compiled":
        pytest.skip("this machine has no C++ compiler")


def train_both(numel: int, split: int, steps: int = 20, beta1: float = 0.9, **form: bool):
    """The same gradients and learning-rate schedule through ours and torch.optim.AdamW."""
    ours = Slabs(numel)
    decaying = torch.nn.Parameter(ours.param[:split].clone())
    others = torch.nn.Parameter(ours.param[split:].clone())
    groups = [
        {"params": [decaying], "weight_decay": 0.1},
        {"params": [others], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(beta1, BETAS[1]), **form)
    for step in range(1, steps + 1):
        grad, lr = ours.random(numel), 1e-3 * step / steps
        decaying.grad, others.grad = grad[:split].clone(), grad[split:].clone()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        now = hyper(step, lr=lr, beta1=beta1)
        host_adam.update(*ours.states(), grad, now, decay_split=split)
    theirs = [torch.cat([decaying, others]).detach()]
    for moment in ("exp_avg", "exp_avg_sq"):
        theirs.append(torch.cat([optimizer.state[part][moment] for part in (decaying, others)]))
    return ours.states(), theirs


@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("beta1", [0.9, 0.3])  # torch interpolates from the other end below 0.5
def test_equals_torch_over_20_steps(backend, form, beta1):
    for ours, theirs in zip(*train_both(10_007, 7_001, beta1=beta1, **form), strict=True):
        # Where a weight passes near zero one rounding of it is large relative to what is left.
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"),
    reason="torch rounds its moments otherwise where it does not use fused multiply-add",
)
def test_is_bitwise_torch_where_torch_rounds_correctly(compiled):
    """Sizes are whole vectors: torch's own result depends on where its vectorised loop ends."""
    (_, *ours), (_, *theirs) = train_both(1 << 14, 1 << 13, foreach=False)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for ours, theirs in zip(*train_both(1 << 14, 1 << 13, fused=True), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("numel", [1, 63, 4_097, 300_001])
def test_every_element_moves(backend, numel):
    slabs = Slabs(numel)
    before = slabs.param.clone()
    host_adam.update(*slabs.states(), torch.ones(numel), hyper(), decay_split=0)
    moved = before - slabs.param
    assert torch.allclose(
        moved, torch.tensor(1e-3), rtol=1e-2
    )  # the first step of AdamW is lr wide


def test_every_element_of_a_matrix_moves(backend):
    """The published artifact updated as many elements as a matrix has rows."""
    slabs = Slabs(96, 513)
    before = slabs.param.clone()
    working = torch.zeros(96, 513, dtype=torch.bfloat16)
    grad = torch.ones(96, 513)
    host_adam.update(
        *slabs.states(), grad, hyper(), decay_split=slabs.param.numel(), working=working
    )
    assert (slabs.param != before).all()
    assert (slabs.exp_avg != 0).all()
    assert torch.equal(working, slabs.param.bfloat16())


def test_only_leading_elements_decay(backend):
    slabs = Slabs(100_000)
    before = slabs.param.clone()
    zero = torch.zeros(100_000)
    host_adam.update(*slabs.states(), zero, hyper(lr=0.5, weight_decay=0.5), decay_split=60_001)
    assert torch.equal(slabs.param[:60_001], before[:60_001] * 0.75)
    assert torch.equal(slabs.param[60_001:], before[60_001:])


def test_bf16_gradient_equals_the_widened_one(backend):
    narrow, wide = Slabs(50_003), Slabs(50_003)
    for step in range(1, 4):
        grad = narrow.random(50_003).bfloat16()
        host_adam.update(*narrow.states(), grad, hyper(step), decay_split=40_000)
        host_adam.update(*wide.states(), grad.float(), hyper(step), decay_split=40_000)
    assert all(torch.equal(a, b) for a, b in zip(narrow.states(), wide.states(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_working_copy_is_the_rounded_weight(backend, dtype):
    slabs = Slabs(200_003)
    working = torch.zeros(200_003, dtype=dtype)
    grad = slabs.random(200_003)
    host_adam.update(*slabs.states(), grad, hyper(), decay_split=100, working=working)
    assert torch.equal(working, slabs.param.to(dtype))


def test_working_copy_rounds_ties_and_specials_as_torch_does(backend):
    """No decay and no gradient: the weights stay, so the copies show nothing but the rounding."""
    bits = torch.arange(-(1 << 31), 1 << 31, 40_961, dtype=torch.int64).to(torch.int32)
    ties = (bits & ~0xFFFF) | 0x8000
    weights = torch.cat([bits, ties]).view(torch.float32)
    working = torch.zeros(weights.numel(), dtype=torch.bfloat16)
    param, still = weights.clone(), hyper(lr=0.0)
    zeros = [torch.zeros(weights.numel()) for _ in range(3)]
    host_adam.update(param, *zeros, still, decay_split=0, working=working)
    nan = weights.isnan()
    assert nan.any()
    assert working[nan].isnan().all()
    assert torch.equal(working[~nan], weights[~nan].bfloat16())


def test_a_nan_gradient_is_not_hidden(backend):
    slabs = Slabs(1000)
    working = torch.zeros(1000, dtype=torch.bfloat16)
    grad = torch.ones(1000)
    grad[517] = math.nan
    host_adam.update(*slabs.states(), grad, hyper(), decay_split=1000, working=working)
    assert slabs.param.isnan().nonzero().item() == 517
    assert working.isnan().nonzero().item() == 517


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grad_scale_multiplies_and_leaves_the_gradient_alone(backend, dtype):
    scaled, plain = Slabs(40_003), Slabs(40_003)
    coefficient = 0.37
    grad = scaled.random(40_003).to(dtype)
    before = grad.clone()
    multiplied = grad.float() * coefficient
    host_adam.update(*scaled.states(), grad, hyper(grad_scale=coefficient), decay_split=9)
    host_adam.update(*plain.states(), multiplied, hyper(), decay_split=9)
    assert torch.equal(grad, before)
    assert all(torch.equal(a, b) for a, b in zip(scaled.states(), plain.states(), strict=True))


def test_result_does_not_depend_on_threads_or_on_pieces(compiled):
    """Layers are updated by however many threads are free, and disk-resident ones in pieces."""
    numel, split = 1_000_003, 700_001
    results = []
    for threads, piece in ((1, numel), (4, numel), (3, 123_457)):
        slabs = Slabs(numel)
        grad = slabs.random(numel)
        working = torch.empty(numel, dtype=torch.bfloat16)
        for begin in range(0, numel, piece):
            part = slice(begin, min(begin + piece, numel))
            views = [state[part] for state in slabs.states()]
            decaying = min(max(split - begin, 0), views[0].numel())
            host_adam.update(
                *views,
                grad[part],
                hyper(7),
                decay_split=decaying,
                working=working[part],
                threads=threads,
            )
        results.append((*slabs.states(), working))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


RENDEZVOUS = """
#include <atomic>
#include <chrono>
#include <thread>
static std::atomic<int> inside;
extern "C" void workbench_adamw(float** update) {
    ++inside;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    **update = static_cast<float>(inside);  // into the first element of param
}
"""


def test_two_updates_overlap(compiled, tmp_path, monkeypatch):
    """A kernel that waits until two calls are inside it: any lock around it keeps one out."""
    source = tmp_path / "rendezvous.cpp"
    source.write_text(RENDEZVOUS)
    monkeypatch.setattr(native.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(host_adam, "SOURCE", source)
    monkeypatch.setattr(host_adam, "_kernel", functools.cache(host_adam._kernel.__wrapped__))
    layers = [Slabs(8, seed=layer) for layer in range(2)]
    threads = [
        threading.Thread(
            target=host_adam.update,
            args=(*layer.states(), torch.zeros(8), hyper()),
            kwargs={"decay_split": 0},
        )
        for layer in layers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [layer.param[0].item() for layer in layers] == [2, 2]


def test_concurrent_updates_of_different_layers_keep_apart(backend):
    """The artifact's workers shared one optimizer object and overwrote each other's rates."""

    def train(layer: int, slabs: Slabs) -> None:
        for step in range(1, 30):
            grad = slabs.random(5_003)
            now = hyper(step * (layer + 1), lr=1e-3 * (layer + 1))
            host_adam.update(*slabs.states(), grad, now, decay_split=1000 * layer)

    alone = [Slabs(5_003, seed=layer) for layer in range(4)]
    together = [Slabs(5_003, seed=layer) for layer in range(4)]
    for layer, slabs in enumerate(alone):
        train(layer, slabs)
    threads = [threading.Thread(target=train, args=item) for item in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.param, b.param)


def test_fallback_equals_compiled(compiled, monkeypatch):
    ours = train_both(10_007, 7_001, fused=True)[0]
    monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    assert host_adam.backend() == "torch"
    for a, b in zip(ours, train_both(10_007, 7_001, fused=True)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_fallback_takes_a_slab_in_bounded_chunks(monkeypatch):
    monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    whole, chunked = Slabs(100_003), Slabs(100_003)
    grad = whole.random(100_003).bfloat16()
    host_adam.update(*whole.states(), grad, hyper(grad_scale=0.5), decay_split=70_000)
    monkeypatch.setattr(host_adam, "FALLBACK_CHUNK", 4_096)
    host_adam.update(*chunked.states(), grad, hyper(grad_scale=0.5), decay_split=70_000)
    for a, b in zip(whole.states(), chunked.states(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_device_update_on_a_cpu_is_the_host_update(backend):
    device, host = Slabs(1000), Slabs(1000)
    grad = torch.ones(1000)
    device_adam.update(*device.states(), grad, hyper(), decay_split=500)
    host_adam.update(*host.states(), grad, hyper(), decay_split=500)
    assert torch.equal(device.param, host.param)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_device_update_on_cuda_equals_the_host_update(dtype, monkeypatch):
    monkeypatch.setattr(device_adam, "CHUNK", 10_000)
    host = Slabs(100_003)
    device = [state.cuda() for state in host.states()]
    working = torch.empty(100_003, dtype=dtype, device="cuda")
    for step in range(1, 21):
        grad = host.random(100_003).to(dtype)
        now = hyper(step, grad_scale=0.7)
        host_adam.update(*host.states(), grad, now, decay_split=70_001)
        device_adam.update(*device, grad.cuda(), now, decay_split=70_001, working=working)
    for ours, theirs in zip(device, host.states(), strict=True):
        # torch's CUDA kernel rounds otherwise; 1.5e-6 was the most seen on an H200.
        torch.testing.assert_close(ours.cpu(), theirs, rtol=5e-6, atol=1e-7)
    assert torch.equal(working, device[0].to(dtype))


def test_an_empty_slab_is_no_error(backend):
    host_adam.update(*Slabs(0).states(), torch.zeros(0), hyper(), decay_split=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grad": torch.zeros(99)}, "grad has 99 elements; param has 100"),
        (
            {"exp_avg": torch.zeros(100, dtype=torch.float64)},
            "exp_avg is torch.float64; torch.float32 is",
        ),
        (
            {"grad": torch.zeros(100, dtype=torch.float16)},
            "grad is torch.float16; torch.float32 or torch.bf",
        ),
        (
            {"exp_avg_sq": torch.zeros(200)[::2]},
            r"exp_avg_sq is not contiguous: shape \(100,\) has strides",
        ),
        ({"grad": torch.zeros(100, device="meta")}, "grad is on meta; this update runs on cpu"),
        ({"working": torch.zeros(3)}, "working has 3 elements; param has 100"),
        ({"decay_split": 101}, "decay_split is 101; it counts elements of param, so 0 to 100"),
        ({"threads": 0}, "threads is 0; at least 1"),
    ],
)
def test_unusable_arguments_are_named(change, message):
    arguments = {
        "param": torch.zeros(100),
        "exp_avg": torch.zeros(100),
        "exp_avg_sq": torch.zeros(100),
        "grad": torch.zeros(100),
        "decay_split": 0,
    }
    with pytest.raises(ValueError, match=message):
        host_adam.update(**(arguments | change), hyper=hyper())


def test_overlapping_slabs_are_refused():
    slabs = Slabs(100)
    both = torch.zeros(150)
    with pytest.raises(ValueError, match="exp_avg and exp_avg_sq overlap by 200 bytes"):
        host_adam.update(
            slabs.param, both[:100], both[50:], torch.zeros(100), hyper(), decay_split=0
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 0}, "step is 0; the first update is number 1"),
        ({"lr": math.nan}, "lr is nan"),
        ({"grad_scale": math.inf}, "grad_scale is inf"),
        ({"beta2": 1.0}, "beta2 is 1.0"),
        ({"eps": -1e-8}, "eps is -1e-08; it must not be negative"),
    ],
)
def test_unusable_hyperparameters_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        hyper(**({"step": 1} | change))
