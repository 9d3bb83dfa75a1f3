"""Tiers never pass their budgets, and slabs are in them for exactly as long as they live."""

import ctypes
import gc
import mmap
import threading
from functools import partial

import pytest
import torch

from tests.runs.helpers import at_once
from workbench.runtime.memory import tiers
from workbench.runtime.memory.tiers import OutOfMemory, Tier, slab
from workbench.runtime.passes.staging import ALIGNMENT, StagingPool


def test_a_ledger_adds_up():
    tier = Tier("host", 1000)
    tier.reserve("weights", 600)
    tier.reserve("moments", 400)
    assert tier.in_use == 1000
    assert tier.release("weights") == 600
    tier.reserve("gradients", 100)
    assert (tier.in_use, tier.peak) == (500, 1000)
    assert tier.held() == {"moments": 400, "gradients": 100}
    tier.reset_peak()
    assert tier.peak == 500


def test_a_full_tier_says_what_was_asked_and_changes_nothing():
    tier = Tier("host", 3 * 2**30)
    tier.reserve("weights", 2 * 2**30)
    with pytest.raises(OutOfMemory) as raised:
        tier.reserve("the moments of layer 3", 3 * 2**29)
    error = raised.value
    assert (error.tier, error.asked, error.in_use, error.budget) == (
        "host",
        3 * 2**29,
        2 * 2**30,
        3 * 2**30,
    )
    assert str(error) == (
        "the host tier is out of memory: the moments of layer 3 needs 1.5 GiB, "
        "and 2 GiB of 3 GiB are in use"
    )
    assert (tier.in_use, tier.peak) == (2 * 2**30, 2 * 2**30)
    tier.reserve("the moments of layer 3", 2**30)  # the label is not taken by the failure


def test_a_tier_without_a_budget_only_counts():
    tier = Tier("host")
    tier.reserve("all", 10**15)
    assert tier.in_use == 10**15


def test_misuse_is_named():
    tier = Tier("disk", 10)
    tier.reserve("a", 1)
    with pytest.raises(ValueError, match="a already holds 1 bytes of the disk tier"):
        tier.reserve("a", 1)
    with pytest.raises(ValueError, match="b holds nothing in the disk tier"):
        tier.release("b")
    with pytest.raises(ValueError, match="asks for -1 bytes"):
        tier.reserve("b", -1)
    with pytest.raises(ValueError, match="budget of the disk tier is -5 bytes"):
        Tier("disk", -5)


def test_threads_cannot_pass_the_budget_together():
    """Room for 100 of 400 requests: exactly 100 succeed, whoever comes first."""
    tier = Tier("host", 1000)
    refused = []

    def ask(thread: int) -> None:
        for index in range(50):
            try:
                tier.reserve(f"{thread}.{index}", 10)
            except OutOfMemory:
                refused.append(index)

    at_once(*(partial(ask, number) for number in range(8)))
    assert (tier.in_use, len(refused), len(tier.held())) == (1000, 300, 100)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_a_slab_is_flat_zeroed_aligned_and_exact(dtype):
    tier = Tier("host")
    with slab(tier, "states", 100_003, dtype) as made:
        tensor = made.tensor
        assert (tensor.shape, tensor.dtype) == ((100_003,), dtype)
        assert tensor.data_ptr() % 4096 == 0
        assert not tensor.any()
        tensor.fill_(1)
        assert tier.held() == {"states": 100_003 * dtype.itemsize}
    assert tier.in_use == 0
    with pytest.raises(ValueError, match="was freed"):
        _ = made.tensor


def test_a_slab_of_nothing_is_one_for_a_unit_without_parameters():
    with slab(Tier("host", 0), "pooling", 0, torch.float32) as made:
        assert made.tensor.shape == (0,)


def test_a_slab_that_does_not_fit_leaves_nothing_behind():
    tier = Tier("host", 1000)
    with pytest.raises(OutOfMemory):
        slab(tier, "states", 1001)
    assert tier.in_use == 0
    slab(tier, "states", 1000).free()


