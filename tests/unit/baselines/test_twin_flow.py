"""Twin-Flow: the share that fits the device, and the real DeepSpeed training with it."""

from __future__ import annotations

import pytest

from baselines import zero_offload, zero_twin_flow
from baselines.zero_twin_flow.run import adapter, offloaded_share
from tests.methods.plain import judge, made_up_profile, spec_for
from tests.unit.baselines.test_zero_plan import profile
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.runs.runner import run
from workbench.runs.store import Store

GIB = 1 << 30
LARGE = RunSpec(
    method="zero-twin-flow",
    model=ModelSpec(layers=78, hidden=2048, heads=16),
    dtype="bf16",
    device="cuda",
    device_memory=32 * GIB,
)


def share_of(spec):
    return offloaded_share(spec, spec.model.parameters, spec.device_memory)


def test_more_memory_leaves_less_to_the_host():
    budgets = [16, 24, 32, 48, 200]
    shares = [share_of(LARGE.with_(device_memory=n * GIB)) for n in budgets]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[-1] == 0.01
    assert share_of(LARGE.with_(batch=16)) > share_of(LARGE)
    assert share_of(LARGE.with_(device_memory=GIB)) == 1.0


def test_what_stays_and_the_weights_leave_room_in_the_budget():
    stays = (1 - share_of(LARGE)) * 16 * LARGE.model.parameters
    weights = 2 * LARGE.model.parameters
    assert 0.6 * LARGE.device_memory < weights + stays < 0.9 * LARGE.device_memory


def test_deepspeed_is_told_the_ratio(tmp_path):
    zero = adapter(LARGE, tmp_path).settings(LARGE, LARGE.model.block_parameters)
    zero = zero["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"]["ratio"] == share_of(LARGE)
    assert "offload_param" not in zero


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer_tier": "disk"}, "with zero-twin-flow it has no meaning.*zero-infinity"),
    ],
    ids=str,
)
def test_what_it_does_not_have_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        adapter(LARGE.with_(**changes), tmp_path)


def test_the_plan_is_faster_than_zero_offloads_and_fills_the_device():
    costs = profile(LARGE.model, 0.296, weight_bytes=2)
    twin, offload = (method.plan(LARGE, costs) for method in (zero_twin_flow, zero_offload))
    assert twin.fits
    assert twin.step_seconds < 0.9 * offload.step_seconds
    assert twin.peak_bytes["device"] > 1.5 * offload.peak_bytes["device"]


@pytest.mark.slow
@pytest.mark.deepspeed
def test_it_trains_as_plain_training_does(tmp_path):
    model = ModelSpec(layers=4, hidden=64, heads=4, seq=16, vocab=256, dropout=0.1)
    spec = spec_for(method="zero-twin-flow", microbatches=2, steps=8, model=model)
    spec = spec.with_(device_memory=32 * model.parameters)
    assert 0.1 < share_of(spec) < 0.9
    assert zero_twin_flow.plan(spec, made_up_profile(spec)).step_seconds > 0
    record = run(spec, Store(tmp_path))
    assert record.status == "ok", record.message
    assert record.losses == pytest.approx(judge(spec)[0], rel=3e-6)
    assert any("of the parameters is updated on the host" in note for note in record.notes)
