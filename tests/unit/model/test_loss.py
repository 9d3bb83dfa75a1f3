"""The loss taken in chunks is the loss, and so are its gradients; and it costs three products."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.core.native import triton_works
from workbench.model.loss import linear_cross_entropy

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
VOCAB, HIDDEN = 97, 16
ROWS_64 = 1  # bytes that no chunk is small enough for: it then has 64 rows


def problem(tokens: int, dtype: torch.dtype, device: str = "cpu", vocab: int = VOCAB):
    torch.manual_seed(1)
    x, weight = torch.randn(tokens, HIDDEN), torch.randn(vocab, HIDDEN)
    targets = torch.randint(0, vocab, (tokens,))
    return x.to(dtype).to(device), weight.to(dtype).to(device), targets.to(device)


def plain(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        F.linear(x, weight).to(torch.promote_types(x.dtype, torch.float32)), targets
    )


def chunked(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return linear_cross_entropy(x, weight, targets, chunk_bytes=ROWS_64)


def results(form, x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and both gradients of a third of it, which is no power of 2."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = form(x, weight, targets)
    (loss / 3).backward()
    return loss.detach(), x.grad, weight.grad


def error(found: Tensor, reference: Tensor) -> float:
    return ((found.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [64, 65, 200, 256])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_chunks_equal_the_whole(device, tokens, dtype, tolerance):
    inputs = problem(tokens, dtype, device)
    if device == "cuda" and dtype == torch.float32:
        tolerance = 5e-6  # the device's exponentials are good to a few units in the last place
    for whole, parts in zip(results(plain, *inputs), results(chunked, *inputs), strict=True):
        assert parts.dtype == whole.dtype
        scale = whole.abs().max().item()
        torch.testing.assert_close(parts, whole, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("left", [0, 70, 200])
def test_rows_without_a_label_have_no_part(device, left):
    """A mean of nothing is 0, and so are its gradients."""
    x, weight, targets = problem(200, torch.float32, device)
    targets[torch.randperm(200)[:left]] = -100

    def parted(*inputs: Tensor) -> Tensor:
        return linear_cross_entropy(*inputs, left_out=-100, chunk_bytes=ROWS_64)

    found = results(parted, x, weight, targets)
    wanted = results(plain, x, weight, targets) if left < 200 else map(torch.zeros_like, found)
    for whole, parts in zip(wanted, found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=5e-6, atol=5e-6)


@pytest.fixture
def _poisoned_memory():
    """Memory that nobody has written yet holds NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_in_memory_before_does_not_matter(dtype):
    for found in results(chunked, *problem(200, dtype)):
        assert found.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [VOCAB, 5_003])
def test_chunks_in_bf16_err_little_more_than_the_whole(device, vocab):
    inputs = x, weight, targets = problem(250, torch.bfloat16, device, vocab)
    exact = results(plain, x.double(), weight.double(), targets)
    whole, parts = results(plain, *inputs), results(chunked, *inputs)
    for reference, one, many in zip(exact, whole, parts, strict=True):
        assert error(many, reference) < 1.5 * error(one, reference)


@pytest.mark.parametrize("device", DEVICES)
def test_a_tied_matrix_gets_both_gradients(device):
    _, weight, targets = problem(200, torch.float32, device)
    grads = []
    for form in (plain, chunked):
        tied = weight.detach().requires_grad_()
        for _ in range(2):  # micro-batches
            form(F.embedding(targets.roll(1), tied), tied, targets).backward()
        grads.append(tied.grad)
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_leading_dimensions_are_tokens():
    x, weight, targets = problem(200, torch.float32)
    flat, nested = x.clone().requires_grad_(), x.view(2, 100, HIDDEN).requires_grad_()
    chunked(flat, weight, targets).backward()
    chunked(nested, weight, targets.view(2, 100)).backward()
    assert torch.equal(nested.grad.view(200, HIDDEN), flat.grad)


def test_chunks_are_used_only_past_the_bound():
    x, weight = torch.randn(128, 8, requires_grad=True), torch.randn(16, 8)
    targets = torch.zeros(128, dtype=torch.long)
    within = linear_cross_entropy(x, weight, targets, chunk_bytes=128 * 16 * 4)
    beyond = linear_cross_entropy(x, weight, targets, chunk_bytes=128 * 16 * 4 - 1)
    assert "NllLoss" in type(within.grad_fn).__name__
    assert "Chunked" in type(beyond.grad_fn).__name__


def test_a_second_backward_pass_is_refused():
    x, weight, targets = problem(100, torch.float32)
    x.requires_grad_()
    loss = chunked(x, weight, targets)
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    with pytest.raises(RuntimeError, match="a further one needs its own forward pass"):
        loss.backward()
    assert torch.equal(x.grad, once)


class Products(TorchDispatchMode):
    """Shapes of the results of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize(("want_x", "want_weight"), [(1, 1), (1, 0), (0, 1)])
def test_only_the_gradients_that_are_wanted_cost_products(want_x, want_weight):
    x, weight, targets = problem(128, torch.float32)
    x.requires_grad_(bool(want_x))
    weight.requires_grad_(bool(want_weight))
    with Products() as forward:
        loss = chunked(x, weight, targets)
    with Products() as backward:
        loss.backward()
    tiles = 2  # all words but the last few, and those
    assert len(forward.shapes) == 2 * tiles * (1 + want_x + want_weight)
    assert not backward.shapes
    assert (x.grad is not None, weight.grad is not None) == (bool(want_x), bool(want_weight))
    with Products() as scoring, torch.no_grad():
        assert torch.equal(chunked(x, weight, targets), loss)
    assert scoring.shapes == [(64, VOCAB - VOCAB % 64), (64, VOCAB % 64)] * 2


def test_a_micro_batch_of_a_gpt_is_few_chunks_and_little_memory():
    """On the device that only knows shapes: 4 x 1024 tokens, 50,304 words, bf16."""
    x = torch.empty(4096, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight = torch.empty(50_304, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    targets = torch.empty(4096, dtype=torch.long, device="meta")
    with Products() as products:
        linear_cross_entropy(x, weight, targets)
    chunks = [rows for rows, columns in products.shapes if columns == 50_304]
    assert sum(chunks) == 4096
    assert len(chunks) <= 4
    assert max(chunks) * 50_304 * 2 < 128 * 2**20
    assert max(chunks) - min(chunks) < 64 * len(chunks)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_host_does_not_wait_and_memory_is_one_chunk():
    torch.manual_seed(1)
    x = torch.randn(4096, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    weight = torch.randn(50_257, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    targets = torch.randint(50_257, (4096,), device="cuda")
    (linear_cross_entropy(x, weight, targets) / 3).backward()  # compiles
    x.grad = weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        (linear_cross_entropy(x, weight, targets) / 3).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    scratch = torch.cuda.max_memory_allocated() - before - x.nbytes - weight.nbytes
    assert scratch < 150 * 2**20


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() and triton_works()),
    reason="needs a CUDA device and Triton; torch's own kernels would abort the process",
)
def test_on_cuda_a_target_that_is_no_word_gives_nan():
    x, weight, targets = problem(100, torch.bfloat16, "cuda")
    targets[7] = VOCAB
    assert linear_cross_entropy(x, weight, targets).isnan()
