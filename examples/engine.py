"""Trains a module of one's own under any method that takes the steps of a loop of one's own.

python examples/engine.py stronghold 1GiB
torchrun --nproc_per_node 2 examples/engine.py varuna
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from workbench import Engine


def main(method: str = "stronghold", device_memory: str | None = None) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(8)]
    model = nn.Sequential(nn.Linear(16, 64), *blocks, nn.Linear(64, 1))
    with Engine(model, {"lr": 1e-3}, method, clip=1.0, device_memory=device_memory) as engine:
        scheduler = torch.optim.lr_scheduler.LinearLR(engine.optimizer, 0.1, total_iters=10)
        for step in range(20):
            x = torch.randn(32, 16)
            batch = {"input": x, "target": x.sum(1, keepdim=True)}
            loss = engine.step(batch, lambda out, batch: F.mse_loss(out, batch["target"]))
            scheduler.step()
            print(f"step {step}: loss {loss:.6f}", flush=True)
        model.load_state_dict(engine.state_dict())


if __name__ == "__main__":
    main(*sys.argv[1:])
