"""The published artifact's schedules do what its code does, in the memory that its logs show."""

from __future__ import annotations

from functools import cache

import pytest

from baselines.l2l import artifact as l2l
from baselines.megatron.planner import plan as plan_megatron
from baselines.zero_infinity.planner import plan as plan_infinity
from baselines.zero_offload.planner import plan as plan_offload
from baselines.zero_plan import Release
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.stronghold import artifact as stronghold
from workbench.published.hardware import constants, published_profile
from workbench.published.tables import published
from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.plan import Plan
from workbench.schedule.validate import validate

V100 = "v100-32gb"
MIB = 2**20
MEMORY = published().query("figure == 'memory'")


@cache
def plan(method: str, layers: int, window: int | None = None) -> Plan:
    spec = RunSpec.of(method=method, model=ModelSpec(layers=layers), window=window or "auto")
    profile = published_profile(spec)
    match method:
        case "megatron-lm":
            return plan_megatron(spec, profile)
        case "zero-offload":
            return plan_offload(spec, profile, Release(**constants(V100, method)))
        case "zero-infinity":
            return plan_infinity(spec, profile, Release(**constants(V100, method)))
        case "l2l":
            return l2l.plan(spec, profile, l2l.Artifact(**constants(V100, method)))
        case _:
            artifact = stronghold.Artifact(**constants(V100, method))
            return stronghold.plan(spec, profile, artifact)


def logged(statistic: str) -> list[tuple[str, int, int | None, float]]:
    table = MEMORY[MEMORY["statistic"] == statistic]
    windows = [
        None if window != window else int(window) for window in table["window"].astype(float)
    ]
    return list(zip(table["method"], table["layers"], windows, table["value"], strict=True))


def steady_bytes(made: Plan) -> int:
    """Bytes between steps: permanent buffers, and the slots of weights."""
    buffers = made.schedule.buffers.values()
    held = (b for b in buffers if b.permanent or (b.slot or "").startswith("weights "))
    return sum(buffer.nbytes for buffer in held if buffer.tier == "device")


@pytest.mark.parametrize(("method", "layers", "window", "mib"), logged("allocated"))
def test_steady_device_memory_is_the_logged_one_within_2_mib(
    method: str, layers: int, window: int | None, mib: float
) -> None:
    assert steady_bytes(plan(method, layers, window)) / MIB == pytest.approx(mib, abs=2)


@pytest.mark.parametrize(("method", "layers", "window", "mib"), logged("max allocated"))
def test_peak_device_memory_is_the_logged_one_within_5_percent(
    method: str, layers: int, window: int | None, mib: float
) -> None:
    peak = plan(method, layers, window).peak_bytes["device"] / MIB
    assert peak == pytest.approx(mib, rel=0.05)


@pytest.mark.parametrize(("layers", "gib"), [(32, 29.88), (48, 42.1)])
def test_zero_offload_s_host_memory_is_the_logged_one(layers: int, gib: float) -> None:
    """The log counts all of the machine: 4.4 GiB of it is not the model's (machines.json)."""
    host = plan("zero-offload", layers).peak_bytes["host"] / 2**30
    assert host + 4.4 == pytest.approx(gib, rel=0.01)


def test_stronghold_s_host_memory_is_the_formula() -> None:
    block = ModelSpec().block_parameters
    copies = 12 * 4 * block
    formula = 8 * block * 100 + 8 * block * 96 + copies
    assert plan("stronghold", 100, 4).peak_bytes["host"] == formula


@pytest.mark.parametrize(
    ("layers", "window"), [(12, 4), (32, 15), (16, 15), (5, 5), (9, 8), (6, 2)]
)
def test_stronghold_moves_what_the_artifact_moves(layers: int, window: int) -> None:
    """n - W loads and evictions in each pass; only the backward pass sends gradients."""
    actions = plan("stronghold", layers, window).schedule.actions
    count = {
        (kind, turn): sum(a.kind is kind and a.turn == turn for a in actions)
        for kind in (Kind.LOAD, Kind.EVICT, Kind.GRAD_OUT)
        for turn in (0, 1)
    }
    moving = layers - window
    assert count == {
        (Kind.LOAD, 0): moving,
        (Kind.LOAD, 1): moving,
        (Kind.EVICT, 0): moving,
        (Kind.EVICT, 1): moving,
        (Kind.GRAD_OUT, 0): moving,
        (Kind.GRAD_OUT, 1): 0,
    }
    updates = [a for a in actions if a.kind is Kind.UPDATE]
    assert len(updates) == layers + 2
    assert sum(a.lane == "compute" for a in updates) == window + 2


def test_stronghold_awaits_an_eviction_a_window_later() -> None:
    schedule = plan("stronghold", 12, 4).schedule
    # Layer 11 is unit 12. Its update is awaited by the hook of layer 7, so layer 6 cannot begin.
    assert "U12" in schedule.by_name["R7.0"].after
    assert "U12" not in schedule.by_name["R8.0"].after
    assert "E1" in schedule.by_name["F5.0"].after


@pytest.mark.parametrize(("method", "window"), [("stronghold", 4), ("l2l", None)])
def test_the_validator_refuses_the_artifacts_and_the_plan_says_why(
    method: str, window: int | None
) -> None:
    made = plan(method, 12, window)
    with pytest.raises(ScheduleError):
        validate(made.schedule)
    assert "not" in made.notes[0]
    assert "training" in made.notes[0]


@pytest.mark.parametrize("method", ["megatron-lm", "zero-offload", "zero-infinity"])
def test_the_peers_schedules_are_proved(method: str) -> None:
    proof = validate(plan(method, 12).schedule)
    assert proof.num_actions == len(plan(method, 12).schedule.actions)


@pytest.mark.parametrize(
    ("method", "window", "fits", "tier"),
    [
        ("megatron-lm", None, 34, "device"),
        ("l2l", None, 84, "device"),
        ("zero-offload", None, 52, "device"),
        ("zero-infinity", None, 48, "host"),
        ("stronghold", 4, 113, "host"),
    ],
)
def test_the_last_model_that_fits_and_the_first_that_does_not(
    method: str, window: int | None, fits: int, tier: str
) -> None:
    largest, next_one = plan(method, fits, window), plan(method, fits + 1, window)
    assert largest.fits
    assert largest.lacking is None
    assert not next_one.fits
    assert next_one.lacking == tier
    assert next_one.binding.startswith(f"{tier} memory")


def test_plans_are_whole() -> None:
    made = plan("stronghold", 32, 15)
    assert (made.method, made.window) == ("stronghold", 15)
    assert set(made.peak_bytes) == {"device", "host", "disk"}
    assert made.moved_bytes["load"] == 2 * 17 * 4 * ModelSpec().block_parameters
    assert made.moved_bytes["store"] == 3 * 17 * 4 * ModelSpec().block_parameters
    assert made.to_dict()["step_seconds"] == made.step_seconds


def test_the_artifact_chooses_no_window() -> None:
    with pytest.raises(ValueError, match="chooses no window"):
        plan("stronghold", 32)
