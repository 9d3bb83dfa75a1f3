"""One loop of one's own over a real model, in a process of its own; its last line is a row.

    python -m benchmarks.real_loops ROW

ROW is a `real_cases.Row` in JSON, whose folder has weights. All loops take equal batches of random
tokens, clip gradients to 1.0, and tell the loss of each step, at which they wait for the device.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import workbench
from benchmarks.real_cases import Row
from workbench.core.bytesize import parse_bytes

LR, CLIP, GIB = 1e-4, 1.0, 1 << 30
WRITTEN = 8 << 30
"""Bytes by which the disk's rate is measured."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Step = Callable[[Tensor], float]
Figures = dict[str, Any]


def batches(row: Row) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(row.steps):
        yield torch.randint(row.config["vocab_size"], (row.batch, row.seq), generator=generator)


def module(row: Row) -> nn.Module:
    """The folder's model, in fp32."""
    from transformers import AutoModelForCausalLM

    made = AutoModelForCausalLM.from_pretrained(row.folder, dtype=torch.float32)
    made.config.use_cache = False
    return made.train()


def bare(row: Row) -> nn.Module:
    """The folder's model without values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(row.folder)
    config.use_cache = False
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def steps_of(row: Row, step: Step) -> Figures:
    """Do all steps. The speed is that of the later half, since some planners move layers first."""
    losses, seconds, first = [], [], 0.0
    for tokens in batches(row):
        began = time.perf_counter()
        losses.append(step(tokens))
        seconds.append(time.perf_counter() - began)
        first = first or time.time() - row.began
    middle = median(seconds[len(seconds) // 2 :])
    return {
        "samples_per_s": row.batch / middle, "step_s": middle, "seconds": seconds,
        "losses": losses, "first_step_s": first,
    }  # fmt: skip


def peaks() -> Figures:
    if DEVICE == "cpu":
        return {}
    kept, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"peak_gib": kept / GIB, "reserved_gib": reserved / GIB}


def by_torch(row: Row) -> Figures:
    """bf16 autocast over fp32 weights, all on the device."""
    model = module(row).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)

    def step(tokens: Tensor) -> float:
        ids = tokens.to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return steps_of(row, step) | peaks()


def by_trainstream(row: Row) -> Figures:
    """As its own Trainer drives it: `wrap_hf`, clipping inside, the loss divided."""
    import trainstream
    from trainstream.integrations.huggingface import _CaptureHidden, lm_head_of, wrap_hf
    from trainstream.losses import causal_lm_loss

    if row.cap:  # its planner takes this for the size of the device
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(parse_bytes(row.cap) / total)
    model = module(row)
    whole = row.options.get("param_offload") is False
    model = model.to(DEVICE) if whole else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    model, optimizer = wrap_hf(
        model, optimizer, max_grad_norm=CLIP, moment_dtype="float32", device=DEVICE, **row.options
    )
    head = lm_head_of(model)

    def step(tokens: Tensor) -> float:
        ids = tokens.to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            with _CaptureHidden(head) as captured:
                model(input_ids=ids)
            loss = causal_lm_loss(captured.hidden, head.weight, ids, head.bias)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    figures = steps_of(row, step) | peaks()
    optimizer.synchronize()
    return figures | {"notes": trainstream.memory_report(model)["events"]}


@contextmanager
def engine(row: Row) -> Iterator[workbench.Engine]:
    """An engine that reads the folder itself."""
    with workbench.Engine(
        bare(row), {"lr": LR}, row.method, clip=CLIP, dtype="bf16", microbatches=row.microbatches,
        device_memory=row.cap, host_memory=row.host or None, weights=row.folder, release=True,
        results=results(row),
    ) as made:  # fmt: skip
        yield made


def of_model(outputs: Any, batch: Any) -> Tensor:
    """The loss that a model of Hugging Face's has made."""
    return outputs.loss


def stepping(made: workbench.Engine) -> Step:
    return lambda ids: float(made.step({"input_ids": ids, "labels": ids}, of_model))


def by_engine(row: Row) -> Figures:
    with engine(row) as made:
        return steps_of(row, stepping(made)) | peaks()


def by_wrap(row: Row) -> Figures:
    """The ordinary loop; a call is a micro-batch."""
    model = module(row)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    model, optimizer = workbench.wrap(
        model, optimizer, row.method, clip=CLIP, dtype="bf16", accumulate=row.microbatches,
        device_memory=row.cap, host_memory=row.host or None, results=results(row),
    )  # fmt: skip

    def step(tokens: Tensor) -> float:
        total = 0.0
        for ids in tokens.chunk(row.microbatches):
            loss = model(input_ids=ids, labels=ids).loss / row.microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        return total

    figures = steps_of(row, step) | peaks()
    model.close()
    return figures


def by_export(row: Row) -> Figures:
    return _written(row, lambda made, folder: made.export(folder))


def by_save(row: Row) -> Figures:
    return _written(row, lambda made, folder: made.save(folder))


def _written(row: Row, write: Callable[[workbench.Engine, Path], Any]) -> Figures:
    """A few steps, and how fast what an engine writes comes to the disk."""
    folder = Path(row.folder).with_name(f"written-{row.how}")
    shutil.rmtree(folder, ignore_errors=True)
    with engine(row) as made:
        figures = steps_of(row, stepping(made)) | peaks()
        disk = disk_rate(folder.parent, WRITTEN >> 10 if row.smoke else WRITTEN)
        began = time.perf_counter()
        write(made, folder)
        seconds = time.perf_counter() - began
    count = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder)
    rate = count / seconds
    return figures | {
        "written_bytes": count, "written_s": seconds, "written_gb_per_s": rate / 1e9,
        "disk_gb_per_s": disk / 1e9, "of_disk": rate / disk,
    }  # fmt: skip


def disk_rate(folder: Path, count: int) -> float:
    """Bytes per second of one file, written in pieces of 16 MiB and flushed."""
    import os

    piece, path = os.urandom(min(count, 16 << 20)), folder / "disk-rate"
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(count // len(piece)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return count / seconds


def results(row: Row) -> Path:
    """Where measurements of this machine are kept."""
    return Path(row.folder).with_name("results")


LOOPS: dict[str, Callable[[Row], Figures]] = {
    "torch": by_torch, "trainstream": by_trainstream, "engine": by_engine, "wrap": by_wrap,
    "export": by_export, "save": by_save,
}  # fmt: skip


def main() -> int:
    row = Row(**json.loads(sys.argv[1]))
    print(json.dumps(LOOPS[row.how](row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
