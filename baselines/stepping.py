"""Training steps of one module that torch passes as a whole: plain training's and FSDP2's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baselines.common import micro_batches, named_units, now_s
from workbench.model.base import LayeredModel


class Stepping:
    """Steps of one module that torch passes, between what a subclass makes, updates and saves."""

    share = 1.0
    """Weight of the rows here in the step's mean loss, where others have more: 1 on the mean."""
    changed = False
    """Whether the last step has begun to update."""

    def run(self) -> None:
        """All steps that are left."""
        spec, first = self.spec, self.resume()
        for step in range(first, spec.steps):
            self.step(step, step - first)
            if spec.save_every and (step + 1) % spec.save_every == 0:
                self.save(step + 1)

    def step(self, step: int, number: int = 0) -> None:
        """One step, the `number`-th of this process."""
        self.changed = False
        begun_s = now_s(self.device)
        with self._watched(number):
            loss, norm = self._step(step)
        seconds = now_s(self.device) - begun_s
        skipped = norm is not None and not math.isfinite(norm)
        self.history.ended(step, loss, seconds, norm, skipped=skipped, report=self.report)

    def have(self, _: LayeredModel) -> None:
        """Batches of any form pass through the module as it is written."""

    def settle(self) -> None:
        """All updates of a step are made when it ends."""

    def forget(self) -> bool:
        """Let go of what a step that failed has left; returns whether it has changed no weight."""
        for tensor in (*self.masters, *self.masters.values()):
            tensor.grad = None
        return not self.changed

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the fp32 weights by their names in the whole model."""
        return {
            self.model.state_name(unit, name): self.masters[weight].detach().clone()
            for unit, name, weight in named_units(self.whole)
        }

    def _step(self, step: int) -> tuple[float, float | None]:
        """One optimizer step; returns its mean loss and the norm of its gradients, where it is
        told."""
        spec, total = self.spec, torch.zeros((), device=self.device)
        parts = micro_batches(self.batches, spec, step, self.device, self.model)
        for tokens, targets, samples, weight in parts:
            loss = self.whole(tokens, targets, step=step, samples=samples) * (weight * self.share)
            if weight:  # the mean of nothing is no number, nor are its gradients
                (loss / spec.microbatches).backward()
                total += loss.detach()
        self.changed = True
        norm = self._update(spec.learning_rate(step))
        return float(total) / spec.microbatches, float(norm)
