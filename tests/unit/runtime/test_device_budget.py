"""The device tier of a machine without a GPU is counted to the byte and ends at its budget."""

import gc
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.runs.helpers import at_once
from workbench.runtime.memory.device_budget import CudaMeter, StorageMeter, device_meter
from workbench.runtime.memory.tiers import OutOfMemory, Tier, slab

CPU = torch.device("cpu")
ROWS, INPUTS, OUTPUTS = 64, 512, 256
WEIGHTS = 4 * (INPUTS * OUTPUTS + OUTPUTS)
OUTPUT = 4 * ROWS * OUTPUTS


@pytest.fixture
def meter():
    return device_meter(CPU)


def linear(meter: StorageMeter) -> tuple[nn.Linear, torch.Tensor]:
    """A layer and a batch, both on the device tier before counting begins."""
    layer, batch = nn.Linear(INPUTS, OUTPUTS), torch.randn(ROWS, INPUTS)
    for tensor in (*layer.parameters(), batch):
        meter.register(tensor)
    return layer, batch


def test_no_two_threads_make_an_operators_object(meter):
    """torch keeps a pointer to one of the two, and where that is freed the process ends."""
    known = {
        f"{space}::{name}" for space in ("aten", "c10d") for name in vars(getattr(torch.ops, space))
    }
    assert {"aten::addmm", "aten::_softmax_backward_data", "c10d::send", "c10d::recv_"} <= known
    assert "default" in vars(torch.ops.c10d.recv_)


def test_forward_and_backward_of_a_linear_layer(meter):
    layer, batch = linear(meter)
    before = meter.now
    assert before == WEIGHTS + batch.nbytes
    with meter:
        output = layer(batch)
        assert meter.now - before == OUTPUT
        # A gradient that is read while the layer's own are made: the peak of the backward pass.
        output.backward(torch.ones_like(output))
    assert meter.peak - before == 2 * OUTPUT + WEIGHTS
    assert meter.now - before == OUTPUT + WEIGHTS
    del output
    assert meter.now - before == WEIGHTS
    layer.zero_grad(set_to_none=True)
    assert meter.now == before


def test_views_and_in_place_operations_hold_nothing_new(meter):
    with meter:
        tensor = torch.zeros(1000)
        views = [tensor[10:], tensor.view(10, 100).t(), tensor.detach(), tensor.expand(5, 1000)]
        tensor.add_(1)
        views[0].mul_(2)
        torch.empty_like(tensor, device="meta")
    assert (meter.now, meter.peak) == (4000, 4000)
    del tensor
    assert meter.now == 4000  # the views still hold it
    del views
    assert meter.now == 0


def test_outputs_in_tuples_lists_and_nothing_at_all(meter):
    with meter:
        parts = torch.arange(100, dtype=torch.int32).split(10)
        values, indices = torch.randn(10, dtype=torch.float64).sort()
        torch._foreach_add_([values], 1.0)
    assert meter.now == 400 + 80 + 80
    del parts, values, indices


def test_small_tensors_count_once_they_are_moved_in(meter):
    """A data loader makes them on the host; here moving them is no operation."""
    tokens = torch.arange(1000)
    with meter:
        picked = torch.zeros(5000)[tokens]
        assert meter.now == 4000
        meter.register(tokens)
        assert meter.now == 4000 + 8000
        meter.register(tokens)
        assert meter.now == 4000 + 8000
    del picked


def test_host_slabs_are_not_counted(meter):
    host = slab(Tier("host"), "gradients", 1000, torch.float32)
    meter.exclude(host.tensor)
    with meter:
        gradient = torch.ones(1000)
        host.tensor[:1000].copy_(gradient)  # returns a view of the slab
        host.tensor.view(10, 100).zero_()
        with meter.on_host():
            made = torch.zeros(500)
        made.add_(1)
        assert meter.now == 4000
        meter.exclude(gradient)  # what was counted until now
        gradient.add_(1)
        assert meter.now == 0
    del made


def test_a_freed_address_is_not_taken_for_its_successor(meter):
    """Allocators hand the same address and Python the same id out again at once."""
    with meter:
        for numel in range(1, 2000):
            tensor = torch.empty(numel)
            assert meter.now == 4 * numel
            del tensor
    assert meter.now == 0
    assert meter.peak == 4 * 1999


def test_a_resized_storage_is_counted_at_its_new_size(meter):
    with meter:
        tensor = torch.zeros(1000)
        tensor.untyped_storage().resize_(0)
        tensor.detach()
        assert meter.now == 0
        tensor.untyped_storage().resize_(8000)
        tensor.detach()
        assert meter.now == 8000


def test_recomputation_is_seen(meter):
    """Checkpointed: one output lives at a time beside the inputs that are kept."""

    def peak(recompute: bool) -> int:
        torch.manual_seed(0)
        layers = [nn.Sequential(*(nn.Tanh() for _ in range(8))) for _ in range(4)]
        x = torch.randn(1000, requires_grad=True)
        meter.register(x)
        meter.reset_peak()
        base = meter.now
        with meter:
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=False) if recompute else layer(y)
            y.sum().backward()
        result = meter.peak - base
        del y, x, layers
        gc.collect()
        return result

    kept, recomputed = peak(recompute=False), peak(recompute=True)
    assert kept >= 32 * 4000
    assert recomputed < 16 * 4000


