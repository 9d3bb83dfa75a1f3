"""Trains a module of one's own under any method that takes the steps of a loop of one's own.

python examples/engine.py stronghold --device-memory 1GiB
torchrun --nproc_per_node 2 examples/engine.py varuna
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import workbench


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", nargs="?", default="stronghold")
    for flag, default in (("--layers", 8), ("--width", 64), ("--steps", 20)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--device-memory")
    args = parser.parse_args()
    torch.manual_seed(0)
    blocks = [block(args.width) for _ in range(args.layers)]
    model = nn.Sequential(nn.Linear(16, args.width), *blocks, nn.Linear(args.width, 1))
    engine = workbench.Engine(
        model, {"lr": 1e-3}, method=args.method, clip=1.0, device_memory=args.device_memory
    )
    scheduler = torch.optim.lr_scheduler.LinearLR(engine.optimizer, 0.1, 1.0, total_iters=10)
    for step in range(args.steps):
        x = torch.randn(32, 16)
        batch = {"input": x, "target": x.sum(1, keepdim=True)}
        loss = engine.step(batch, lambda out, batch: F.mse_loss(out, batch["target"]))
        scheduler.step()
        print(f"step {step}: loss {loss:.6f}", flush=True)
    model.load_state_dict(engine.state_dict())
    engine.close()


if __name__ == "__main__":
    main()
