"""The loss taken in chunks is the loss, and so are its gradients."""

import pytest
import torch
from torch.nn import functional as F

from workbench.model.loss import linear_cross_entropy


@pytest.mark.parametrize("tokens", [64, 200, 256])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_chunks_equal_the_whole(tokens, dtype, tolerance):
    torch.manual_seed(1)
    vocab, hidden = 97, 16
    x, weight = torch.randn(tokens, hidden), torch.randn(vocab, hidden)
    targets = torch.randint(0, vocab, (tokens,))
    results = []
    for chunked in (False, True):
        a = x.to(dtype).requires_grad_()
        w = weight.to(dtype).requires_grad_()
        if chunked:  # 64 rows at a time
            loss = linear_cross_entropy(a, w, targets, chunk_bytes=4 * vocab * 40)
        else:
            loss = F.cross_entropy(F.linear(a, w).float(), targets)
        (loss / 3).backward()
        results.append((loss.detach(), a.grad, w.grad))
    for whole, parts in zip(*results, strict=True):
        assert parts.dtype == whole.dtype
        scale = whole.abs().max().item()
        torch.testing.assert_close(parts, whole, rtol=tolerance, atol=tolerance * scale)


def test_chunks_are_used_only_past_the_bound():
    x, weight = torch.randn(128, 8, requires_grad=True), torch.randn(16, 8)
    targets = torch.zeros(128, dtype=torch.long)
    within = linear_cross_entropy(x, weight, targets, chunk_bytes=128 * 16 * 4)
    beyond = linear_cross_entropy(x, weight, targets, chunk_bytes=128 * 16 * 4 - 1)
    assert "NllLoss" in type(within.grad_fn).__name__
    assert "Chunked" in type(beyond.grad_fn).__name__