def test_out_of_memory_is_raised_and_recovered_from():
    meter = device_meter(CPU, budget=10_000)
    with meter:
        held = torch.zeros(1500)
        with pytest.raises(OutOfMemory) as raised:
            held + 1
        error = raised.value
        assert (error.tier, error.asked, error.in_use, error.budget) == (
            "device",
            6000,
            6000,
            10_000,
        )
        del raised, error
        assert meter.now == 6000
        assert torch.zeros(1000).nbytes == 4000  # what fits still does
    assert meter.peak == 10_000


def test_out_of_memory_in_a_backward_pass():
    """Raised by an operation that autograd runs, it arrives as what it is and leaves nothing."""
    unlimited = device_meter(CPU)
    layer, batch = linear(unlimited)
    with unlimited:
        layer(batch).sum().backward()
    layer.zero_grad(set_to_none=True)
    needed = unlimited.peak
    for budget, fits in ((needed, True), (needed - 1, False)):
        meter = device_meter(CPU, budget)
        for tensor in (*layer.parameters(), batch):
            meter.register(tensor)
        before = meter.now
        with meter:
            loss = layer(batch).sum()
            if fits:
                loss.backward()
            else:
                with pytest.raises(OutOfMemory, match="the device tier is out of memory"):
                    loss.backward()
        del loss
        layer.zero_grad(set_to_none=True)
        gc.collect()
        assert meter.now == before
        assert meter.peak <= budget


def test_memory_that_exists_already_can_be_too_much():
    meter = device_meter(CPU, budget=10_000)
    meter.register(torch.zeros(100, dtype=torch.uint8))
    kept = torch.zeros(2500)
    too_much = torch.zeros(1)
    meter.register(kept)
    with pytest.raises(OutOfMemory):
        meter.register(too_much)
    assert meter.now == 10_000


def test_flat_allocations_are_checked_before_they_are_made():
    meter = device_meter(CPU, budget=10_000)
    with pytest.raises(OutOfMemory, match=r"needs 4 EiB|needs 4096 PiB"):
        meter.zeros(2**60, torch.float32)
    weights = meter.zeros(1000, torch.float32)
    assert meter.now == 4000
    with meter:
        gradients = meter.zeros(1000, torch.bfloat16)
        weights.add_(gradients)
        assert meter.now == 6000
    del weights, gradients
    assert meter.now == 0


def test_only_threads_inside_are_counted(meter):
    """A lane that copies or updates on the host must not be charged to the device."""
    kept = []

    def outside() -> None:
        kept.append(torch.zeros(1000))

    def inside() -> None:
        with meter:
            kept.append(torch.zeros(500))

    with meter:
        for work in (outside, inside):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        kept.append(torch.zeros(10))
    kept.append(torch.zeros(100_000))
    assert meter.now == 2000 + 40


def test_threads_that_count_together_add_up(meter):
    """Each makes tensors that others free for it: the balance must come out at nothing."""
    exchange: list[torch.Tensor] = []

    def work() -> None:
        with meter:
            for numel in range(1, 400):
                exchange.append(torch.empty(numel))
                if len(exchange) > 10:
                    exchange.pop(0)

    at_once(*[work] * 4)
    assert meter.now == sum(tensor.nbytes for tensor in exchange)
    exchange.clear()
    assert meter.now == 0


def test_nesting_counts_once(meter):
    with meter, meter:
        first = torch.zeros(10)
    with meter:
        with meter:
            pass
        second = torch.zeros(10)
    assert meter.now == 80
    del first, second


def test_the_peak_can_start_again(meter):
    with meter:
        torch.zeros(1000)
        kept = torch.zeros(10)
    assert meter.peak == 4000
    meter.reset_peak()
    assert meter.peak == meter.now == kept.nbytes


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="budget is 0 bytes; at least 1"):
        device_meter(CPU, 0)


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_cuda_is_limited_and_counted(cuda):
    torch._C._cuda_clearCublasWorkspaces()  # earlier tests left one for each of their streams
    torch.cuda.empty_cache()
    meter = device_meter(cuda, 64 * 2**20)
    assert isinstance(meter, CudaMeter)
    base = meter.now
    kept = meter.zeros(8 * 2**20, torch.float32)
    assert meter.now - base == 32 * 2**20
    with pytest.raises(OutOfMemory, match="the device tier is out of memory") as raised, meter:
        torch.zeros(64 * 2**20, device=cuda)
    assert (raised.value.asked, raised.value.budget) == (256 * 2**20, 64 * 2**20)
    with pytest.raises(OutOfMemory):
        meter.zeros(2**30, torch.float32)
    assert 32 * 2**20 <= meter.peak <= 64 * 2**20
    assert meter.peak <= meter.reserved_peak
    with meter:  # recovered
        torch.zeros(2**20, device=cuda)
    del kept
    assert meter.now == base


def test_cuda_cannot_have_more_than_there_is(cuda):
    with pytest.raises(ValueError, match="the device budget is .* bytes; cuda:0 has"):
        device_meter(cuda, 2**50)
