"""Layers of models without a formula, and recorded passes, timed on a GPU, where they run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workbench.model import ModelSpec, make_model
from workbench.model.families import blank_rows
from workbench.profile import kinds, recorded
from workbench.profile.alone import Alone
from workbench.profile.measure import unit_costs
from workbench.profile.profile import RECORDED_BELOW_S, Hardware, UnitCost
from workbench.runtime.memory.tiers import OutOfMemory

BERT = ModelSpec(family="bert", layers=3, hidden=64, heads=4, seq=32, vocab=300)
VGG = ModelSpec(family="vgg", layers=5, hidden=8, heads=4, seq=32, vocab=10)
RESNET = ModelSpec(family="resnet", layers=4, hidden=16, heads=4, seq=32, vocab=10)
FULL = OutOfMemory(tier="device", what="a tensor", asked=1, in_use=1, budget=1)


def test_a_timing_waits_for_the_device_that_the_layer_is_on(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    device = torch.device("cuda", 1)
    unit = Alone.__new__(Alone)  # without its tensors: there may be no such device
    unit.device = device
    unit.seconds(lambda: waited.append("passed"), times=2)
    assert waited == [device, "passed", "passed", device]


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [BERT, VGG, RESNET], ids=lambda spec: spec.family)
def test_costs_on_a_gpu(spec):
    *inputs, targets = blank_rows(spec, 4)
    settings = {"seq": spec.seq, "dtype": torch.float32}
    model = make_model(spec)
    here, _ = kinds.kind_costs(model, tuple(inputs), targets, device="cuda", **settings)
    host, _ = kinds.kind_costs(model, tuple(inputs), targets, device="cpu", **settings)
    assert {*here} == {*host}
    for kind, cost in here.items():
        assert cost.forward_s > 0
        assert cost.backward_s > 0
        assert cost.input_bytes == host[kind].input_bytes
        assert cost.parameters == host[kind].parameters


@pytest.mark.parametrize("wrong", [torch.OutOfMemoryError(), FULL])
def test_passes_without_room_for_recordings_take_what_they_take_when_launched(monkeypatch, wrong):
    def full(*_: object, **__: object) -> None:
        raise wrong

    monkeypatch.setattr(recorded, "_measured", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    model = make_model(ModelSpec(layers=2, hidden=32, heads=4, seq=8, vocab=64))
    block = recorded.Block(
        model=model, unit=1, microbatch=1, seq=8, dtype=torch.float32,
        device=torch.device("cuda"), compiled=False,
    )  # fmt: skip
    cost = UnitCost(kind="block", parameters=1, forward_s=1e-4, recompute_s=2e-4, backward_s=3e-4)
    found = recorded.with_recorded(cost, block)
    assert found.as_recorded().backward_s == found.recorded_backward_s == 3e-4
    long = replace(cost, forward_s=RECORDED_BELOW_S)
    found = recorded.with_recorded(long, block)
    assert found.recorded_forward_s == RECORDED_BELOW_S
    assert cost.as_recorded() == cost


@pytest.mark.gpu
def test_recordings_are_timed_on_a_gpu(hardware: Hardware, answered):
    """They leave nothing behind."""
    model = make_model(ModelSpec(layers=2, hidden=256, heads=4, seq=64, vocab=256))
    here = replace(hardware, device="cuda")
    settings = {"microbatch": 2, "seq": 64, "device": "cuda", "hardware": here, "seconds": 0.1}
    left = []
    for dtype in ("bf16", "fp32", "bf16", "fp32"):
        costs, *_ = unit_costs(model, dtype=dtype, **settings)
        first, block, head = (costs[kind] for kind in ("embedding", "block", "head"))
        for way in ("forward_s", "backward_s"):
            launched, found = getattr(block, way), getattr(block, f"recorded_{way}")
            answered.enter(f"GPU: a {dtype} pass recorded, by launched: {way}", launched, found)
            assert found > 0
        assert first.recorded_forward_s == head.recorded_forward_s == 0
        left.append(torch.cuda.memory_allocated())
    assert left[3] <= left[1]  # workspaces of libraries stay
