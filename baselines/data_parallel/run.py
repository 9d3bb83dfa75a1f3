"""Data parallelism as torch offers it: DistributedDataParallel around plain training.

A rank is plain training (`baselines.plain`) on its share of every micro-batch. Gradients are added
up in buckets while the backward pass goes on, in the step's last micro-batch only; after it each
rank has those of the whole batch, so the norm, the clipping and the update need nothing of the
others and are the same everywhere.

Two things are done better than by the usual recipe. A rank's loss counts by its samples, so a batch
that the ranks cannot divide evenly is exact too. And gradients stay in the buckets from step to
step, where backward passes add to them: they are not in memory twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from baselines.common import micro_batches, share
from baselines.plain_training import PlainTraining
from baselines.stages import share_of
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.training import trained_ranks

BUCKET_MIB = 25
"""Added up at once: torch's default."""


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with everything on every rank's device.

    Raises OutOfMemory past a device's budget, RankFailed.
    """
    return trained_ranks.train(__name__, spec, report, folder)


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[ReplicaTraining]:
    """In a rank's process: its training."""
    yield ReplicaTraining(spec, report, folder)


class ReplicaTraining(PlainTraining):
    """Plain training of one rank's samples, with everybody's gradients."""

    def __init__(self, spec: RunSpec, report: Reporter, folder: Path) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        # Blocks were to be compiled in pieces between which buckets leave; they are small enough.
        torch._dynamo.config.optimize_ddp = False
        rows = len(share_of(spec.microbatch, self.rank, self.ranks))
        passes = spec.with_(batch=rows * spec.microbatches)
        super().__init__(spec, report, folder, passes=passes)
        with self.meter, warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # 2.13 on what 2.11 has no other name for
            self.replica = DistributedDataParallel(
                self.whole,
                broadcast_buffers=False,
                init_sync=False,  # all have the weights of one seed
                bucket_cap_mb=BUCKET_MIB,
                gradient_as_bucket_view=True,
            )

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        told = super().outcome()
        engine = f"DistributedDataParallel of torch {torch.__version__}, {self.blocks}"
        return replace(told, engine=engine)

    def _step(self, step: int) -> tuple[float, float]:
        """One optimizer step; returns its mean loss and the norm of its gradients."""
        spec, total = self.spec, torch.zeros((), device=self.device)
        batches = micro_batches(self.batches, spec, step, self.device, self.model)
        for micro, whole in enumerate(batches):
            part = share(whole, self.model)
            weight = part.weight / spec.microbatches
            last = micro == spec.microbatches - 1
            with nullcontext() if last else self.replica.no_sync():
                loss = self.replica(part.tokens, part.targets, step=step, samples=part.samples)
                (loss * (weight * self.ranks)).backward()  # of the ranks the mean is taken
            total += loss.detach() * weight
        dist.all_reduce(total)
        norm = self._update(spec.learning_rate(step))
        return float(total), float(norm)

    @torch.no_grad()
    def _update(self, lr: float) -> Tensor:
        """Plain training lets go of gradients; here they keep their places in the buckets."""
        places = {weight: weight.grad for weight in self.masters}
        norm = super()._update(lr)
        for weight, place in places.items():
            weight.grad = place
        torch._foreach_zero_(list(places.values()))
        return norm

    def _keep(self, next_step: int, keep: Callable[..., None]) -> None:
        if self.rank == 0:  # all have the same
            super()._keep(next_step, keep)
