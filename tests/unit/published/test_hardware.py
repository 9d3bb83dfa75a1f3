"""The published machine reproduces the log it was read from, and scales to other models."""

from __future__ import annotations

import json

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.published.hardware import MACHINES, machine, profile, published_profile

V100 = "v100-32gb"
GPT = ModelSpec(layers=32)


def test_megatron_s_log_comes_out() -> None:
    units = profile(V100, GPT, 4).units
    assert sum(u.forward_s for u in units) == pytest.approx(1.312, rel=0.002)
    assert sum(u.recompute_s + u.backward_s for u in units[:-1]) + units[
        -1
    ].backward_s == pytest.approx(3.904, rel=0.002)
    assert GPT.parameters / machine(V100).device_adam_params_per_s == pytest.approx(0.097, rel=0.01)


def test_units_own_all_parameters_of_the_model() -> None:
    for spec in (GPT, ModelSpec(layers=3, hidden=512, heads=8, vocab=1000, tied=False)):
        units = profile(V100, spec, 1).units
        assert len(units) == spec.units
        assert sum(u.parameters for u in units) == spec.parameters


def test_times_grow_with_the_operations() -> None:
    narrow, wide = (profile(V100, ModelSpec(hidden=h, layers=2), 4).units[1] for h in (1024, 2048))
    assert (
        3.5 < wide.forward_s / narrow.forward_s < 4.0
    )  # attention grows with h, the rest with h^2
    once, twice = (profile(V100, GPT, b) for b in (4, 8))
    for unit, larger in zip(once.units, twice.units, strict=True):
        assert larger.backward_s == pytest.approx(2 * unit.backward_s)
        assert larger.input_bytes == 2 * unit.input_bytes


def test_a_checkpointed_input_is_32_mib() -> None:
    assert profile(V100, GPT, 4).units[1].input_bytes == 32 * 2**20


def test_every_constant_has_a_provenance() -> None:
    entry = json.loads(MACHINES.read_text())[V100]
    sections = [entry["hardware"], entry["model"], *entry["systems"].values()]
    for section in sections:
        for name, constant in section.items():
            assert set(constant) == {"value", "from"}, name
            assert len(constant["from"]) >= 3, name


def test_what_the_constants_do_not_cover_is_refused() -> None:
    with pytest.raises(ValueError, match="fp32 only, not bf16"):
        published_profile(RunSpec(method="stronghold", dtype="bf16"))
    with pytest.raises(ValueError, match="no published machine 'p100'; there are v100-32gb"):
        machine("p100")
