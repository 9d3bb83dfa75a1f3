"""An engine with a plan, in one of several processes: ``python -m tests.methods.aceso.engine_driver
WHAT FOLDER RANK RANKS``, with WHAT a model of `MODULES`, ``resumes`` after it to save midway and
go on in another engine, ``fp64`` for everything in it. It leaves losses, weights and the words of a
refusal in a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.aceso.plans import MODEL, PICTURES, T5, Rule, plan
from workbench import Engine, engine
from workbench.core.model_spec import ModelSpec
from workbench.methods.aceso import driven, driven_layers
from workbench.methods.aceso.driven_layers import layers_named
from workbench.methods.aceso.plan import Plan, Subject
from workbench.model.base import LayeredModel
from workbench.model.families import module_of
from workbench.model.gpt import Block as GptBlock
from workbench.model.gpt import FeedForward
from workbench.model.objective import Batch, Objective
from workbench.model.whole import make_whole
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
            "h": nn.ModuleList(GptBlock(spec) for _ in range(spec.layers)),
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


class Block(nn.Module):
    """Takes rows [S, B, H], and hands on a mask [S, B] and a tensor of all tokens, [B S, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 12, bias=False), nn.Linear(12, 16)
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
        y = self.norm(self.inner(x).permute(1, 2, 0)).permute(2, 0, 1).tanh()
        return x + self.outer(y) * mask[..., None] + tokens.unflatten(0, (-1, 8)).transpose(0, 1)


class Layers(nn.Module):
    """A module that no list of operators knows: rows in several dimensions, a table that two layers
    share, one of which is frozen, and a norm that joins rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(256, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(16, 256)
        self.head.weight = self.words.weight
        self.blocks[1].outer.bias.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.words(tokens).transpose(0, 1), (tokens % 7 > 0).t()
        flat = x.transpose(0, 1).flatten(0, 1) / 2
        for block in self.blocks:
            x = block(x, mask, flat)
        return self.head(x.transpose(0, 1))


@cache
def _subject() -> Subject:
    made = Objective(Layers(), loss_of, first := Batch(batches("layers")[0]))
    model = made.layered()[0]
    name, count = layers_named(made.name, model, first), model.num_units
    return Subject(model="module", size=name, layers=count, shape=(), batch=ROWS)


def own(stages: Sequence[tuple[int, int, Rule]], **more: int) -> Plan:
    """A plan of its layers."""
    return plan(stages, subject=_subject(), **more)


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
    "layers": Layers, "gpt": Gpt, "rectified": Other, "llama": llama, "t5": lambda: family(T5),
    "resnet": lambda: family(PICTURES), "other": lambda: nn.Sequential(nn.Linear(2, 2)),
}  # fmt: skip


def doubled(patch: pytest.MonkeyPatch) -> None:
    """What asks for fp32 gets fp64."""
    torch.set_default_dtype(torch.float64)
    for module in (engine, driven, driven_layers):
        patch.setattr(module, "DTYPES", {"fp32": torch.float64})
    for makes in (LayeredModel.build, make_whole):
        patch.setitem(makes.__kwdefaults__, "dtype", torch.float64)
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


def by_torch(what: str, micro: int) -> tuple[list[float], dict[str, Tensor]]:
    """Torch's loop over the user's module, in micro-batches, whose statistics BatchNorm takes."""
    module, losses, inputs = MODULES[what](), [], 3 if what == "t5" else 1
    optimizer = torch.optim.AdamW(module.parameters(), **SETTINGS)
    for batch in batches(what):
        optimizer.zero_grad()
        loss, count = 0, (batch[-1] != -100).sum()
        for rows in torch.arange(len(batch[0])).split(micro):
            part = tuple(each[rows] for each in batch)
            one = loss_of(module(*part[:inputs]), part) * (part[-1] != -100).sum() / count
            one.backward()
            loss += one.item()
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
