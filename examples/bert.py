"""Masked-language modelling with Hugging Face's BERT as it is: without cut points, a module is cut
at its blocks. The loss is the mean over the masked bytes of the whole batch, however unequally
they fall on micro-batches and replicas.

The model is small by default; BERT's large one is
``--layers 24 --hidden 1024 --heads 16 --seq 512 --vocab 30522``.

echo 127.0.0.1:2 > hosts
workbench varuna --machine_list hosts --batch_size 8 --nstages 2 --chunk_size 2 \\
    examples/bert.py --text README.md
torchrun --nproc_per_node 4 examples/bert.py --stage_to_rank_map '0,2;1,3;' --global_batch 64 \\
    --text FILE
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from workbench.methods.varuna import Profiler, Varuna

MASK, NOT_ASKED = 256, -100
"""The token behind those of all bytes, and the label that does not count."""
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""Part of the bytes that are predicted; of these, parts that are hidden, or replaced by others."""


def make_parser() -> argparse.ArgumentParser:
    """Flags of the script, the launcher's among them."""
    parser = argparse.ArgumentParser()
    for flag, default in (
        ("--layers", 4), ("--hidden", 128), ("--heads", 4), ("--seq", 128), ("--vocab", 512),
        ("--steps", 20), ("--global_batch", 0), ("--chunk_size", 4), ("--batch-size", 0),
        ("--rank", 0), ("--local_rank", int(os.environ.get("LOCAL_RANK", 0))),
        ("--resume_step", -1), ("--save_every", 0),
    ):  # fmt: skip
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--stage_to_rank_map", default="0;")
    parser.add_argument("--order", default="varuna")
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--save", default="checkpoints")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--profiling", metavar="DIR", nargs="?", const="profiles")
    parser.add_argument("--text", required=True)
    return parser


def make(args: argparse.Namespace) -> BertForMaskedLM:
    """The module, whose output layer has the embedding's weight."""
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=args.vocab,
            hidden_size=args.hidden,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            intermediate_size=4 * args.hidden,
            max_position_embeddings=args.seq,
        )
    )


def masked(row: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [S] and labels [S] of a sample, equal whoever makes it; one byte is asked at least."""
    generator = torch.Generator().manual_seed(seed)
    draws, others = torch.rand(2, len(row), generator=generator)
    chosen = draws < CHOSEN
    chosen[draws.argmin()] = True
    tokens = torch.where(chosen & (others < MASKED), MASK, row)
    swapped = chosen & (others >= 1 - RANDOM)
    tokens[swapped] = torch.randint(MASK, (int(swapped.sum()),), generator=generator)
    return tokens, torch.where(chosen, row, NOT_ASKED)


def batch(text: torch.Tensor, seq: int, samples: range) -> dict:
    """Inputs of samples of a text of bytes, each of so many."""
    taken = (torch.tensor(samples)[:, None] * seq + torch.arange(seq)) % len(text)
    pairs = [masked(row, n) for n, row in zip(samples, text[taken].long(), strict=True)]
    tokens, labels = map(torch.stack, zip(*pairs, strict=True))
    return {"input_ids": tokens, "labels": labels}


def main() -> None:
    args = make_parser().parse_args()
    text = torch.frombuffer(bytearray(Path(args.text).read_bytes()), dtype=torch.uint8)
    maker, rows_of = partial(make, args), (lambda rows: batch(text, args.seq, range(rows)))
    how = {"local_rank": args.local_rank, "bf16": args.bf16, "transport": args.transport}
    if args.profiling:
        profiler = Profiler(maker, rows_of, out_folder=args.profiling, **how)
        profiler.profile_all([1, 2, 4, 8], anew=False)
        return
    model = Varuna(
        maker, args.stage_to_rank_map, rows_of, args.global_batch or None, args.chunk_size,
        order=args.order, weight_of=lambda inputs: int((inputs["labels"] != NOT_ASKED).sum()),
        **how,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
    model.set_optimizer(optimizer)
    model.keep(scheduler)
    if args.resume_step >= 0:
        model.load_checkpoint(args.save)
    while model.steps < args.steps:
        began, step = time.monotonic(), model.steps
        first = step * model.batch_size + model.share.start
        inputs = batch(text, args.seq, range(first, first + len(model.share)))
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
