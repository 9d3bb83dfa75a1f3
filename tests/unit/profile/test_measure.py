from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.model import make_model
from workbench.profile import footprint
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.profile.measure import unit_costs
from workbench.profile.profile import Hardware, Profile
from workbench.runtime.memory.storage import DTYPES

B, S, H, HEADS, VOCAB, LAYERS = 2, 24, 32, 4, 80, 5


def spec(**changes) -> ModelSpec:
    values = {"layers": LAYERS, "hidden": H, "heads": HEADS, "seq": S, "vocab": VOCAB}
    return ModelSpec(**{**values, **changes})


def profiled(hardware: Hardware, microbatch: int = B, dtype: str = "fp32"):
    model = make_model(spec())
    setting = Setting.of_tokens(model, (microbatch, S), dtype=dtype, device="cpu")
    costs, library_bytes, note = unit_costs(setting, hardware, seconds=0.0)
    return Profile(
        hardware=hardware, units=tuple(costs[model.kind(unit)] for unit in range(model.num_units)),
        microbatch=microbatch, seq=S, weight_bytes=DTYPES[dtype].itemsize,
        library_bytes=library_bytes, note=note,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bytes_equal_the_formulas_of_a_gpt(hardware: Hardware, dtype: str) -> None:
    embedding, *blocks, head = profiled(hardware, dtype=dtype).units
    value = 4 if dtype == "fp32" else 2
    residual = B * S * H * value

    assert (embedding.input_bytes, embedding.output_bytes) == (B * S * 8, residual)
    assert embedding.parameters == (VOCAB + S) * H
    assert len(blocks) == LAYERS
    assert len(set(blocks)) == 1
    block = blocks[0]
    assert block.parameters == 12 * H**2 + 13 * H
    assert block.input_bytes == block.output_bytes == residual
    # Two norms' outputs, q, k, v, the attention's output, the residual between the branches, the
    # feed-forward's 4 H before and after GELU; then two norms' statistics and the log-sum-exp.
    statistics = 4 * B * S * value
    assert block.kept_bytes == 15 * residual + statistics + B * HEADS * S * 4
    assert head.input_bytes == residual
    assert head.output_bytes == 4
    assert head.parameters == 2 * H


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, "fp32"),
        ({"dropout": 0.1}, "bf16"),
        ({"tied": False}, "bf16"),
        pytest.param({"vocab": 701_000}, "fp32", id="logits in chunks"),
        pytest.param({}, "bf16", marks=pytest.mark.thorough),
        pytest.param({"dropout": 0.1}, "fp32", marks=pytest.mark.thorough),
        pytest.param({"tied": False}, "fp32", marks=pytest.mark.thorough),
        pytest.param(
            {"vocab": 701_000}, "bf16", id="logits in chunks, bf16",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_fake_tensors_need_the_bytes_of_real_ones(changes: dict, dtype: str) -> None:
    setting = Setting.of_tokens(make_model(spec(**changes)), (B, S), dtype=dtype, device="cpu")
    fake, real = (footprints(setting, fake=fake) for fake in (True, False))
    assert fake == real


def test_every_time_is_measured_and_none_of_the_sizes_depends_on_the_others(
    hardware: Hardware,
) -> None:
    one, four = (profiled(hardware, microbatch=size) for size in (1, 4))
    assert (one.microbatch, four.microbatch) == (1, 4)
    for small, large in zip(one.units, four.units, strict=True):
        for name in ("forward_s", "recompute_s", "backward_s", "gradient_s"):
            assert getattr(small, name) > 0
        assert large.flops == 4 * small.flops
        assert large.parameters == small.parameters
        if large.kind == "block":
            assert large.kept_bytes == 4 * small.kept_bytes
            assert large.output_bytes == 4 * small.output_bytes
    assert not one.note


def test_what_was_timed_for_real_needs_no_fake_tensors(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For them torch imports its compiler, which takes longer than the measurement."""
    asked, fakes = [], footprint.fake_tensors
    monkeypatch.setattr(footprint, "fake_tensors", lambda: asked.append("fakes") or fakes())
    profiled(hardware)
    assert asked == []
    profiled(replace(hardware, matmul_flops_per_s=3e7), microbatch=16)
    assert asked == ["fakes"]


def test_a_step_that_takes_too_long_is_timed_on_less_and_says_so(hardware: Hardware) -> None:
    """On a machine of 30 MFLOP/s this model would take minutes."""
    slow = replace(hardware, matmul_flops_per_s=3e7)
    full = profiled(hardware, microbatch=16)
    reduced = profiled(slow, microbatch=16)
    assert not full.note
    assert "drawn on to 16 x 24" in reduced.note
    for quick, exact in zip(reduced.units, full.units, strict=True):
        # Bytes are exact all the same; seconds are those of the whole micro-batch, not of a part.
        assert quick.kept_bytes == exact.kept_bytes
        assert quick.backward_scratch_bytes == exact.backward_scratch_bytes
        assert quick.flops == exact.flops
        assert quick.forward_s > 0
