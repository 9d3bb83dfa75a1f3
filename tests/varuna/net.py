"""A module with all that a cut must mind, and torch's own loop over it."""

from __future__ import annotations

from math import inf

import torch
from torch import nn

from workbench.model.base import Context
from workbench.model.cut_point import CutPoint
from workbench.model.drawn import Pass, drawing
from workbench.model.slices import Slices, loss_of

SEQ, WORDS, HIDDEN, BLOCKS = 6, 24, 16, 4


class Block(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.drop = nn.Dropout(drop)

    def forward(self, x, mask):
        return x + self.drop(self.norm(self.inner(x).relu()) * mask.unsqueeze(-1))


class Net(nn.Module):
    """Cut points lie in a plain list; the output layer has the embedding's weight; a mask that is
    made of an input crosses every cut; labels of -100 do not count."""

    def __init__(self, batchnorm: bool = False, blocks: int = BLOCKS, drop: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.blocks = nn.ModuleList(Block(drop) for _ in range(blocks))
        self._cuts = [CutPoint() for _ in range(blocks)]
        self.batchnorm = nn.BatchNorm1d(SEQ) if batchnorm else nn.Identity()
        self.out = nn.Linear(HIDDEN, WORDS, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens, mask, labels, shift=None, flag=True, nothing=None):
        x, seen = self.batchnorm(self.embed(tokens) + shift), mask.float()
        for cut, block in zip(self._cuts, self.blocks, strict=True):
            x = block(cut(x), seen)
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())


def batch(rows: int, seed: int = 0) -> dict:
    """Arguments of so many samples, whose labels are unequally many."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(end: int) -> torch.Tensor:
        return torch.randint(0, end, (rows, SEQ), generator=generator)

    labels = numbers(WORDS)
    labels[:, 1:][numbers(3)[:, 1:] == 0] = -100
    return {
        "tokens": numbers(WORDS), "mask": numbers(2), "labels": labels,
        "shift": torch.ones(1, SEQ, HIDDEN) / 8, "flag": True, "nothing": None,
    }  # fmt: skip


def labels_of(inputs: dict) -> int:
    """The labels of a micro-batch that count."""
    return int((inputs["labels"] != -100).sum())


def net(**kw) -> Net:
    """The module as every process makes it."""
    torch.manual_seed(3)
    return Net(**kw)


def rows_of(inputs: dict, part: range, size: int) -> dict:
    """Some rows of a batch of so many."""
    return {
        name: value[part.start : part.stop]
        if isinstance(value, torch.Tensor) and len(value) == size
        else value
        for name, value in inputs.items()
    }


def plain(
    size: int, steps: int, clip: float | None, optimize, micros: list[range] | None = None,
    norms: list[float] | None = None, **kw,
) -> tuple[list[float], dict, float]:  # fmt: skip
    """Torch's own loop over the module, whose random numbers are those of its samples, in these
    micro-batches; losses, state, and the loss of the last batch in evaluation mode. To `norms`
    those of each step are added."""
    draws = Slices(net(**kw), batch).model.draws
    model = Slices(net(**kw), batch).module
    optimizer, scheduler = optimize(model.parameters())
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        inputs, total = batch(size, step), 0.0
        for part in micros or [range(size)]:
            samples, own = tuple(step * size + row for row in part), rows_of(inputs, part, size)
            ctx = Context(seed=0, step=step, unit=0, samples=samples)
            with drawing(Pass(ctx, draws)):
                loss = loss_of(model(**own), None) * (labels_of(own) / labels_of(inputs))
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip or inf)
        if norms is not None:
            norms.append(float(norm))
        optimizer.step()
        scheduler.step()
        losses.append(total)
    model.eval()
    with torch.no_grad():
        ended = float(model(**batch(size, steps - 1)))
    return losses, {**dict(model.named_parameters()), **dict(model.named_buffers())}, ended


def adamw(parameters):
    """An optimizer and a schedule of its rate."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)


def sgd(parameters):
    """As `adamw`."""
    optimizer = torch.optim.SGD(parameters, lr=1e-1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def mild(parameters):
    """As `adamw`; where losses are rounded they change little."""
    optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)
