"""Script of a job that a trace disturbs (job.py), as a user would write it: a small GPT with a cut
point a block, from the spec of a run. ``python -m`` runs it undisturbed, on one worker.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.core.sealed import read_sealed, sealed
from workbench.core.spec import RunSpec
from workbench.methods.varuna import CutPoint, Varuna
from workbench.methods.varuna.replay.job import ALONE, JOB, LAST, LOSSES
from workbench.model.corpus import read_corpus
from workbench.model.gpt import Block


class Net(nn.Module):
    """Tokens and labels [B, S] -> mean loss."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embed, self.place = (nn.Embedding(n, spec.hidden) for n in (spec.vocab, spec.seq))
        self.cuts = nn.ModuleList(CutPoint() for _ in range(spec.layers))
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.head = nn.Sequential(nn.LayerNorm(spec.hidden), nn.Linear(spec.hidden, spec.vocab))

    def forward(self, tokens, labels):
        x = self.embed(tokens) + self.place.weight
        for cut, block in zip(self.cuts, self.blocks, strict=True):
            x = block(cut(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stage_to_rank_map", default="0;")
    for flag in ("rank", "local_rank", "chunk_size", "batch-size", "resume_step"):
        parser.add_argument(f"--{flag}", type=int)
    given = parser.parse_args()
    job, alone = given.folder / JOB, given.rank is None
    spec = RunSpec.from_dict(read_sealed(given.folder / "spec.json", "spec.json"))
    torch.set_num_threads(1)
    text = torch.tensor([*read_corpus(spec.text).data[: 2**20]])

    def batch(rows: int, first: int = 0) -> dict[str, torch.Tensor]:
        starts = torch.arange(first, first + rows) * spec.model.seq
        part = text[(starts[:, None] + torch.arange(spec.model.seq + 1)) % len(text)]
        return {"tokens": part[:, :-1], "labels": part[:, 1:]}

    def make() -> Net:
        torch.manual_seed(spec.seed)
        return Net(spec.model)

    # All hosts are one machine: a rank has the GPU of its own number.
    device = "cpu" if spec.device == "cpu" else given.rank or 0
    chunk = given.chunk_size or spec.batch
    model = Varuna(make, given.stage_to_rank_map, batch, spec.batch, chunk, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, eps=spec.eps)
    model.set_optimizer(optimizer)
    if given.resume_step is not None:
        model.load_checkpoint()
    last, losses = job / LAST, job / (ALONE if alone else LOSSES)
    while model.steps < (int(last.read_text()) if last.exists() else spec.steps):
        began = time.monotonic()
        inputs = batch(len(model.share), model.steps * spec.batch + model.share.start)
        loss, _ = model.step(inputs, spec.clip)
        optimizer.step()
        if model.rank == 0:
            shape = {"stages": model.map.stages, "replicas": model.map.replicas}
            line = {"step": model.steps, "loss": loss, "at": time.time(), **shape}
            with losses.open("a") as file:
                line["seconds"] = time.monotonic() - began
                file.write(sealed(json.dumps(line)).decode())
    model.close()


if __name__ == "__main__":
    main()
