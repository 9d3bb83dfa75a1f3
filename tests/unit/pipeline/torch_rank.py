"""A rank of torch's own pipeline runtime, under exported orders: arguments FOLDER RANK RANKS.

Trains one step of a small model under each ``ORDER-CHUNKS.csv`` of the folder, and fails unless the
gradients are those of the model in one piece.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

MICROS, WIDTH = 4, 4


def loss_of(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The sum of a micro-batch's."""
    return (x - target).square().sum()


def train(file: Path, rank: int, ranks: int, chunks: int) -> None:
    """One step under one order."""
    torch.manual_seed(0)
    count = ranks * chunks
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]
    whole, x = copy.deepcopy(nn.Sequential(*layers)), torch.randn(MICROS, WIDTH)
    target = torch.randn(MICROS, WIDTH)
    loss_of(whole(x), target).backward()
    shape, device = torch.zeros(1, WIDTH, requires_grad=True), torch.device("cpu")
    stages = [
        PipelineStage(layers[n], n, count, device, input_args=shape, output_args=shape)
        for n in range(rank, count, ranks)
    ]
    runtime = _PipelineScheduleRuntime(stages, MICROS, loss_fn=loss_of, scale_grads=False)
    runtime._load_csv(str(file))
    inputs = (x,) if rank == 0 else ()
    runtime.step(*inputs, target=target if rank == ranks - 1 else None)
    for number in range(rank, count, ranks):
        for ours, theirs in zip(
            layers[number].parameters(), whole[number].parameters(), strict=True
        ):
            torch.testing.assert_close(ours.grad, theirs.grad)


if __name__ == "__main__":
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks
    )
    for file in sorted(folder.glob("*.csv")):
        train(file, rank, ranks, int(file.stem.rpartition("-")[2]))
    dist.destroy_process_group()
