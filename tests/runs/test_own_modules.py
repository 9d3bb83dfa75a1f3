"""Modules of a user's own, and such as need several samples, as a user trains them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baselines import plain
from tests.methods.harness import Silent
from workbench.core.spec import RunSpec
from workbench.methods.train import load_batches
from workbench.model import custom, make_model

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.inner(self.norm(x)))


def net(spec):
    blocks = [Block(spec.hidden) for _ in range(spec.layers)]
    return (
        nn.Sequential(nn.Linear(4, spec.hidden), *blocks, nn.Linear(spec.hidden, 3)),
        TensorDataset(torch.randn(32, 4), torch.randint(3, (32,))),
    )
"""
TIED = """
from torch import nn


class Words(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.embed = nn.Embedding(spec.vocab, spec.hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(spec.hidden, spec.hidden), nn.GELU())
            for _ in range(spec.layers)
        )
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def net(spec):
    return Words(spec)
"""
"""Its head owns nothing."""
ON_TWO = ("-m", "harmony-pp", "--ranks", "2", "--device", "cpu", "--steps", "4")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder that Python does not look in by itself."""
    command = [sys.executable, "-P", "-m", "workbench.cli", "run", "--results", "results", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def recorded(folder: Path) -> dict:
    (path,) = folder.glob("results/runs/*/record.json")
    return json.loads(path.read_text())


def plainly(spec: RunSpec) -> list[float]:
    """Losses of the module, made and trained as anybody would."""
    torch.manual_seed(spec.seed)
    net: nn.Module = custom.function_of(spec.model.family)(spec.model)[0]
    groups = [
        {"params": [p for p in net.parameters() if (p.dim() > 1) == decays], "weight_decay": decay}
        for decays, decay in ((True, spec.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(spec.beta1, spec.beta2), eps=spec.eps)
    batches, losses = load_batches(spec, make_model(spec.model)), []
    for step in range(spec.steps):
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate(step)
        optimizer.zero_grad()
        x, labels = batches.batch(step)
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), spec.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_it_trains_to_plain_torchs_losses(tmp_path, measured, monkeypatch):
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    (tmp_path / "own_net.py").write_text(SOURCE)
    sizes = ("-l", "4", "--hidden", "16", "-b", "8", "--set", "lr=0.01")
    done = run(tmp_path, *ON_TWO, "--set", "family=own_net:net", *sizes)
    assert done.returncode == 0, done.stderr
    begins, compared, found = done.stderr.splitlines()[:3]
    assert begins == "harmony-pp: own_net:net, batch 8, 4 steps, fp32 on cpu"
    assert compared == "comparing the layers with the module as it is written"
    assert found == "own_net:net: 6 layers, 1,347 parameters"
    record = recorded(tmp_path)
    monkeypatch.chdir(tmp_path)
    expected = plainly(RunSpec.from_dict(record["spec"]))
    assert record["losses"] == pytest.approx(expected, rel=1e-5)
    assert expected[0] != expected[-1]


def test_what_is_not_there_is_a_sentence_and_bad_input(tmp_path):
    """Whatever is wrong with it (tests/unit/model/test_custom.py)."""
    (tmp_path / "own_net.py").write_text(SOURCE)
    done = run(tmp_path, *ON_TWO, "--set", "family=own_net:no_such", "--set", "heads=1", "-b", "4")
    assert done.returncode == 2
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("workbench: ")]
    assert "'own_net' has no function no_such" in sentence
    assert "Traceback" not in done.stderr


def test_a_model_that_needs_two_samples_is_planned_and_trained_with_two(tmp_path, measured):
    """A picture of 32 pixels is down to one before the last BatchNorm."""
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    sizes = ("-l", "4", "--hidden", "4", "--set", "heads=1", "--seq", "32", "--vocab", "10")
    done = run(tmp_path, *ON_TWO, "--set", "family=resnet", *sizes, "-b", "4")
    assert done.returncode == 0, done.stderr
    settings = recorded(tmp_path)["predicted"]["settings"]
    assert min(settings["forward_size"], settings["backward_size"]) >= 2
    (limits,) = tmp_path.glob("results/profiles/*/limits-*.json")
    assert json.loads(limits.read_text())["limits"]["smallest"] == 2


def test_a_size_that_the_model_does_not_take_is_bad_input(tmp_path, measured):
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    sizes = ("-l", "4", "--hidden", "4", "--set", "heads=1", "--seq", "32", "--vocab", "10")
    ones = ("--forward-size", "1", "--backward-size", "1")
    done = run(tmp_path, *ON_TWO, "--set", "family=resnet", *sizes, "-b", "4", *ones)
    assert done.returncode == 2, done.stderr
    assert "micro-batches of 1 cannot be run: Expected more than 1 value" in done.stderr


def test_a_cap_that_no_layer_fits_in_is_told_before_anything_is_timed(tmp_path, measured):
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    sizes = ("-l", "4", "--hidden", "64", "--set", "heads=1", "--seq", "64", "--vocab", "256")
    done = run(tmp_path, *ON_TWO, *sizes, "-b", "4", "--device-memory", "100KiB")
    assert done.returncode == 2, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("workbench: ")]
    assert sentence.endswith(" in a micro-batch of 1, and the device may hold 100 KiB")
    assert recorded(tmp_path)["status"] == "oom_device"
    assert not [*tmp_path.glob("results/profiles/*/units-*.json")]


def test_a_layer_that_owns_nothing_is_in_checkpoints_of_every_method(
    tmp_path, measured, monkeypatch
):
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    (tmp_path / "tied_net.py").write_text(TIED)
    of = ("--set", "family=tied_net:net", "-l", "3", "--hidden", "16", "--set", "heads=1")
    of = (*of, "--seq", "8", "--vocab", "256", "-b", "4", "--set", "lr_decay_steps=9")
    of = (*of, "--device", "cpu")
    done = run(tmp_path, "-m", "plain", *of, "--steps", "4", "--save-every", "2")
    assert done.returncode == 0, done.stderr
    first = recorded(tmp_path)
    more = ("-m", "harmony-dp", "--ranks", "2", "--steps", "6", "--start-from", first["key"])
    done = run(tmp_path, *of, *more)
    assert done.returncode == 0, done.stderr
    (record,) = [
        json.loads(path.read_text())
        for path in tmp_path.glob("results/runs/*/record.json")
        if first["key"] not in path.parts
    ]
    assert record["losses"][:4] == first["losses"]
    monkeypatch.chdir(tmp_path)
    spec = RunSpec.from_dict(first["spec"]).with_(steps=6, save_every=0)
    whole = plain.train(spec, Silent(), tmp_path / "whole")
    assert record["losses"] == pytest.approx(whole.losses, rel=1e-5)
