"""A machine with round figures, and a tiny model."""

from __future__ import annotations

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.profile.profile import Hardware, Profile
from workbench.profile.units import UnitCost


@pytest.fixture
def hardware() -> Hardware:
    return Hardware(
        name="made up",
        source="measured",
        device="cpu",
        cores=4,
        device_bytes=2**33,
        host_bytes=2**34,
        h2d_bytes_per_s=10e9,
        d2h_bytes_per_s=5e9,
        host_adam_params_per_s=1e9,
        device_adam_params_per_s=4e9,
        matmul_flops_per_s=1e11,
        disk_read_bytes_per_s=2e9,
        disk_write_bytes_per_s=1e9,
        adam_threads=2,
        link_latency_s=1e-4,
        action_overhead_s=1e-5,
        slowdowns={"compute|h2d": 1.2, "compute|host": 1.5, "host|host": 2.0},
    )


@pytest.fixture
def profile(hardware: Hardware) -> Profile:
    block = UnitCost(
        kind="block",
        parameters=1_000_000,
        forward_s=0.010,
        recompute_s=0.012,
        backward_s=0.020,
        gradient_s=0.001,
        spread=0.03,
        input_bytes=100,
        kept_bytes=1000,
    )
    return Profile(hardware=hardware, units=(block, block), microbatch=2, seq=8, note="made up")


@pytest.fixture
def spec() -> RunSpec:
    """A run whose layers take a millisecond."""
    model = ModelSpec(layers=2, hidden=32, heads=2, seq=16, vocab=64)
    return RunSpec(method="stronghold", model=model, batch=4, microbatches=2, device="cpu")
