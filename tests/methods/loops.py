"""A user's module, batches and loss, torch's loop over them, and an engine in its place."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench import Engine

ROWS, STEPS, CLIP, LR = 4, 10, 0.5, 1e-2
WAYS = {
    "plain": {},
    "megatron-lm": {"microbatches": 2},
    "l2l": {"microbatches": 2, "activations": "host"},
    "stronghold": {"window": 2, "resident": 1},
    "varuna": {"microbatches": 2},
    "harmony-pp": {"microbatches": 2},
}
"""Options of methods whose rows in the table say how a loop drives them."""
RANKED = {
    "harmony-pp": {"microbatches": 2},
    "harmony-dp": {"forward_size": 2, "backward_size": 1},
    "pp-swap": {},
    "dp-swap": {"forward_size": 1},
}
"""Options of methods whose schedules have several ranks, each a process of torchrun."""


class Block(nn.Module):
    """Takes a number of the sample's from the first layer, which passes all blocks."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(hidden), nn.Linear(hidden, hidden)
        self.register_buffer("by", torch.rand(1))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + F.gelu(self.inner(self.norm(x))) * scale * self.by


class Net(nn.Module):
    """Blocks unlike each other in a buffer; the head has the embedding's weight, and the second
    block's matrix is not trained."""

    def __init__(self, hidden: int = 12, blocks: int = 5, vocab: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(blocks))
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.blocks[1].inner.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, scale = self.embed(tokens), (tokens > 3).float().mean(1)[:, None, None]
        for block in self.blocks:
            x = block(x, scale)
        return self.head(x)


def net(*, frozen: bool = True) -> Net:
    torch.manual_seed(0)
    return Net() if frozen else Net().requires_grad_(True)


def batches(
    steps: int = STEPS, rows: int = ROWS, *, padded: bool = False
) -> Iterator[dict[str, Tensor]]:
    """Labels of `padded` ones end after one to six tokens."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(20, (rows, 7), generator=generator)
        ends = torch.randint(1, 7, (rows, 1), generator=generator) if padded else 6
        labels = tokens[:, 1:].where(torch.arange(6) < ends, -100)
        yield {"tokens": tokens[:, :-1], "labels": labels}


def in_groups(module: nn.Module) -> list[dict]:
    """As most people train: matrices decay, norms and biases do not."""
    every = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in every if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
    ]


def labels_of(batch: dict[str, Tensor]) -> Tensor:
    return (batch["labels"] != -100).sum(1)


def loss_of(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def warmed(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))


def torchs(
    groups: Callable | None = None, *, frozen: bool = True, **how
) -> tuple[list[float], dict[str, Tensor]]:
    """The loop that anybody would write."""
    module = net(frozen=frozen)
    optimizer = torch.optim.AdamW((groups or nn.Module.parameters)(module), lr=LR)
    return by_torch(module, batches(**how), optimizer=optimizer, scheduler=warmed(optimizer))


def by_torch(
    module: nn.Module, given: Iterable[Any], loss_fn: Callable | None = None, *,
    clip: float | None = CLIP, optimizer: Any = None, scheduler: Any = None, **settings: Any,
) -> tuple[list[float], dict[str, Tensor]]:  # fmt: skip
    """Losses and state of a copy of a module in torch's loop over batches, by default those of
    `batches`; `settings` of its optimizer."""
    if optimizer is None:
        module = copy.deepcopy(module).train()
        optimizer = torch.optim.AdamW(module.parameters(), **{"lr": LR, **settings})
    losses, loss_fn = [], loss_fn or loss_of
    for batch in given:
        optimizer.zero_grad()
        loss = loss_fn(called(module, batch), batch)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses, module.state_dict()


def others() -> list[dict[str, Tensor]]:
    """Held-out batches, the last of which is smaller."""
    one, two = batches(2, rows=6, padded=True)
    return [one, {name: tensor[:2] for name, tensor in two.items()}]


@torch.no_grad()
def judged(weights: dict[str, Tensor], *, frozen: bool = True) -> dict[str, float]:
    """Their figures by these weights, in the loop that anybody would write."""
    module, labels, total, rows = net(frozen=frozen), 0, 0.0, 0
    module.load_state_dict(weights)
    module.eval()
    for batch in others():
        count = int(labels_of(batch).sum())
        total += loss_of(module(batch["tokens"]), batch).item() * count
        labels, rows = labels + count, rows + len(batch["tokens"])
    loss = total / labels
    return {"samples": rows, "loss": loss, "perplexity": math.exp(loss)}


def called(module: nn.Module, batch: Any) -> Any:
    """Outputs of a module, as an engine calls it."""
    if isinstance(batch, dict):
        return module(batch["tokens"]) if "tokens" in batch else module(**batch)
    return module(batch[0] if isinstance(batch, tuple) else batch)


def of_outputs(outputs: Any, _: Any) -> Tensor:
    """The loss that a decoder of Hugging Face gives."""
    return outputs.loss


def made_in(
    results, method: str, module: nn.Module | None = None, config: dict | None = None, **options
) -> Engine:
    module = module or net()
    options = {"clip": CLIP, "device": "cpu", "results": results, **options}
    return Engine(module, config or {"lr": LR}, method=method, **options)


def near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def normed(batchnorm: bool = True, rows: int = 8) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A module with BatchNorm and dropout, and pairs as batches."""
    torch.manual_seed(0)
    parts, norm = [nn.Linear(8, 64, False)], nn.BatchNorm1d if batchnorm else nn.LayerNorm
    for _ in range(4):
        inner = nn.Linear(64, 64, False), norm(64), nn.Dropout(0.2), nn.Tanh()
        parts.append(nn.Sequential(*inner))
    data = [(torch.randn(rows, 8), torch.randn(rows, 1)) for _ in range(5)]
    return nn.Sequential(*parts, nn.Linear(64, 1)), data


def distance(out: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(out, pair[1])
