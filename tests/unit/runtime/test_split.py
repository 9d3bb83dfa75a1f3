"""Halves of a master weight are exactly the master weight."""

import math

import pytest
import torch

from workbench.runtime.memory.storage import States
from workbench.runtime.updates import split as module
from workbench.runtime.updates.split import IN_CACHE, join, rounded, split


def halves(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.empty_like(master, dtype=torch.bfloat16)
    rest = torch.empty_like(master, dtype=torch.int16)
    split(master, weights, rest)
    return weights, rest


def from_bits(*bits: int) -> torch.Tensor:
    """fp32 numbers from their unsigned bits."""
    return torch.tensor(bits).to(torch.int32).view(torch.float32)


def all_kinds() -> torch.Tensor:
    """Every sign and exponent, with mantissas at and beside each border of rounding."""
    upper = torch.arange(0, 1 << 16, 5, dtype=torch.int64) << 16
    lower = [0, 1, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    return from_bits(*torch.cat([upper | part for part in lower]).tolist())


def test_joining_returns_every_bit():
    master = all_kinds()
    assert torch.equal(join(*halves(master)).view(torch.int32), master.view(torch.int32))


def test_every_pair_of_halves_is_one_master():
    """So no pair of halves on disk or in memory is out of range, and none is a synonym."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (300_000,), generator=generator).to(torch.int32)
    rest = (bits >> 16).to(torch.int16)
    weights = bits.to(torch.int16).view(torch.bfloat16)
    again_weights, again_rest = halves(join(weights, rest))
    assert torch.equal(again_weights.view(torch.int16), weights.view(torch.int16))
    assert torch.equal(again_rest, rest)


def test_weights_are_those_torch_casts_to_but_for_ties():
    master = all_kinds()
    master = master[~master.isnan()]
    weights, _ = halves(master)
    ties = (master.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(weights[~ties], master.bfloat16()[~ties])
    # The nearest above, and not the nearest even.
    away = from_bits(0x3F808000, 0x3F818000, 0xBF808000)
    assert halves(away)[0].tolist() == [1.0078125, 1.015625, -1.0078125]


@pytest.mark.parametrize(
    ("value", "weight"),
    [(math.inf, math.inf), (-math.inf, -math.inf), (0.0, 0.0), (-0.0, -0.0), (1.5, 1.5)],
)
def test_what_bf16_can_say_leaves_no_rest(value, weight):
    weights, rest = halves(torch.tensor([value]))
    assert weights.item() == weight
    assert math.copysign(1, weights.item()) == math.copysign(1, weight)
    assert rest.item() == 0


def test_the_largest_number_rounds_to_infinity_and_comes_back():
    largest = torch.tensor([torch.finfo(torch.float32).max])
    weights, rest = halves(largest)
    assert weights.item() == math.inf
    assert torch.equal(join(weights, rest), largest)


def test_a_processors_nan_stays_one():
    nan = from_bits(0x7FC00000, 0xFFC00000)
    weights, rest = halves(nan)
    assert weights.isnan().all()
    assert join(weights, rest).isnan().all()


@pytest.mark.parametrize("numel", [0, 1, 999, 1000, 2001])
def test_chunks_cover_a_slab(monkeypatch, numel):
    monkeypatch.setattr(module, "CHUNK", 1000)
    master = torch.randn(numel)
    out = torch.full((numel,), 7.0)
    weights, rest = halves(master)
    assert torch.equal(join(weights, rest), master)
    assert join(weights, rest, out) is out
    assert torch.equal(out, master)


def test_shapes_may_differ_and_views_will_do():
    master, rest = torch.randn(6, 50), torch.zeros(400, dtype=torch.int16)
    weights = torch.zeros(500, dtype=torch.bfloat16)
    split(master, weights[100:400], rest[1:301])
    joined = join(weights[100:400].view(6, 50), rest[1:301])
    assert torch.equal(joined, master)
    assert not weights[:100].any()
    assert not weights[400:].any()
    assert not rest[301:].any()


def test_a_parameter_can_be_the_master_or_the_weight():
    master = torch.nn.Parameter(torch.randn(10))
    weights = torch.nn.Parameter(torch.zeros(10, dtype=torch.bfloat16))
    rest = torch.zeros(10, dtype=torch.int16)
    split(master, weights, rest)
    joined = join(weights, rest)
    assert torch.equal(joined, master)
    assert not joined.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_on_a_gpu_halves_are_the_same():
    master = all_kinds()
    weights, rest = halves(master)
    on_gpu = halves(master.cuda())
    assert torch.equal(on_gpu[0].cpu().view(torch.int16), weights.view(torch.int16))
    assert torch.equal(on_gpu[1].cpu(), rest)
    joined = join(*on_gpu).cpu()
    assert torch.equal(joined.view(torch.int32), master.view(torch.int32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"master": torch.zeros(4, dtype=torch.float64)}, "master is torch.float64; torch.float32"),
        ({"weights": torch.zeros(4)}, "weights is torch.float32; torch.bfloat16 is needed"),
        ({"rest": torch.zeros(4, dtype=torch.uint8)}, "rest is torch.uint8; torch.int16 is needed"),
        ({"rest": torch.zeros(3, dtype=torch.int16)}, "rest has 3 elements; weights has 4"),
        ({"master": torch.zeros(8)[::2]}, r"master is not contiguous: strides \(2,\)"),
        (
            {"rest": torch.zeros(4, dtype=torch.int16, device="meta")},
            "rest is on meta; weights is on cpu",
        ),
    ],
)
def test_unusable_tensors_are_named(change, message):
    tensors = {
        "master": torch.zeros(4),
        "weights": torch.zeros(4, dtype=torch.bfloat16),
        "rest": torch.zeros(4, dtype=torch.int16),
    } | change
    with pytest.raises(ValueError, match=message):
        split(**tensors)
    with pytest.raises(ValueError, match=message):
        join(tensors["weights"], tensors["rest"], tensors["master"])


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    """With the compiled loop, and where there is no compiler."""
    if request.param == "torch":
        monkeypatch.setattr(module, "_kernel", lambda: None)
    else:
        assert module._kernel() is not None, "a compiler is required to test"


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("apart", [True, False])
def test_masters_are_rounded_as_torch_rounds_them(apart):
    """Ties to even, unlike the upper halves, and in every piece of a slab."""
    master = all_kinds().repeat(2 * IN_CACHE // len(all_kinds()) + 2).nan_to_num_(0.0)
    weights, rest = halves(master) if apart else (master, None)
    states = States(weights=weights, rest=rest, exp_avg=master, exp_avg_sq=master)
    assert len(master) > 2 * IN_CACHE
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.equal(states.rounded(dtype), master.to(dtype))


@pytest.mark.usefixtures("path")
def test_of_any_length_in_any_threads_with_nan_left_nan():
    master = all_kinds()
    for count in (0, 1, 33, len(master)):
        weights, rest = halves(master[:count])
        for threads in (1, 5):
            found = rounded(weights, rest, torch.bfloat16, threads=threads)
            assert torch.equal(found.isnan(), join(weights, rest).bfloat16().isnan())
            there = ~found.isnan()
            assert torch.equal(found[there], master[:count].bfloat16()[there])
    with pytest.raises(ValueError, match="rest has 3 elements; weights has 4"):
        rounded(halves(master[:4])[0], torch.zeros(3, dtype=torch.int16), torch.bfloat16)
