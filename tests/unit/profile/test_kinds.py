"""Units timed by themselves, and other ways to run their passes, on a GPU recorded ones, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workbench.model import ModelSpec, make_model
from workbench.model.families import blank_rows
from workbench.profile import variants
from workbench.profile.alone import Alone, Setting
from workbench.profile.measure import kind_costs, unit_costs
from workbench.profile.profile import RECORDED_BELOW_S, Hardware
from workbench.profile.units import CHECKPOINT, HALVES, RECORDED, UnitCost
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.tiers import OutOfMemory

BERT = ModelSpec(family="bert", layers=3, hidden=64, heads=4, seq=32, vocab=300)
VGG = ModelSpec(family="vgg", layers=5, hidden=8, heads=4, seq=32, vocab=10)
RESNET = ModelSpec(family="resnet", layers=4, hidden=16, heads=4, seq=32, vocab=10)
SMALL = ModelSpec(layers=2, hidden=32, heads=4, seq=8, vocab=64)
FULL = OutOfMemory(tier="device", what="a tensor", asked=1, in_use=1, budget=1)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [BERT, VGG, RESNET], ids=lambda spec: spec.family)
def test_costs_on_a_gpu(spec):
    *inputs, targets = blank_rows(spec, 4)
    given = make_model(spec), tuple(inputs), targets
    here, host = (
        kind_costs(Setting.of(*given, seq=spec.seq, dtype="fp32", device=device))[0]
        for device in ("cuda", "cpu")
    )
    assert {*here} == {*host}
    for kind, cost in here.items():
        assert cost.forward_s > 0
        assert cost.backward_s > 0
        assert cost.input_bytes == host[kind].input_bytes
        assert cost.parameters == host[kind].parameters


@pytest.fixture
def alone():
    """A block on the processor."""
    setting = Setting.of_tokens(make_model(SMALL), (1, 8), dtype="fp32", device="cpu")
    with device_meter(setting.device) as meter:
        yield Alone(setting, 1, meter)


def test_blocks_have_the_variants_that_are_asked_for():
    setting = Setting.of_tokens(make_model(SMALL), (2, 8), dtype="fp32", device="cpu")
    plain, _ = kind_costs(setting)
    found = variants.with_variants(plain, setting, halved=True, checkpointed=True)
    names = {kind: [each.name for each in cost.variants] for kind, cost in found.items()}
    assert names == {"embedding": [], "block": [HALVES, CHECKPOINT], "head": [HALVES]}
    block = found["block"]
    assert block.halves.nbytes > 0
    assert min(block.halves.seconds) > 0
    again = block.from_checkpoint()
    assert again.kept_bytes < block.kept_bytes
    assert again.backward_s >= block.backward_s
    assert replace(block, variants=()) == plain["block"]


@pytest.mark.parametrize("wrong", [torch.OutOfMemoryError(), FULL])
def test_passes_without_room_for_recordings_take_what_they_take_when_launched(
    alone, monkeypatch, wrong
):
    def full(*_: object, **__: object) -> None:
        raise wrong

    monkeypatch.setattr(variants, "_recordings", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for forward_s in (1e-4, RECORDED_BELOW_S):
        cost = UnitCost(
            kind="block", parameters=1, forward_s=forward_s, recompute_s=2, backward_s=3
        )
        (found,) = variants.recorded(alone, cost, checkpointed=True)
        assert replace(cost, variants=(found,)).as_recorded() == replace(cost, variants=(found,))
        assert (found.name, found.nbytes) == (RECORDED, 0)
    assert cost.as_recorded() == cost


@pytest.mark.gpu
def test_recordings_are_timed_on_a_gpu(hardware: Hardware, answered):
    """They leave nothing behind."""
    model = make_model(ModelSpec(layers=2, hidden=256, heads=4, seq=64, vocab=256))
    here, left = replace(hardware, device="cuda"), []
    for dtype in ("bf16", "fp32", "bf16", "fp32"):
        how = {"dtype": dtype, "device": "cuda", "compile": "auto"}
        setting = Setting.of_tokens(model, (2, 64), **how)
        costs, *_ = unit_costs(setting, here, seconds=0.1)
        costs = variants.with_variants(costs, setting, halved=False, checkpointed=True)
        first, block, head = (costs[kind] for kind in ("embedding", "block", "head"))
        recorded = block.as_recorded()
        for way in ("forward_s", "backward_s"):
            launched, found = getattr(block, way), getattr(recorded, way)
            answered.enter(f"GPU: a {dtype} pass recorded, by launched: {way}", launched, found)
            assert found > 0
        assert recorded.recorded_bytes > 0
        assert first.variants == head.variants == ()
        left.append(torch.cuda.memory_allocated())
    assert left[3] <= left[1]  # workspaces of libraries stay
