"""Torch's own loop over a user's own module, as anybody would write it. Nothing of ours is in it,
but for the random numbers of a module that draws some."""

from __future__ import annotations

from contextlib import nullcontext
from math import inf
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import Context
from workbench.model.drawn import Pass, drawing
from workbench.training.run import load_batches


def train(
    spec: RunSpec, net: nn.Module, micro: int | None = None, draws: Any = ()
) -> tuple[list[float], list[float]]:
    """Losses of every step, and norms before they are clipped; the module is trained in place, in
    micro-batches of so many samples. `draws` are those of a keyed module."""
    micro, (kind, *_) = micro or spec.batch, (p.dtype for p in net.parameters())
    trained = [p for p in net.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if (p.dim() > 1) == decays], "weight_decay": decay}
        for decays, decay in ((True, spec.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(spec.beta1, spec.beta2), eps=spec.eps)
    batches, losses, norms = load_batches(spec, make_model(spec.model, spec.seed)), [], []
    for step in range(spec.steps):
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate(step)
        optimizer.zero_grad()
        total, samples = 0.0, batches.samples(step)
        for start in range(0, spec.batch, micro):
            mine = samples[start : start + micro]
            *inputs, labels = batches.rows(mine)
            ctx = Context(seed=spec.seed, step=step, unit=0, samples=mine)
            with drawing(Pass(ctx, draws)) if draws else nullcontext():
                outputs = net(*(t.to(kind) if t.is_floating_point() else t for t in inputs))
            loss = F.cross_entropy(outputs.flatten(0, -2), labels.flatten())
            loss = loss * len(mine) / spec.batch
            loss.backward()
            total += float(loss.detach())
        norms.append(float(nn.utils.clip_grad_norm_(trained, spec.clip or inf)))
        optimizer.step()
        losses.append(total)
    return losses, norms
