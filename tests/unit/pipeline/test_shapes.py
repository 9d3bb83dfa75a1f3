"""The shape of a pipeline: chosen as all shapes under the full simulator would have it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from tests.methods import pipelines
from tests.methods.plain import made_up_profile
from workbench import cli
from workbench.core import methods
from workbench.core.spec import RunSpec
from workbench.methods.pipeline import shapes
from workbench.methods.pipeline.balance import Balance
from workbench.methods.pipeline.choosing import ServerNetwork, chosen, question
from workbench.methods.pipeline.prediction import Prediction, line_of
from workbench.methods.pipeline.proofs import Ground
from workbench.profile.several import of_size
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE

MODEL = replace(pipelines.MODEL, layers=4)
SIZES = (1, 3, 8)
"""Samples of the micro-batches that are profiled."""


def spec_for(**changes) -> RunSpec:
    values = {"model": MODEL, "batch": 8, "ranks": 4, "text": __file__, "device": "cpu"}
    return RunSpec.of(method="varuna", **{**values, **changes})


def profiles(spec: RunSpec, device: str) -> dict:
    """Passes that are quicker a sample in larger micro-batches, units of no two alike; links and
    updates that take a part of a step."""
    found = {}
    for size in SIZES:
        made = made_up_profile(of_size(spec, size))
        hardware = replace(
            made.hardware, device=device, cores=8, h2d_bytes_per_s=1e8, action_overhead_s=1e-5
        )
        units = []
        for number, cost in enumerate(made.units):
            seconds = 1e-3 * (1 + 0.3 * (number % 3)) * (0.5 + 0.5 * size)
            units.append(
                replace(cost, forward_s=seconds, recompute_s=seconds, backward_s=2 * seconds)
            )
        found[size] = replace(made, hardware=hardware, units=tuple(units))
    return found


def ground_of(device: str = "cuda", **changes) -> Ground:
    spec = spec_for(**changes)
    return Ground.of(spec, profiles(spec, device))


@cache
def every_shape(device: str, order: str, batch: int = 8) -> list[tuple]:
    """(shape, bytes that are proved, simulated seconds, foreseen seconds) of all shapes, each with
    several cuts, the slow way."""
    ground = ground_of(device, order=order, batch=batch)
    asked, network = question(ground), ServerNetwork(ground)
    found = []
    for shape in shapes.all_shapes(asked, network):
        if shape.row.reason:
            continue
        line, prediction = line_of(asked, shape.row), Prediction.of(asked, network, shape.row)
        cuts = {cut.stages for cut in shape.cuts}
        cuts |= {
            prediction.balance.fastest_within(part) for part in range(500_000, 2_000_000, 300_000)
        }
        for stages in cuts:
            schedule, peak = ground.proved(replace(line, stages=stages))
            seconds = ground.plan(schedule, peak).step_seconds
            quick = prediction.seconds(stages)
            found.append((shape.row, peak[DEVICE], seconds, quick))
    return found


@pytest.mark.parametrize(
    ("device", "order", "batch"),
    [("cuda", "auto", 8), ("cpu", "varuna", 8), ("cuda", "varuna", 11), ("cuda", "varuna", 13)],
)
def test_foreseen_steps_are_not_too_long(device, order, batch):
    for row, _, seconds, quick in every_shape(device, order, batch):
        assert (1 - shapes.MARGIN) * seconds <= quick <= (1 + shapes.MARGIN / 2) * seconds, row


@pytest.mark.parametrize("order", ["varuna", "auto"])
def test_the_best_of_all_shapes_is_chosen_and_more_memory_makes_none_slower(order):
    every = [one for one in every_shape("cuda", "auto") if order in ("auto", one[0].order)]
    needed = sorted(nbytes for _, nbytes, _, _ in every)
    with pytest.raises(DoesNotFit, match="no shape of .* fits; the one that needs the least: "):
        chosen(ground_of(order=order, device_memory=needed[0] // 2))
    before, seen = float("inf"), set()
    for budget in [needed[len(needed) * part // 6] for part in range(6)] + [needed[-1]]:
        plan = chosen(ground_of(order=order, device_memory=budget))
        best = min(seconds for _, nbytes, seconds, _ in every if nbytes <= budget)
        assert plan.step_seconds <= min(1.01 * best, before)
        assert plan.peak_bytes[DEVICE] <= budget
        before = plan.step_seconds
        seen.add(plan.candidates[0].shape)
    assert len(seen) > 2


def test_all_shapes_are_rows_and_those_that_are_refused_say_why():
    plan = chosen(ground_of(order="auto", batch=12, device_memory=1_400_000))
    first, *others = plan.candidates
    assert (first.seconds, first.device_bytes) == (plan.step_seconds, plan.peak_bytes[DEVICE])
    assert first.proved
    assert not first.reason
    for row in others:
        assert row.reason or first.seconds <= row.seconds
        assert row.reason or row.device_bytes <= 1_400_000
        assert row.ranks <= 4
    own = {
        (row.stages, row.replicas, row.micro) for row in plan.candidates if row.order == "varuna"
    }
    assert own >= {
        (stages, copies, micro)
        for stages in range(1, 5)
        for copies in range(1, 4 // stages + 1)
        for micro in (1, 2, 3)
    }
    reasons = "; ".join(row.reason for row in others)
    for part in (
        "of device memory are needed, ",
        "are no multiple of 3 ranks",
        "halves of backward passes were not profiled",
    ):
        assert part in reasons


def test_what_is_given_is_taken():
    given = chosen(ground_of(replicas=2, micro=2))
    assert {(row.replicas, row.micro) for row in given.candidates} == {(2, 2)}
    assert given.settings["replicas"] == 2
    stages = chosen(ground_of(stages="2 4"))
    assert stages.settings["stages"] == "2 4"
    assert {row.stages for row in stages.candidates} == {2}


def test_many_micro_batches_are_foreseen_from_fewer():
    """As exactly as where all of them are looked at."""
    ground = ground_of(batch=400, micro=1)
    asked, network = question(ground), ServerNetwork(ground)
    for shape in shapes.all_shapes(asked, network):
        if shape.row.replicas == 1:
            (cut, *_), row = shape.cuts, shape.row
            line = line_of(asked, row, cut.stages)
            every = Prediction.of(asked, network, row).step(line)
            assert cut.seconds == pytest.approx(every, rel=0.002)
            balance = Balance(line, asked.sizes, asked.units)
            assert balance.device_bytes(cut.stages) == cut.device_bytes


def test_of_many_shapes_those_that_are_far_slower_are_not_looked_at(monkeypatch):
    """And another one is never chosen for it, with little memory neither."""
    ground = ground_of(order="auto", batch=24)
    asked, network = question(ground), ServerNetwork(ground)
    least = shapes.least_seconds(asked)
    found = [shape.row for shape in shapes.all_shapes(asked, network) if shape.cuts]
    assert all(least(row) <= row.seconds for row in found)
    bytes_of = sorted(row.device_bytes for row in found)
    budgets = bytes_of[0] * 21 // 20, bytes_of[len(bytes_of) // 3], bytes_of[-1]
    for budget in budgets:
        ground = ground_of(order="auto", batch=24, device_memory=budget)
        monkeypatch.setattr(shapes, "PRUNED_ABOVE", 1_000)
        every = chosen(ground)
        monkeypatch.setattr(shapes, "PRUNED_ABOVE", 0)
        short = chosen(ground)
        assert short.candidates[0] == every.candidates[0]
        assert not any(row.least for row in every.candidates)
        assert any(row.least for row in short.candidates)
        assert {row.shape for row in short.candidates} == {row.shape for row in every.candidates}


def test_a_plan_shows_what_was_compared(capsys, tmp_path):
    words = ["plan", "-m", "varuna", "--ranks", "4", "-b", "8", "-l", "6", "--hidden", "64"]
    words += ["--heads", "4", "--seq", "32", "--vocab", "256", "--results", str(tmp_path)]
    words += ["--machine", "v100-32gb"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    best, shape = plan["candidates"][0], plan["settings"]
    assert (best["replicas"], best["micro"]) == (shape["replicas"], shape["micro"])
    assert best["seconds"] == plan["step_seconds"]
    assert f"the fastest of {len(plan['candidates'])} shapes: {best['stages']} x" in told
    assert f"{best['microbatches']} micro-batches of {best['micro']}, varuna" in told
    assert cli.main([*words, "--device-memory", "1MiB"]) == 2
    assert "nothing fits: no shape of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"replicas": 5}, "replicas is 5; it must be 1 to 4, or auto"),
        ({"micro": 9}, "micro is 9; it must be 1 to 8, or auto"),
        (
            {"microbatches": 2, "micro": 2},
            "micro is 2 and order .* where microbatches is given, here as 2",
        ),
        ({"microbatches": 2, "order": "auto"}, "and order 'auto'; where microbatches is given"),
        ({"stages": "2 4", "replicas": 3}, "stages '2 4' on 3 replicas need a rank each"),
        ({"order": "zb-h1"}, "order is 'zb-h1'; it must be varuna or auto"),
    ],
)
def test_what_cannot_be_is_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        methods.load("varuna").plan_sizes(spec_for(**changes), profiles(spec_for(), "cpu"))
