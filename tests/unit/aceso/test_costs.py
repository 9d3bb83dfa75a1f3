"""The cost model says of every published plan what the artifact says, and sums are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.aceso.cases import costs_of, golden, golden_plan, small_ask
from workbench.methods.aceso.costs import change
from workbench.methods.aceso.database import Database
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.recompute import Chooser
from workbench.methods.aceso.space import uniform
from workbench.model.operators import Factors
from workbench.published.aceso import costs as published

ROWS = published().to_dict("records")
TIMES = {
    "fwd_ms_per_iter": lambda c: c.forward,
    "bwd_plus_recomp_ms_per_iter": lambda c: c.backward + c.recompute,
    "recomp_ms_per_iter": lambda c: c.recompute,
    "in_comm_ms_per_iter": lambda c: c.into,
    "out_comm_ms_per_iter": lambda c: c.out,
    "reshard_ms_per_iter": lambda c: c.reshard,
}
"""With two decimals."""
MEGABYTES = {
    "mem_gradients_mb": lambda c: c.weights,
    "mem_inflight_activations_mb": lambda c: c.in_flight,
    "mem_peak_mb": lambda c: c.peak,
    "mem_reserved_mb": lambda c: c.reserved,
}
"""Whole numbers."""
EPSILON = 1e-6


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['config']}-{r['stage']}" for r in ROWS])
def test_costs_of_all_golden_stages_are_the_published_ones(row: dict) -> None:
    plan = golden_plan(row["config"])
    cost = costs_of(plan.subject.model).plan(plan)
    stage, count = cost.stages[row["stage"]], plan.subject.batch // plan.micro
    for name, of in TIMES.items():
        assert abs(of(stage) * count - row[name]) <= 0.005 + EPSILON, name
    for name, of in MEGABYTES.items():
        assert abs(of(stage) - row[name]) <= 0.5 + EPSILON, name
    assert abs(cost.times[row["stage"]] - row["stage_iteration_time_ms"]) <= 0.005 + EPSILON
    assert abs(stage.memory - row["mem_total_mb"]) <= 0.005 + EPSILON
    assert abs(cost.time - row["iteration_time_ms"]) <= 0.005 + EPSILON


WITH_ALL_DECIMALS = {
    "small_gpt_1_3B_4gpu_3stages": 67394.46306578862,
    "small_gpt_1_3B_4gpu_4stages": 58760.921885728945,
    "small_t5_770M_4gpu_4stages": 33659.49706716068,
    "small_resnet_1B_4gpu_2stages": 17672.051236483436,
    "small_resnet_1B_4gpu_4stages": 18088.13984018236,
}
"""Full-precision times of the artifact's curves."""


@pytest.mark.parametrize("name", WITH_ALL_DECIMALS)
def test_times_of_iterations_are_the_published_ones_to_all_decimals(name: str) -> None:
    plan = golden_plan(name)
    time = costs_of(plan.subject.model).plan(plan).time
    assert time == pytest.approx(WITH_ALL_DECIMALS[name], abs=EPSILON)


@pytest.mark.parametrize("name", [name for name in golden() if name.startswith("small")])
def test_recomputation_is_chosen_as_published(name: str) -> None:
    plan = golden_plan(name)
    choose = Chooser(costs_of(plan.subject.model), 12000)
    for index, stage in enumerate(plan.stages):
        behind = len(plan.stages) - 1 - index
        assert choose(stage, plan.starts[index], plan.micro, behind) == stage, index


def test_a_uniform_stage_costs_the_same_by_running_sums_and_by_operators() -> None:
    """A stage whose last operator alone differs is summed operator by operator."""
    costs = costs_of("gpt")
    whole = uniform(100, 1, 2)
    mixed = whole._replace(tp=b"\1" * 99 + b"\2", dp=b"\2" * 99 + b"\1")
    assert not mixed.uniform
    short = costs.stage(uniform(99, 1, 2), 3, 2, behind=1)
    alone = costs.table(2, 2, 0)[0][:, 102] / 1e6
    assert costs.stage(mixed, 3, 2, behind=1).forward == pytest.approx(short.forward + alone[0])


def test_messages_between_nodes_have_the_bandwidth_between_nodes() -> None:
    ask = small_ask("gpt")
    costs = ask.costs()
    slow = tuple(each / 10 for each in costs.database.intra)
    costs.database = Database(
        place="", rows=costs.database.rows, collectives={}, intra=costs.database.intra, inter=slow
    )
    plan = Plan(ask.subject, 1, (uniform(150, 4, 1), uniform(165, 4, 1)))
    costs.per_node = 8
    inside = costs.plan(plan).stages
    costs.per_node = 4
    first, second = costs.plan(plan).stages
    assert first.out == pytest.approx(10 * inside[0].out)
    assert second.into == pytest.approx(10 * inside[1].into)
    assert first.into == inside[0].into


def test_what_ran_out_of_memory_costs_more_than_any_plan() -> None:
    costs = small_ask("gpt").costs()
    costs.database.rows[1, 1, 0][:, 3] = -1
    plan = replace(golden_plan("small_gpt_1_3B_4gpu_4stages"))
    assert costs.plan(plan).time > 1e8


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        (Factors(2, 1, (1, 1, 1)), Factors(1, 1, (2, 1, 1)), ("", "all_gather", 2)),
        (Factors(1, 1, (4, 1, 1)), Factors(2, 1, (2, 1, 1)), ("all_gather", "", 2)),
        (Factors(1, 1, (1, 2, 2)), Factors(1, 1, (1, 4, 1)), ("all_to_all", "all_to_all", 2)),
    ],
)
def test_layouts_change_by_the_published_collectives(left, right, wanted) -> None:
    assert change(left, right) == wanted
