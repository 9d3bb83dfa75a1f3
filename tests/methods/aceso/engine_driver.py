"""An engine with a plan, in one of several processes: ``python -m tests.methods.aceso.engine_driver
WHAT FOLDER RANK RANKS``, with WHAT a model of `MODULES`, ``resumes`` after it to save midway and
go on in another engine, ``fp64`` for everything in it. It leaves losses, weights and the words of a
refusal in a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.aceso.plans import MODEL, PICTURES, T5
from workbench import Engine, engine
from workbench.core.model_spec import ModelSpec
from workbench.methods.aceso import driven
from workbench.model.families import module_of
from workbench.model.gpt import Block, FeedForward
from workbench.runtime.transport.loopback import join

STEPS, ROWS, CLIP = 6, 10, 0.5
SETTINGS = {"lr": 1e-2, "eps": 1e-5}
"""AdamW makes whole steps of gradients that are rounding, such as those of keys' biases, but for a
large epsilon."""


class Gpt(nn.Module):
    """A GPT of a user's, with GPT-2's names: token ids -> logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        spec, width = ModelSpec(**{**MODEL.to_dict(), "dropout": 0.0}), MODEL.hidden
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(spec.vocab, width), "wpe": nn.Embedding(spec.seq, width),
            "h": nn.ModuleList(Block(spec) for _ in range(spec.layers)),
            "ln_f": nn.LayerNorm(width),
        })  # fmt: skip
        self.lm_head = nn.Linear(width, spec.vocab, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        inner = self.transformer
        x = inner["wte"](tokens) + inner["wpe"](torch.arange(tokens.shape[1]))
        for block in inner["h"]:
            x = block(x)
        return self.lm_head(inner["ln_f"](x))


class Rectified(FeedForward):
    """Another form of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.relu(self.c_fc(x)))


class Other(Gpt):
    """Names and shapes are those of the plan."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.transformer["h"]:
            block.mlp.__class__ = Rectified


def llama() -> nn.Module:
    """Transformers' own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.methods.aceso.test_llama import CONFIG

    torch.manual_seed(0)
    config = {key: value for key, value in CONFIG.items() if key != "model_type"}
    return LlamaForCausalLM(LlamaConfig(**config, use_cache=False)).train()


def family(spec: ModelSpec) -> nn.Module:
    torch.manual_seed(0)
    return module_of(ModelSpec(**{**spec.to_dict(), "dropout": 0.0}), 0).train()


MODULES = {
    "gpt": Gpt, "rectified": Other, "llama": llama, "t5": lambda: family(T5),
    "resnet": lambda: family(PICTURES), "other": lambda: nn.Sequential(nn.Linear(2, 2)),
}  # fmt: skip


def doubled(patch: pytest.MonkeyPatch) -> None:
    """What asks for fp32 gets fp64."""
    torch.set_default_dtype(torch.float64)
    for module in (engine, driven):
        patch.setattr(module, "DTYPES", {"fp32": torch.float64})
    patch.setattr(torch.Tensor, "float", lambda tensor: tensor.to(torch.float64))


def batches(what: str) -> list[tuple[Tensor, ...]]:
    """Labels of texts end after some tokens."""
    draw, found = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        if what == "resnet":
            pictures = torch.randn(16, 3, 64, 64, generator=draw)
            found.append((pictures, torch.randint(10, (16,), generator=draw)))
            continue
        tokens = torch.randint(250, (ROWS, 9), generator=draw)
        ends = torch.randint(2, 8, (ROWS, 1), generator=draw)
        labels = tokens[:, 1:].where(torch.arange(8) < ends, -100)
        if what == "t5":
            source = torch.randint(250, (ROWS, 12), generator=draw)
            mask = torch.arange(12) < 4 + ends
            found.append((source, mask, tokens[:, :6].contiguous(), labels[:, :6].contiguous()))
        else:
            found.append((tokens[:, :-1].contiguous(), labels.contiguous()))
    return found


def loss_of(outputs: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    return F.cross_entropy(logits.flatten(0, -2), batch[-1].flatten())


def by_torch(what: str) -> tuple[list[float], dict[str, Tensor]]:
    """Torch's loop over the user's module."""
    module, losses, inputs = MODULES[what](), [], 3 if what == "t5" else 1
    optimizer = torch.optim.AdamW(module.parameters(), **SETTINGS)
    for batch in batches(what):
        optimizer.zero_grad()
        if what == "resnet":  # BatchNorm's statistics are of micro-batches
            loss = 0
            for rows in torch.arange(16).split(8):
                part = tuple(each[rows] for each in batch)
                one = loss_of(module(part[0]), part) / 2
                one.backward()
                loss += one.item()
        else:
            told = loss_of(module(*batch[:inputs]), batch)
            told.backward()
            loss = told.item()
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        losses.append(loss)
    return losses, module.state_dict()


def main(what: str, folder: Path, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    join(torch.device("cpu"), file=folder / "meeting", rank=rank, ranks=ranks)
    what, *more = what.split()
    if "fp64" in more:
        doubled(pytest.MonkeyPatch())
    module, losses, said, weights = MODULES[what](), [], "", {}

    def made_anew() -> Engine:
        return Engine(
            module, SETTINGS, method="aceso", plan=folder / "plan.json", clip=CLIP,
            device="cpu", results=folder / "results", quiet=True,
        )  # fmt: skip

    made = made_anew()
    try:
        for step, batch in enumerate(batches(what)):
            if "resumes" in more and step == STEPS // 2:
                made.save(folder / "saved")
                made.close()
                made = made_anew()
                assert made.load(folder / "saved") == step
            losses.append(float(made.step(batch, loss_of)))
        weights = {name: value.tolist() for name, value in made.state_dict().items()}
        made.close()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    told = {"losses": losses, "said": said, "weights": weights}
    (folder / f"{rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
