"""The host update equals torch's AdamW, moves every element, and calls of it overlap."""

import functools
import math

import pytest
import torch

from tests.runs.helpers import at_once
from tests.unit.runtime.slabs import BETAS, Slabs, equal, hyper, rounds_like_torch
from workbench.core import native
from workbench.runtime.updates import adam_step, host_adam
from workbench.runtime.updates.split import split


def train_both(numel: int, border: int, beta1: float = 0.9, halves: bool = False, **form: bool):
    """Give equal gradients and learning rates to ours and to torch.optim.AdamW."""
    steps, ours = 20, Slabs(numel, halves=halves)
    decaying = torch.nn.Parameter(ours.master[:border])
    others = torch.nn.Parameter(ours.master[border:])
    groups = [
        {"params": [decaying], "weight_decay": 0.1},
        {"params": [others], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(beta1, BETAS[1]), **form)
    for step in range(1, steps + 1):
        grad, lr = ours.random(numel), 1e-3 * step / steps
        decaying.grad, others.grad = grad[:border].clone(), grad[border:].clone()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        now = hyper(step, lr=lr, beta1=beta1)
        ours.update(grad, now, decay_split=border)
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


@rounds_like_torch
@pytest.mark.parametrize("halves", [False, True])
def test_is_bitwise_torch_where_torch_rounds_correctly(compiled, halves):
    """Sizes are whole vectors: torch's own result depends on where its vectorised loop ends."""
    (_, *ours), (_, *theirs) = train_both(1 << 14, 1 << 13, halves=halves, foreach=False)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for ours, theirs in zip(*train_both(1 << 14, 1 << 13, halves=halves, fused=True), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_are_updated_as_the_whole(backend, dtype):
    """So neither precision nor the path of training depends on how a master is stored."""
    numel = 100_003
    whole, halves = Slabs(numel), Slabs(numel, halves=True)
    for step in range(1, 21):
        grad, now = whole.random(numel).to(dtype), hyper(step, grad_scale=0.7)
        whole.update(grad, now, decay_split=70_001)
        halves.update(grad, now, decay_split=70_001)
    assert equal(whole, halves)


@pytest.mark.parametrize("numel", [1, 63, 4_097, 300_001])
@pytest.mark.parametrize("halves", [False, True])
def test_every_element_moves(backend, numel, halves):
    slabs = Slabs(numel, halves=halves)
    before = slabs.master
    slabs.update(torch.ones(numel), hyper(), decay_split=0)
    moved = before - slabs.master
    # the first step of AdamW is lr wide
    assert torch.allclose(moved, torch.tensor(1e-3), rtol=1e-2)


@pytest.mark.parametrize("halves", [False, True])
def test_every_element_of_a_matrix_moves(backend, halves):
    """The published artifact updated as many elements as a matrix has rows."""
    slabs = Slabs(96, 513, halves=halves)
    before = slabs.master
    slabs.update(torch.ones(96, 513), hyper(), decay_split=96 * 513)
    assert (slabs.master != before).all()
    assert (slabs.exp_avg != 0).all()


def test_only_leading_elements_decay(backend):
    slabs = Slabs(100_000)
    before = slabs.master
    zero = torch.zeros(100_000)
    slabs.update(zero, hyper(lr=0.5, weight_decay=0.5), decay_split=60_001)
    assert torch.equal(slabs.weights[:60_001], before[:60_001] * 0.75)
    assert torch.equal(slabs.weights[60_001:], before[60_001:])


def test_bf16_gradient_equals_the_widened_one(backend):
    narrow, wide = Slabs(50_003), Slabs(50_003)
    for step in range(1, 4):
        grad = narrow.random(50_003).bfloat16()
        narrow.update(grad, hyper(step), decay_split=40_000)
        wide.update(grad.float(), hyper(step), decay_split=40_000)
    assert equal(narrow, wide)


def test_bf16_weights_are_the_rounded_masters(backend):
    slabs = Slabs(200_003, halves=True)
    slabs.update(slabs.random(200_003), hyper(), decay_split=100)
    # Ties alone are rounded otherwise than by torch, and a random weight is rarely one.
    ties = slabs.master.view(torch.int32) & 0xFFFF == 0x8000
    assert torch.equal(slabs.weights[~ties], slabs.master.bfloat16()[~ties])
    assert ties.float().mean() < 1e-3


def test_halves_of_every_kind_of_weight_survive_an_update(backend):
    """No decay and no gradient: masters stay, so their halves must too, infinities included."""
    bits = torch.arange(-(1 << 31), 1 << 31, 40_961, dtype=torch.int64).to(torch.int32)
    ends = [(bits & ~0xFFFF) | lower for lower in (0, 0x7FFF, 0x8000, 0xFFFF)]
    masters = torch.cat([bits, *ends, torch.tensor([0x7F800000])]).to(torch.int32)
    masters = masters.view(torch.float32)
    masters = masters[~masters.isnan()]
    slabs = Slabs(masters.numel(), halves=True)
    split(masters, slabs.weights, slabs.rest)
    before = slabs.weights.clone(), slabs.rest.clone()
    assert masters.isinf().any()
    slabs.update(torch.zeros(masters.numel()), hyper(lr=0.0), decay_split=0)
    # Adding a step of 0 makes +0 of -0, in torch as well.
    kept = masters != 0
    assert torch.equal(slabs.weights[kept].view(torch.int16), before[0][kept].view(torch.int16))
    assert torch.equal(slabs.rest[kept], before[1][kept])
    assert torch.equal(slabs.master, masters)


@pytest.mark.parametrize("halves", [False, True])
def test_a_nan_gradient_is_not_hidden(backend, halves):
    slabs = Slabs(1000, halves=halves)
    grad = torch.ones(1000)
    grad[517] = math.nan
    slabs.update(grad, hyper(), decay_split=1000)
    assert slabs.master.isnan().nonzero().item() == 517
    assert slabs.weights.isnan().nonzero().item() == 517


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grad_scale_multiplies_and_leaves_the_gradient_alone(backend, dtype):
    scaled, plain = Slabs(40_003), Slabs(40_003)
    coefficient = 0.37
    grad = scaled.random(40_003).to(dtype)
    before = grad.clone()
    multiplied = grad.float() * coefficient
    scaled.update(grad, hyper(grad_scale=coefficient), decay_split=9)
    plain.update(multiplied, hyper(), decay_split=9)
    assert torch.equal(grad, before)
    assert equal(scaled, plain)


@pytest.mark.parametrize("undo", [None, hyper(7, grad_scale=0.5)])
def test_result_does_not_depend_on_threads_or_on_pieces(compiled, undo):
    """Layers are updated by however many threads are free, and disk-resident ones in pieces."""
    numel, border = 1_000_003, 700_001
    results = []
    for threads, piece in ((1, numel), (4, numel), (3, 123_457)):
        slabs = Slabs(numel, halves=True)
        grad = slabs.random(numel)
        for begin in range(0, numel, piece):
            part = slice(begin, min(begin + piece, numel))
            views = [slab[part] for slab in slabs.slabs()]
            host_adam.update(
                *views,
                grad[part],
                hyper(7),
                decay_split=min(max(border - begin, 0), views[0].numel()),
                rest=slabs.rest[part],
                undo=undo,
                threads=threads,
            )
        results.append(slabs)
    assert all(equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("threads", [2, 5, 16])
def test_every_thread_count_updates_each_element_once(compiled, threads):
    """Blocks shrink towards the end of a slab; none may be left out or taken twice."""
    alone, together = Slabs(3_000_001, halves=True), Slabs(3_000_001, halves=True)
    grad = alone.random(3_000_001)
    alone.update(grad, hyper(), decay_split=9)
    together.update(grad, hyper(), decay_split=9, threads=threads)
    assert equal(alone, together)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_and_then_moments_are_one_update(backend, halves, dtype):
    """To the last bit; and either pass leaves alone what the other one writes."""
    numel, border = 100_003, 70_001
    whole, parts = Slabs(numel, halves=halves), Slabs(numel, halves=halves)
    for step in range(1, 4):
        grad, now = whole.random(numel).to(dtype), hyper(step, grad_scale=0.7)
        whole.update(grad, now, decay_split=border)
        master, *moments = (state.clone() for state in parts.states())
        parts.update(grad, now, decay_split=border, part="weights")
        assert all(map(torch.equal, parts.states()[1:], moments))
        assert not torch.equal(parts.master, master)
        master = parts.master.clone()
        parts.update(grad, now, decay_split=border, part="moments")
        assert torch.equal(parts.master, master)
        assert equal(whole, parts)
    with pytest.raises(ValueError, match="part is 'weights'; an update is taken back in one pass"):
        parts.update(grad, now, decay_split=border, part="weights", undo=now)


RENDEZVOUS = """
#include <atomic>
#include <chrono>
#include <thread>
static std::atomic<int> inside;
extern "C" void workbench_adamw(float** update) {
    ++inside;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    **update = static_cast<float>(inside);  // into the first weight
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
    at_once(
        *(
            functools.partial(layer.update, torch.zeros(8), hyper(), decay_split=0)
            for layer in layers
        )
    )
    assert [layer.weights[0].item() for layer in layers] == [2, 2]


def test_concurrent_updates_of_different_layers_keep_apart(backend):
    """The artifact's workers shared one optimizer object and overwrote each other's rates."""

    def train(layer: int, slabs: Slabs) -> None:
        for step in range(1, 30):
            grad = slabs.random(5_003)
            now = hyper(step * (layer + 1), lr=1e-3 * (layer + 1))
            slabs.update(grad, now, decay_split=1000 * layer)

    alone = [Slabs(5_003, seed=layer) for layer in range(4)]
    together = [Slabs(5_003, seed=layer) for layer in range(4)]
    for layer, slabs in enumerate(alone):
        train(layer, slabs)
    at_once(*(functools.partial(train, *item) for item in enumerate(together)))
    for a, b in zip(alone, together, strict=True):
        assert equal(a, b)


def test_fallback_equals_compiled(compiled, monkeypatch):
    ours = train_both(10_007, 7_001, fused=True)[0]
    monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    assert host_adam.backend() == "torch"
    for a, b in zip(ours, train_both(10_007, 7_001, fused=True)[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_fallback_takes_a_slab_in_bounded_chunks(monkeypatch):
    monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    whole, chunked = Slabs(100_003, halves=True), Slabs(100_003, halves=True)
    grad = whole.random(100_003).bfloat16()
    guess, right = hyper(), hyper(grad_scale=0.5)

    def speculate(slabs: Slabs) -> None:
        slabs.update(grad, guess, decay_split=70_000)
        slabs.update(grad, right, undo=guess, decay_split=70_000)

    speculate(whole)
    monkeypatch.setattr(host_adam, "FALLBACK_CHUNK", 4_096)
    monkeypatch.setattr(adam_step, "PIECE", 1_000)
    speculate(chunked)
    for a, b in zip(whole.states(), chunked.states(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("halves", [False, True])
def test_an_empty_slab_is_no_error(backend, halves):
    slabs = Slabs(0, halves=halves)
    slabs.update(torch.zeros(0), hyper(), decay_split=0, undo=hyper())
    slabs.revert(torch.zeros(0), hyper(), decay_split=0)


HALVES = {
    "weights": torch.zeros(100, dtype=torch.bfloat16),
    "rest": torch.zeros(100, dtype=torch.int16),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grad": torch.zeros(99)}, "grad has 99 elements; weights has 100"),
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
        (
            {"weights": torch.zeros(100, dtype=torch.bfloat16)},
            "weights is torch.bfloat16; torch.float32 is needed without rest",
        ),
        (
            {"rest": torch.zeros(100, dtype=torch.int16)},
            "weights is torch.float32; torch.bfloat16 is needed beside rest",
        ),
        (
            HALVES | {"rest": torch.zeros(100, dtype=torch.int32)},
            "rest is torch.int32; torch.int16 is needed",
        ),
        (
            HALVES | {"rest": torch.zeros(3, dtype=torch.int16)},
            "rest has 3 elements; weights has 100",
        ),
        ({"decay_split": 101}, "decay_split is 101; it counts elements of weights, so 0 to 100"),
        ({"threads": 0}, "threads is 0; at least 1"),
    ],
)
def test_unusable_arguments_are_named(change, message):
    arguments = {
        "weights": torch.zeros(100),
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
            slabs.weights, both[:100], both[50:], torch.zeros(100), hyper(), decay_split=0
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
