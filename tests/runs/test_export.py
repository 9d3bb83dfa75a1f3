"""Weights of runs in folders: of every kind of model, whole or not at all, or refused."""

from __future__ import annotations

import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import workbench
from baselines import plain as torch_plain
from tests.forks.server import command
from tests.methods.harness import Silent
from tests.methods.plain import MODEL, spec_for
from tests.runs.helpers import wait_for
from workbench import cli
from workbench.core.files import FOLDER, FileLock
from workbench.core.model_spec import ModelSpec
from workbench.core.sealed import write_sealed
from workbench.model import make_model
from workbench.model.families import module_of
from workbench.model.weights.stored import find
from workbench.model.whole import make_whole
from workbench.runs.kept import where_kept
from workbench.runs.store import Store

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(256, 16), nn.Linear(16, 256, bias=False)
        self.module = nn.Linear(16, 16)
        self.out.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(16))

    def forward(self, ids):
        return self.out(self.module(self.embedding(ids) * self.scale))

def net(spec):
    return Net()
"""
MODELS = {
    "gpt": MODEL,
    "t5": ModelSpec(family="t5", layers=1, hidden=16, heads=2, seq=8, vocab=258),
    "resnet": ModelSpec(family="resnet", layers=4, hidden=8, seq=16, vocab=10),
    "own": ModelSpec(family="exported_net:net", layers=1, hidden=16, heads=1, seq=8, vocab=256),
}


def trained(folder: Path, model: ModelSpec, **changes) -> Path:
    """A run of two steps, and its checkpoints."""
    how = {"method": "plain", "steps": 2, "lr_decay_steps": 20, "save_every": 1, **changes}
    text = {} if model.family in ("gpt", "exported_net:net") else {"text": "stdlib"}
    spec = spec_for(model=model, **text, **how)
    torch_plain.train(spec, Silent(), folder)
    write_sealed(folder / "spec.json", spec.to_dict())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a GPT's run, among results."""
    return trained(tmp_path_factory.mktemp("results") / "runs" / "key", MODEL)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.thorough] if n == "t5" else []) for n in MODELS]
)
def test_any_other_model_is_loaded_by_its_module(name, run, tmp_path, monkeypatch) -> None:
    """Tied weights, statistics and buffers, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported_net.py").write_text(OWN)
    model = MODELS[name]
    run = run if name == "gpt" else trained(tmp_path / "run", model)
    made = workbench.export(run, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    seed = spec_for(model=model).seed
    whole = make_whole(make_model(model), seed=seed) if name == "gpt" else module_of(model, 0)
    before = {key: tensor.clone() for key, tensor in whole.state_dict().items()}
    whole.load_state_dict(found)
    assert made.parameters == sum(p.numel() for p in whole.parameters())
    assert (made.step, made.dtype, made.files) == (2, "fp32", 1)
    assert any(not torch.equal(before[key], found[key]) for key in before)
    if name == "own":
        torch.manual_seed(seed)
        expected = module_of(model, seed).state_dict()["scale"]
        assert torch.equal(found["scale"], expected)


def test_a_module_of_ones_own_loop(tmp_path) -> None:
    """By the names in it, from the folder that the engine has saved to."""
    model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 32))
    with workbench.Engine(model, {"lr": 1e-2}, method="plain", quiet=True) as engine:
        ids = torch.arange(4)
        engine.step((ids, ids), lambda outputs, batch: F.cross_entropy(outputs, batch[1]))
        engine.save(tmp_path / "kept")
        trained = engine.state_dict()
    made = workbench.export(tmp_path / "kept", tmp_path / "out")
    assert made.parameters == sum(p.numel() for p in model.parameters())
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


def test_the_command_and_what_a_run_tells_of_it(run, tmp_path, capfd) -> None:
    store, spec = Store(run.parents[1]), spec_for(save_every=1, steps=2)
    told = where_kept(spec, "key", store)
    assert told.startswith(f"weights: {run}/checkpoints/step-00000002; ")
    words = told.partition("; ")[2].partition(" FOLDER")[0].split()
    assert words[:2] == ["workbench", "export"]
    later = where_kept(spec.with_(steps=3), "key", store)
    assert "step-00000002, of 2 of 3 steps, since no later one was written; work" in later
    asked = [*words[1:], str(tmp_path / "out"), "--step", "1", "--dtype", "bf16"]
    assert cli.main(asked) == 0
    count = make_model(MODEL).parameters_count()
    line = f"exported: {count:,} parameters of step 1 to {tmp_path / 'out'} (1 file, bf16)\n"
    assert capfd.readouterr().out == line
    before = find(run / "checkpoints" / "step-00000001").entries
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() <= after.keys()
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    assert "save_every was not given" in where_kept(spec_for(), "none", store)


def test_an_export_that_was_killed_leaves_nothing_that_looks_whole(run, tmp_path) -> None:
    told, out = tmp_path / "told", tmp_path / "out"
    words = command("tests.runs.stalled_export", str(run), str(out), str(told))
    with subprocess.Popen(words) as process:
        try:
            wait_for(lambda: told.exists() or process.poll() is not None)
            with pytest.raises(ValueError, match="another process exports"):
                workbench.export(run, out)
        finally:
            process.kill()
    assert not out.exists()
    (left,) = (path for path in tmp_path.iterdir() if path != told)
    assert left.name.startswith(".")
    assert [*left.iterdir()]
    with wait_for(lambda: FileLock.take(left, flags=FOLDER)):
        pass  # the killed process has let go
    workbench.export(run, out)
    assert {path.name for path in tmp_path.iterdir()} == {"told", "out"}
    (file,) = out.iterdir()
    assert file.name == "model.safetensors"
    assert file.stat().st_mode & 0o777 == told.stat().st_mode & 0o777, "others may read it, too"


def test_bad_input_is_one_sentence_and_writes_nothing(run, tmp_path, monkeypatch, capfd) -> None:
    def refused(*words: str | Path) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert cli.main(["export", *map(str, words)]) == 2
        said = capfd.readouterr()
        assert (said.out, sorted(tmp_path.rglob("*"))) == ("", before)
        *_, sentence = said.err.splitlines()
        assert sentence.startswith("workbench: ")
        return sentence

    results = ("--results", run.parents[1])
    out, bare, full, file = (tmp_path / name for name in ("out", "bare", "full", "file"))
    assert "'nokey' is no folder, and no run" in refused("nokey", out, *results)
    bare.mkdir()
    assert f"there is no checkpoint in {bare}" in refused(bare, out)
    write_sealed(bare / "spec.json", spec_for().to_dict())
    assert "it was run without --save-every" in refused(bare, out)
    assert "step is 7, which" in (told := refused("key", out, "--step", "7", *results))
    assert told.endswith("it has 1, 2")
    full.mkdir()
    (full / "notes.txt").touch()
    assert f"{full} is not empty" in refused("key", full, *results)
    file.touch()
    for target in (file, file / "below"):
        assert f"{file} is a file" in refused("key", target, *results)
    assert "'fp8'; it must be one of auto, fp32, bf16" in refused("key", out, "--dtype", "fp8")
    damaged = shutil.copytree(run, tmp_path / "damaged")
    unit = damaged / "checkpoints" / "step-00000002" / "unit-00001.safetensors"
    data = bytearray(unit.read_bytes())
    data[-2_000] ^= 1
    unit.write_bytes(data)
    assert "unit-00001.safetensors is damaged" in refused(damaged, out)
    (unit.parent / "manifest.json").write_text("{}")
    assert workbench.export(damaged, tmp_path / "older").step == 1
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 0, 10**6))
    assert "and the disk has 1,000,000 free" in refused("key", out, *results)
