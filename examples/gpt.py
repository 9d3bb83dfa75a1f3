"""A GPT in the manner of Megatron-LM's, written as anybody writes it, with a cut point a block.

The model is small by default; GPT-2's is
``--layers 12 --hidden 768 --heads 12 --seq 1024 --vocab 50304``.

echo 127.0.0.1:2 > hosts
workbench varuna --machine_list hosts --batch_size 8 --nstages 2 --chunk_size 2 \\
    examples/gpt.py --text README.md
torchrun --nproc_per_node 4 examples/gpt.py --stage_to_rank_map '0;1;2;3;' --global_batch 64 \\
    --text FILE
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from workbench.methods.varuna import CutPoint, Profiler, Varuna


class Block(nn.Module):
    """Attention and a feed-forward net, each behind a norm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.cut, self.heads = CutPoint(), heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        x = self.cut(x)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers: int, hidden: int, heads: int, seq: int, vocab: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embed.weight
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** (0.5 * deep))

    def forward(self, tokens, labels):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag, default in (
        ("--layers", 4), ("--hidden", 128), ("--heads", 4), ("--seq", 128), ("--vocab", 256),
        ("--steps", 20), ("--global_batch", 0), ("--chunk_size", 4), ("--batch-size", 0),
        ("--rank", 0), ("--local_rank", int(os.environ.get("LOCAL_RANK", 0))),
        ("--resume_step", -1), ("--save_every", 0), ("--save", "checkpoints"),
        ("--stage_to_rank_map", "0;"), ("--order", "varuna"), ("--transport", "auto"),
    ):  # fmt: skip
        parser.add_argument(flag, type=type(default), default=default)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--profiling", metavar="DIR", nargs="?", const="profiles")
    parser.add_argument("--text", required=True)
    args = parser.parse_args()
    text = torch.frombuffer(bytearray(Path(args.text).read_bytes()), dtype=torch.uint8)

    def batch(rows: int, first: int = 0) -> dict:
        starts = torch.arange(first, first + rows) * args.seq
        taken = (starts[:, None] + torch.arange(args.seq + 1)) % len(text)
        part = text[taken].long()
        return {"tokens": part[:, :-1], "labels": part[:, 1:]}

    def make() -> GPT:
        torch.manual_seed(0)
        return GPT(args.layers, args.hidden, args.heads, args.seq, args.vocab)

    if args.profiling:
        Profiler(
            make, batch, out_folder=args.profiling, local_rank=args.local_rank, bf16=args.bf16,
            transport=args.transport,
        ).profile_all([1, 2, 4, 8], anew=False)  # fmt: skip
        return
    model = Varuna(
        make, args.stage_to_rank_map, batch, args.global_batch or None, args.chunk_size,
        local_rank=args.local_rank, bf16=args.bf16, order=args.order,
        transport=args.transport,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
    model.set_optimizer(optimizer)
    model.keep(scheduler)
    if args.resume_step >= 0:
        model.load_checkpoint(args.save)
    while model.steps < args.steps:
        began, step = time.monotonic(), model.steps
        inputs = batch(len(model.share), step * model.batch_size + model.share.start)
        loss, overflow = model.step(inputs, clip_grad_max_norm=1.0)
        if not overflow:
            optimizer.step()
        scheduler.step()
        if args.save_every and model.steps % args.save_every == 0:
            model.checkpoint(args.save)
        if model.rank == 0:
            print(f"step {step}: loss {loss:.4f}, {time.monotonic() - began:.3f} s", flush=True)
    model.close()


if __name__ == "__main__":
    main()