def test_a_machine_without_the_memory_is_out_of_memory_too():
    """No budget, but more than the address space."""
    tier = Tier("host")
    with pytest.raises(OutOfMemory, match="states needs 1024 PiB") as raised:
        slab(tier, "states", 2**60)
    assert raised.value.budget is None
    assert tier.in_use == 0


def test_garbage_gives_its_bytes_back_with_its_last_view():
    tier = Tier("host")
    view = slab(tier, "states", 4096, torch.float32).tensor[10:20]
    gc.collect()
    assert tier.in_use == 16384
    view.fill_(7)  # the memory is still there
    del view
    gc.collect()
    assert tier.in_use == 0


def test_free_counts_once_and_views_stay_mapped():
    tier = Tier("host")
    made = slab(tier, "states", 4096)
    view = made.tensor[:10]
    made.free()
    made.free()
    assert tier.in_use == 0
    slab(tier, "states", 1)
    view.fill_(7)
    assert view.sum() == 70


def there(at: int, nbytes: int) -> bool:
    """Whether all pages of some memory are."""
    seen = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
    ctypes.CDLL(None).mincore(ctypes.c_void_p(at), ctypes.c_size_t(nbytes), seen)
    return all(page & 1 for page in seen)


class FakeRuntime:
    """Stands in for the CUDA runtime: remembers which ranges are registered."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, pointer: int, nbytes: int, flags: int) -> int:  # noqa: N802
        if not self.code:
            self.registered[pointer] = nbytes
            self.there = there(pointer, nbytes)
        return self.code

    def cudaHostUnregister(self, pointer: int) -> int:  # noqa: N802
        del self.registered[pointer]
        return 0


@pytest.fixture
def runtime(monkeypatch):
    fake = FakeRuntime()
    monkeypatch.setattr(tiers.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tiers.torch.cuda, "cudart", lambda: fake)
    return fake


def test_pinning_registers_exactly_the_bytes_and_undoes_it(runtime):
    """torch's own pinned allocator would take 8 MiB for this."""
    tier = Tier("host")
    made = slab(tier, "weights", 5 * 2**20, pin=True)
    assert made.pinned
    assert runtime.registered == {made.tensor.data_ptr(): 5 * 2**20}
    assert runtime.there, "one thread would have touched each page"
    made.free()
    assert runtime.registered == {}
    slab(tier, "weights", 100, pin=True)
    gc.collect()
    assert (runtime.registered, tier.in_use) == ({}, 0)


def test_a_refused_pinning_is_out_of_memory(runtime):
    runtime.code = 2
    tier = Tier("host")
    with pytest.raises(OutOfMemory, match="pinning failed with CUDA error 2"):
        slab(tier, "weights", 100, pin=True)
    assert tier.in_use == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pinned_slab_is_pinned_for_cuda():
    with slab(Tier("host"), "weights", 5 * 2**20, pin=True) as made:
        assert made.tensor[4096:].is_pinned()
        on_device = made.tensor.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert not on_device.any()


def test_a_pool_hands_out_what_it_has_and_then_makes_wait():
    tier = Tier("host")
    with StagingPool(tier, "staging", count=2, nbytes=5000) as pool:
        assert pool.nbytes == 2 * ALIGNMENT
        assert tier.in_use == 4 * ALIGNMENT
        first, second = pool.acquire(), pool.acquire()
        assert first.data_ptr() != second.data_ptr()
        assert all(buffer.data_ptr() % ALIGNMENT == 0 for buffer in (first, second))
        with pytest.raises(TimeoutError, match="all 2 are in use"):
            pool.acquire(timeout_s=0.01)
        got = []
        waiter = threading.Thread(target=lambda: got.append(pool.acquire()))
        waiter.start()
        pool.release(first)
        waiter.join()
        assert got[0].data_ptr() == first.data_ptr()
    assert tier.in_use == 0


def test_a_pool_that_does_not_fit_leaves_nothing_behind():
    tier = Tier("host", 3 * ALIGNMENT)
    with pytest.raises(OutOfMemory):
        StagingPool(tier, "staging", count=4, nbytes=ALIGNMENT)
    gc.collect()
    assert tier.in_use == 0
    with pytest.raises(ValueError, match="0 buffers of 100 bytes"):
        StagingPool(tier, "staging", count=0, nbytes=100)
