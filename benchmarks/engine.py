"""A Llama of 1.24 billion parameters in a loop of one's own, under several budgets of a GPU, beside
torch's own loop.

    python -m benchmarks.engine --caps 40,20,10,8 [--steps 8] [--out FOLDER]

Budgets are GiB. From `WHOLE_GIB` on a batch is computed whole, below in four micro-batches. Each
loop has a process of its own; the budget of 20 GiB is run a second time, which finds what the
machine was measured for, and once by `workbench run`. Losses are to be those without a budget to
1e-3 in bf16. The model has random weights, and its batches are random tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.counted import DECODERS

CONFIG: dict[str, Any] = DECODERS["llama, 128,256 words"] | {
    "num_hidden_layers": 16, "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
BATCH, SEQ, LR, CLIP = 4, 2048, 1e-4, 1.0
WHOLE_GIB, PARTS, AGAIN_GIB = 16, 4, 20
LIMIT_S = 300
GIB = 1 << 30


def data(steps: int) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    rows = (BATCH, SEQ)
    return [torch.randint(CONFIG["vocab_size"], rows, generator=generator) for _ in range(steps)]


def model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**CONFIG, use_cache=False)).train()


def by_torch(steps: int) -> dict[str, Any]:
    """bf16 autocast over fp32 weights, all on the GPU."""
    import torch

    module = model().cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, fused=True)
    losses, seconds = [], []
    for tokens in data(steps):
        began, rows = time.perf_counter(), tokens.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = module(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    return measured(losses, seconds)


def by_engine(steps: int, cap_gib: int, results: str) -> dict[str, Any]:
    """Under a budget; 0 is none."""
    import workbench

    module, told, losses, seconds = model(), io.StringIO(), [], []
    with (
        contextlib.redirect_stderr(told),
        workbench.Engine(
            module, {"lr": LR}, "stronghold", clip=CLIP, dtype="bf16", results=results,
            device_memory=cap_gib * GIB or None,
            microbatches=1 if cap_gib >= WHOLE_GIB or not cap_gib else PARTS,
        ) as engine,
    ):  # fmt: skip
        for tokens in data(steps):
            began = time.perf_counter()
            batch = {"input_ids": tokens, "labels": tokens}
            losses.append(float(engine.step(batch, lambda outputs, batch: outputs.loss)))
            seconds.append(time.perf_counter() - began)
        return measured(losses, seconds) | {"start": told.getvalue()}


def measured(losses: list[float], seconds: list[float]) -> dict[str, Any]:
    import torch

    median = sorted(seconds[1:])[(len(seconds) - 1) // 2]
    return {
        "first_step_s": round(seconds[0], 1), "step_s": round(median, 4),
        "samples_per_s": round(BATCH / median, 2), "losses": losses,
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        "reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 2),
    }  # fmt: skip


def by_run(steps: int, cap_gib: int, results: str) -> dict[str, Any]:
    """`workbench run` of the configuration, on the text that comes with Python."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG))
        command = [
            sys.executable, "-m", "workbench", "run", "-m", "stronghold", "--hf-config", config,
            "--seq", SEQ, "-b", BATCH, "--microbatches", 1, "--dtype", "bf16", "--clip", CLIP,
            "--steps", steps, "--device-memory", f"{cap_gib}GiB", "--results", results,
        ]  # fmt: skip
        subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=LIMIT_S)
    newest = max(Path(results).glob("runs/*/record.json"), key=lambda path: path.stat().st_mtime)
    record = json.loads(newest.read_text())
    return {
        "samples_per_s": round(record["samples_per_second"], 2),
        "peak_gib": round(record["peak_bytes"]["device"] / GIB, 2),
        "start": json.dumps(record.get("start")),
    }


def one(name: str, steps: int, cap: int, results: str) -> dict[str, Any]:
    if name == "torch":
        return by_torch(steps)
    return (by_run if name == "run" else by_engine)(steps, cap, results)


def alone(name: str, steps: int, cap: int, results: str) -> dict[str, Any]:
    """Measure a loop in a process of its own."""
    asked = ["--one", name, "--steps", str(steps), "--caps", str(cap), "--out", results]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine", *asked],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    last = done.stdout.strip().split("\n")[-1]
    row = json.loads(last) if done.returncode == 0 else {"failed": done.stderr[-2000:]}
    return {"loop": name, "cap_gib": cap or None, "all_s": time.perf_counter() - began, **row}


def table(rows: list[dict[str, Any]]) -> str:
    free = next((r["losses"] for r in rows if r["loop"] == "engine" and not r["cap_gib"]), None)
    lines = ["loop    GiB   samples/s  first step s  peak GiB  reserved  losses apart"]
    for row in rows:
        cap = row["cap_gib"] or "-"
        if "failed" in row:
            lines.append(f"{row['loop']:7} {cap:>3}   failed: {row['failed'].split(chr(10))[-2:]}")
            continue
        apart = ""
        if free and "losses" in row:
            worst = max(abs(a / b - 1) for a, b in zip(row["losses"], free, strict=True))
            apart = f"{worst:.1e}"
        lines.append(
            f"{row['loop']:7} {cap:>3} {row['samples_per_s']:>11} {row.get('first_step_s', ''):>13}"
            f" {row['peak_gib']:>9} {row.get('reserved_gib', ''):>9}  {apart}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--caps", default="40,20,10,8", help="budgets in GiB")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("results/bench"), metavar="FOLDER")
    parser.add_argument("--one", choices=("torch", "engine", "run"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    caps = [int(cap) for cap in arguments.caps.split(",")]
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.steps, caps[0], str(arguments.out))))
        return 0
    rows = []
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as results:
        loops = [("torch", 0), ("engine", 0), *(("engine", cap) for cap in caps)]
        loops += [("engine", AGAIN_GIB), ("run", AGAIN_GIB)] * (AGAIN_GIB in caps)
        for name, cap in loops:
            rows.append(alone(name, arguments.steps, cap, results))
            (arguments.out / "engine.json").write_text(json.dumps(rows, indent=1) + "\n")
            print(name, cap or "", rows[-1].get("start", ""), flush=True)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
