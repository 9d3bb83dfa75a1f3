"""The largest micro-batch of each direction is found, and finding it costs nothing."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.methods.plain import MODEL, spec_for
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.profile import probe
from workbench.profile.profile import Limits
from workbench.runtime.memory.tiers import OutOfMemory

RESNET = ModelSpec(family="resnet", layers=4, hidden=4, heads=1, seq=32, vocab=10, tied=False)
ROOT = Path(__file__).resolve().parents[3]
BUDGET = 600_000
FRAGILE = """
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if len(x) == 5 and type(x.data) is torch.Tensor:
            os._exit(9)
        return self.inner(x)


def model(spec):
    net = nn.Sequential(nn.Linear(4, 4), Fragile(), nn.Linear(4, 3))
    return net, TensorDataset(torch.randn(8, 4), torch.randint(3, (8,)))
"""


def no_room() -> OutOfMemory:
    return OutOfMemory(tier="device", what="a tensor", asked=1, in_use=0, budget=1)


def attempts(least: int, backward: int, forward: int):
    """A device and model with these limits; the sizes that were tried."""
    tried: list[tuple[bool, int]] = []

    def attempt(back: bool, samples: int) -> Exception | None:
        tried.append((back, samples))
        if samples < least:
            return probe.CannotRun("too few")
        return no_room() if samples > (backward if back else forward) else None

    return attempt, tried


@pytest.mark.parametrize("backward", [1, 2, 3, 7, 8, 23, 99, 100])
@pytest.mark.parametrize("more", [0, 1, 40])
def test_both_directions_are_exact_and_few_sizes_are_tried(backward, more):
    attempt, tried = attempts(1, backward, backward + more)
    found = probe.search(attempt, 100)
    assert found == Limits(smallest=1, forward=min(100, backward + more), backward=backward)
    assert len(tried) <= 2 * 10
    assert len(tried) == len(set(tried))


def test_where_there_is_room_for_all_two_attempts_do():
    attempt, tried = attempts(1, 1000, 1000)
    assert probe.search(attempt, 1000) == Limits(smallest=1, forward=1000, backward=1000)
    assert tried == [(True, 1), (True, 1000)]


@pytest.mark.parametrize(("least", "found"), [(2, 2), (3, 4), (6, 6)])
def test_a_model_that_needs_several_samples_gets_them(least, found):
    assert probe.search(attempts(least, 6, 6)[0], 6).smallest == found


def test_a_model_that_never_runs_is_refused_in_its_own_words():
    with pytest.raises(probe.CannotRun, match="no micro-batch of up to 6 samples .*too few"):
        probe.search(attempts(7, 9, 9)[0], 6)


def test_too_little_room_for_the_fewest_samples_is_told():
    with pytest.raises(probe.NoRoom, match="a tensor needs 1 B, .*, in micro-batches of 2") as no:
        probe.search(attempts(2, 1, 1)[0], 6)
    assert no.value.samples == 2


@pytest.mark.parametrize("model", [MODEL, RESNET], ids=lambda model: model.family)
def test_what_a_device_lacks_is_told_of_the_layer_that_needs_most(model):
    spec = spec_for(model=model, batch=64)
    fewest = 2 if model is RESNET else 1
    told = rf"^unit \d+ of the model \(.+\) needs at least .* in a micro-batch of {fewest}, and"
    with pytest.raises(probe.NoRoom, match=f"{told} the device may hold 9.766 KiB"):
        probe.limits(spec, "cpu", 10_000, 64)


def test_as_much_as_is_told_is_enough():
    spec = spec_for(batch=64)
    layers = probe.Layers(spec, "cpu", 1 << 40)
    assert layers.attempt(True, 1, fake=True) is None
    layer, needed = layers.heaviest(1)
    assert layer == "unit 1 of the model (block)"
    assert probe.limits(spec, "cpu", needed, 64).smallest == 1
    with pytest.raises(probe.NoRoom):
        probe.limits(spec, "cpu", needed - 1, 64)


@pytest.mark.parametrize("model", [MODEL, RESNET], ids=lambda model: model.family)
def test_without_a_gpu_the_limits_are_those_of_real_tensors(model):
    spec = spec_for(model=model, batch=64)
    found = probe.limits(spec, "cpu", BUDGET, 64)
    assert found.smallest == (2 if model is RESNET else 1)
    assert found.smallest <= found.backward < found.forward < 64
    real = probe.Layers(spec, "cpu", BUDGET)
    for backward, most in ((True, found.backward), (False, found.forward)):
        assert real.attempt(backward, most) is None
        assert isinstance(real.attempt(backward, most + 1), OutOfMemory)


@pytest.mark.parametrize(
    ("model", "sizes"), [(MODEL, [1, 2]), (RESNET, [1, 2, 4])], ids=["gpt", "resnet"]
)
@pytest.mark.parametrize("large_by", [None, "SMALL_FLOPS", "SMALL_PARAMETERS"])
def test_plenty_of_room_is_foreseen_from_few_samples(model, sizes, large_by, monkeypatch):
    """On fake tensors where layers are not small, and without a process."""
    if large_by:
        monkeypatch.setattr(probe, large_by, 0)
    tried, faked, fakes = [], [], probe.fake_tensors
    attempt = probe.Layers.attempt
    monkeypatch.setattr(probe, "fake_tensors", lambda: faked.append(True) or fakes())

    def watched(self, backward, samples, *, fake=False):
        assert fake
        tried.append(samples)
        return attempt(self, backward, samples, fake=fake)

    monkeypatch.setattr(probe.Layers, "attempt", watched)
    monkeypatch.setattr(probe.Processes, "_start", None)
    found = probe.limits(spec_for(model=model, batch=500), "cpu", 1 << 30, 500)
    assert found == Limits(smallest=sizes[-1] // 2, forward=500, backward=500)
    assert tried == sizes
    assert len(faked) == (len(sizes) if large_by else 0)


@pytest.mark.usefixtures("forked")
def test_a_process_takes_what_goes_wrong_with_it(tmp_path, monkeypatch):
    """One that dies is replaced, and the next attempt is right again; one without room goes on."""
    (tmp_path / "fragile_module.py").write_text(FRAGILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    model = ModelSpec(family="fragile_module:model", heads=1)
    spec = RunSpec(method="harmony-pp", model=model, batch=8, device="cpu")
    layers = probe.Layers(spec, "cpu", 1 << 20)
    assert layers.attempt(True, 2) is layers.attempt(True, 4) is None
    (_, two), (_, four) = layers.heaviest(2), layers.heaviest(4)
    budget = four + (four - two)  # room for six samples, of which five end the process
    with probe.Processes(spec, "cpu", budget) as processes:
        wrong = processes.attempt(True, 5)
        assert isinstance(wrong, probe.CannotRun)
        assert "exit status 9" in str(wrong)
        assert processes.attempt(True, 2) is None
        first = processes._process.pid
        assert processes.attempt(False, 4) is None
        wrong = processes.attempt(True, 8)
        assert isinstance(wrong, OutOfMemory)
        assert wrong.budget == budget
        assert processes.attempt(True, 1) is None
        assert isinstance(processes.attempt(True, 8), OutOfMemory)
        assert processes._process.pid == first, "while all is well, one process goes on"


@pytest.mark.parametrize("left", [0, 1])
def test_a_process_that_kept_something_is_not_asked_again(monkeypatch, left):
    processes = probe.Processes(spec_for(batch=4), "cpu", 10_000)
    room = {"tier": "device", "what": "a tensor", "asked": 1, "in_use": 0, "budget": 1}
    answers, told = os.pipe()
    process = SimpleNamespace(stdin=io.StringIO(), kill=lambda: None, communicate=lambda: None)
    processes._process, processes._answers = process, answers
    os.write(told, json.dumps({"room": room, "left": left}).encode())
    assert isinstance(processes.attempt(True, 1), OutOfMemory)
    assert processes._process is (None if left else process)
    processes._stop()
    os.close(told)


@pytest.mark.gpu
def test_on_a_gpu_the_limits_are_those_of_its_allocator():
    """Under a cap: this process' own device is not touched."""
    model = ModelSpec(layers=2, hidden=256, heads=4, seq=128, vocab=256)
    spec = RunSpec(method="harmony-pp", model=model, batch=4096, device="cuda")
    budget = 256 << 20
    found = probe.limits(spec, "cuda", budget, 4096)
    assert found.smallest == 1
    assert 16 <= found.backward < found.forward < 4096
    for backward, most in ((True, found.backward), (False, found.forward)):
        for samples in (most, most + most // 50 + 1):  # blocks lie otherwise in a new process
            with probe.Processes(spec, "cuda", budget) as processes:
                # What a backward pass leaves with libraries, a run has in forward passes, too.
                assert processes.attempt(True, found.smallest) is None
                wrong = processes.attempt(backward, samples)
            assert (wrong is None) == (samples == most), (found, backward, samples, wrong)
            assert wrong is None or isinstance(wrong, OutOfMemory)
