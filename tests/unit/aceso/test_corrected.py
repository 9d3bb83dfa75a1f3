"""Costs of our own: the simulator's iteration, and what the published model leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.aceso.cases import costs_of, golden, golden_plan, small_ask, small_space
from workbench.methods.aceso.corrected import ADAM_PARAMS_PER_S, NCCL_MB
from workbench.methods.aceso.database import UPDATES, UPDATES_HEAD
from workbench.methods.aceso.files import open_files
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome, search
from workbench.methods.aceso.simulated import simulated
from workbench.methods.aceso.space import uniform
from workbench.published.hardware import machine


@pytest.mark.parametrize("name", golden())
def test_an_iteration_takes_what_the_simulator_says(name: str) -> None:
    plan = golden_plan(name)
    cost = small_ask(plan.subject.model, cost="ours").costs().plan(plan)
    assert cost.time == pytest.approx(simulated(plan, cost.stages), rel=2e-3)


@pytest.mark.parametrize(
    ("batch", "micro", "stages"), [(5, 2, 4), (3, 1, 4), (13, 4, 3), (8, 8, 2)]
)
def test_few_micro_batches_and_a_rest_take_what_the_simulator_says(batch, micro, stages) -> None:
    ask = small_ask("gpt", batch=batch, cost="ours")
    gpus = {4: (1, 1, 1, 1), 3: (2, 1, 1), 2: (2, 2)}[stages]
    cuts = [0, 60, 170, 230][:stages] + [315]
    made = tuple(
        uniform(b - a, 1, number) for a, b, number in zip(cuts, cuts[1:], gpus, strict=False)
    )
    plan = Plan(ask.subject, micro, made)
    cost = ask.costs().plan(plan)
    assert cost.time == pytest.approx(simulated(plan, cost.stages), rel=2e-3)


def test_what_the_published_model_leaves_out_is_counted() -> None:
    """Of two stages of GPT, one of two replicas; each alone where it is found."""
    ask = small_ask("gpt", cost="ours")
    plan = Plan(ask.subject, 2, (uniform(150, 1, 2), uniform(165, 2, 1)))
    published, ours = costs_of("gpt").plan(plan), ask.costs().plan(plan)
    first, last = ours.stages
    summed = costs_of("gpt").database.collectives["all_reduce", 2]
    sizes = [mb for mb in summed if mb < first.weights]
    assert first.sums > summed[max(sizes)] > last.sums > 0  # replicas and ties; ties alone
    for stage, bare in zip(ours.stages, published.stages, strict=True):
        assert stage.update == pytest.approx(stage.weights * 2**19 / ADAM_PARAMS_PER_S * 1000)
        assert 0 < stage.norm < stage.update
        assert stage.beyond > 2 * NCCL_MB  # one for the stage, one for ties
        assert stage.tensors == stage.memory - stage.beyond
        assert stage.state == pytest.approx(bare.state * 14 / 16)  # halves of masters
        assert (stage.in_flight, stage.peak) == (bare.in_flight, bare.peak)
        assert 0 < stage.reserved - stage.beyond < bare.reserved  # no copy of the weights
    assert 0 < first.out < published.stages[0].out  # 16 MB at the bandwidth of 16 MB, not of 8
    assert last.out == first.into == 0
    # Messages lie beside passes: but for those of the first micro-batch they cost nothing here.
    serial = sum(each.time for each in published.stages)
    assert ours.time < published.time + first.sums + last.norm + first.update + serial


def test_an_inner_stage_without_replicas_sums_nothing() -> None:
    plan = golden_plan("small_gpt_1_3B_4gpu_4stages")
    ours = small_ask("gpt", cost="ours").costs().plan(plan).stages
    assert [stage.sums > 0 for stage in ours] == [True, False, False, True]


def test_no_more_micro_batches_are_in_flight_than_there_are() -> None:
    costs = small_ask("gpt", batch=2, cost="ours").costs()
    stages = [costs.stage(uniform(100, 1, 1), 0, 1, behind=behind) for behind in (0, 1, 3)]
    assert stages[0].in_flight == 0
    assert stages[1].in_flight == stages[2].in_flight > 0


def test_updates_take_what_was_profiled(tmp_path) -> None:
    ask = small_ask("gpt", cost="ours")
    files = open_files(ask.database)
    for name in files.names:
        (tmp_path / name).write_text(files.text(name))
    (tmp_path / UPDATES).write_text(f"{UPDATES_HEAD}\n71.0\n")
    stages = [each.costs().stage(uniform(315, 1, 1), 0, 1, behind=0)
              for each in (ask, replace(ask, database=tmp_path))]  # fmt: skip
    assert stages[0].update == pytest.approx(stages[1].update * 71.0e9 / ADAM_PARAMS_PER_S)
    assert stages[0].norm > stages[1].norm > 0
    (tmp_path / UPDATES).write_text("nan\n")
    with pytest.raises(ValueError, match=r"updates.csv .* a rate is ''"):
        replace(ask, database=tmp_path).costs()


def test_updates_take_what_was_measured_of_the_published_machine() -> None:
    measured = machine("v100-32gb").device_adam_params_per_s
    assert measured == pytest.approx(ADAM_PARAMS_PER_S, rel=0.01)


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_searches_find_plans_that_fit_by_our_costs(model: str) -> None:
    stages = {"gpt": 4, "resnet": 2}[model]
    effort, space = Effort(plans=100, seconds=1e6), small_space(model, cost="ours")
    faithful, ours = Outcome(space=space), Outcome(space=space)
    search(faithful, (stages,), effort)
    search_ours(ours, (stages,), effort)
    assert ours.fits
    plan, cost = ours.best
    assert cost.memory <= 12000
    assert cost.time == pytest.approx(simulated(plan, cost.stages), rel=0.02)
    assert not faithful.fits or cost.time <= faithful.best.cost.time
    fresh = replace(small_ask(model), cost="ours").costs()
    assert fresh.plan(plan) == cost
