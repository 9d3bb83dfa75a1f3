"""A loss over logits that are never there at once is the loss as its author wrote it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.model.outputs import Ends, Unmade
from workbench.model.postponed import Postponed

ROWS, TOKENS, HIDDEN, WORDS = 4, 80, 8, 50


def of_transformers(logits: Tensor, labels: Tensor) -> Tensor:
    labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    return F.cross_entropy(logits.float().view(-1, WORDS), labels, ignore_index=-100)


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    z = torch.tanh(logits[:, :-1].contiguous() / 3.0) * 3.0
    return F.cross_entropy(z.flatten(0, 1), labels[:, 1:].flatten())


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    rows = logits.reshape(-1, logits.size(-1))
    return F.cross_entropy(rows, labels.reshape(-1).to(rows.device), reduction="sum") / 7


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def written(logits: Tensor, labels: Tensor) -> Tensor:
    rows = logits.view(-1, WORDS)
    logits.mul_(2)  # which its view sees
    return F.cross_entropy(rows, labels.flatten())


def others(logits: Tensor, labels: Tensor) -> Tensor:
    z = logits.logsumexp(-1).square().mean()
    return z + F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def by_channel(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), labels)


class Largest(TorchDispatchMode):
    """The most elements of memory of a tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = (t for t in tree_leaves(out) if isinstance(t, Tensor) and not t.is_meta)
        self.most = max([self.most, *(t.untyped_storage().nbytes() // 4 for t in made)])
        return out


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("loss_fn", "divided"),
    [(of_transformers, 1), (shifted, 1), (summed, 1), (smoothed, 0), (written, 0), (others, 0),
     (by_channel, 0)],
)  # fmt: skip
def test_loss_and_gradients_are_those_of_the_code(
    loss_fn: Callable[[Tensor, Tensor], Tensor], divided: int, bias: bool
) -> None:
    """In parts only where each call on the way is known; in fp32 and with labels left out."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=bias))
    x = torch.randn(ROWS, TOKENS, HIDDEN, requires_grad=True)
    labels = torch.randint(WORDS, (ROWS, TOKENS)).where(torch.rand(ROWS, TOKENS) < 0.8, -100)
    leaves = [x, *head.parameters()]
    wanted = loss_fn(head(x), labels)
    gradients = torch.autograd.grad(wanted, leaves)
    with Postponed(0) as mode, Largest() as largest:
        found = loss_fn(head(x), labels)
        parts = torch.autograd.grad(found, leaves)
    assert mode.divided == divided
    assert (largest.most < ROWS * (TOKENS - 1) * WORDS) == bool(divided)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(parts, gradients, rtol=1e-5, atol=1e-6)
    if not divided:
        assert torch.equal(found, wanted)
    none = torch.full_like(labels, -100)
    with Postponed(0):
        torch.testing.assert_close(
            loss_fn(head(x), none), loss_fn(head(x).detach(), none), equal_nan=True
        )


def test_outputs_that_are_handed_out_beside_a_loss_have_no_logits() -> None:
    """A loop that has the loss of the model would not have room for them."""
    head, ends = nn.Linear(HIDDEN, WORDS), Ends()
    x, labels = torch.randn(ROWS, TOKENS, HIDDEN), torch.randint(WORDS, (ROWS, TOKENS))
    ends.live = True
    with Postponed(most=1024) as parts:
        logits = head(x)
        ends({"loss": of_transformers(logits, labels), "logits": logits}, None)
    assert parts.divided == 1
    assert ends.outputs["loss"] == pytest.approx(of_transformers(head(x), labels).item(), rel=1e-6)
    assert isinstance(ends.outputs["logits"], Unmade)
    for read in (lambda z: z[0], torch.argmax, lambda z: torch.add(z, 1)):
        with pytest.raises(ValueError, match=r"values of \[4, 80, 50\] were not made"):
            read(ends.outputs["logits"])
