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

from tests.methods import torchs
from tests.methods.harness import Silent
from tests.methods.plain import spec_for
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.harmony import planner
from workbench.model import custom
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE
from workbench.training.ranks import profiles_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

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
    return torchs.train(spec, net)[0]


def test_it_trains_to_plain_torchs_losses(tmp_path, measured, monkeypatch):
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    (tmp_path / "own_net.py").write_text(SOURCE)
    sizes = ("-l", "4", "--hidden", "16", "-b", "8", "--set", "lr=0.01")
    done = run(tmp_path, *ON_TWO, "--set", "family=own_net:net", *sizes)
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    begins, (compared, found) = told[0], [line for line in told[1:4] if "making" not in line]
    assert begins == "harmony-pp: own_net:net, batch 8, 4 steps, fp32 on cpu"
    assert compared == "comparing the layers with the module as it is written"
    assert found == "own_net:net: 6 layers, 1,347 parameters"
    record = recorded(tmp_path)
    monkeypatch.chdir(tmp_path)
    expected = plainly(RunSpec.from_dict(record["spec"]))
    assert record["losses"] == pytest.approx(expected, rel=1e-5)
    assert expected[0] != expected[-1]


def spec_of(**changes) -> RunSpec:
    """A picture of 32 pixels is down to one before the last BatchNorm."""
    sizes = {"layers": 4, "hidden": 4, "heads": 1, "seq": 32, "vocab": 10, "tied": False}
    model = ModelSpec(family="resnet", **sizes)
    values = {"method": "harmony-pp", "model": model, "text": "stdlib", "ranks": 2, "steps": 4}
    return spec_for(**{**values, **changes})


def test_a_model_that_needs_two_samples_is_planned_with_two(tmp_path, measured):
    """Trained with two it is in tests/methods/test_modules.py."""
    shutil.copytree(measured, tmp_path / "profiles")
    profiles = profiles_for(planner, spec_of(), tmp_path, Silent())
    settings = planner.plan(spec_of(), profiles, mode="pp").settings
    assert min(settings["forward_size"], settings["backward_size"]) >= 2
    (limits,) = tmp_path.glob("profiles/*/limits-*.json")
    assert json.loads(limits.read_text())["limits"]["smallest"] == 2
    with pytest.raises(ValueError, match="micro-batches of 1 cannot be run: Expected more than 1"):
        profiles_for(planner, spec_of(forward_size=1, backward_size=1), tmp_path, Silent())


def test_a_cap_that_no_layer_fits_in_is_told_before_anything_is_timed(tmp_path, measured):
    shutil.copytree(measured, tmp_path / "profiles")
    model = ModelSpec(layers=4, hidden=64, heads=1, seq=64, vocab=256)
    spec = spec_of(model=model, text=__file__, device_memory=100 << 10)
    told = " in a micro-batch of 1, and the device may hold 100 KiB$"
    with pytest.raises(DoesNotFit, match=told) as refused:
        profiles_for(planner, spec, tmp_path, Silent())
    assert refused.value.tier == DEVICE
    assert not [*tmp_path.glob("profiles/*/units-*.json")]


SHARING = """

def shared(spec):
    module, data = net(spec)
    module[3].inner.weight = module[1].inner.weight
    return module, data
"""


@pytest.mark.parametrize("method", ["stronghold", "l2l"])
def test_middle_layers_that_share_weights_are_refused_before_anything_is_written(
    tmp_path: Path, method: str
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE + SHARING)
    words = ("--set", "family=mine:shared", "-l", "4", "--hidden", "16", "--steps", "1")
    refused = run(tmp_path, "-m", method, *words)
    assert refused.returncode == 2, refused.stderr
    told = "workbench: parameter '3.inner.weight' is used in layers 1 and 3; under this method only"
    assert refused.stderr.startswith(told), refused.stderr
    assert not (tmp_path / "results").exists()
