"""Plans of a module's whole layers, by made-up profiles, beside all plans that there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.bound import least_time
from workbench.methods.aceso.database import COLUMNS, Database
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import Plan, Subject, read_plan
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.space import Cluster, Space, uniform

LAYERS, BATCH = 5, 8
SUBJECT = Subject(model="module", size="Net-0", layers=LAYERS, shape=(), batch=BATCH)


def space_of(seed: int, cost: str, memory: float) -> Space:
    """Layers of 1 to 9 ms and 1 to 40 MB a row, beside weights of 1 to 9 MB."""
    draw, rows = np.random.default_rng(seed), {}
    most = np.array([9e6, 9e6, 4e3, 4e3, 9e3, 4e4, 2e3, 2e3])
    each = (draw.random((len(COLUMNS), LAYERS)) * 0.9 + 0.1) * most[:, None]
    each[2, 1:], each[2, 0], each[3, -1] = each[3, :-1], 0, 0
    for size in (1, 2, 4):
        scale = np.where(np.arange(len(COLUMNS)) == 4, 1, size)[:, None]
        rows[size, 1, 0] = (each * scale).astype(np.int64)
    database = Database(
        place="nowhere", rows=rows, collectives={}, intra=(2.0,), inter=(2.0,), group_mb=0.0
    )
    cluster = Cluster(nodes=1, per_node=2, memory=memory)
    ask = Ask(
        subject=SUBJECT, cluster=cluster, database=database, micros=(1, 2, 4), most_tp=1, cost=cost
    )  # fmt: skip
    return ask.space()


def best_of_all(space: Space) -> float:
    best = float("inf")
    for micro, cut, flags in product((1, 2, 4), range(LAYERS), product((0, 1), repeat=LAYERS)):
        stages = (uniform(LAYERS, 1, 2),)
        if cut:
            stages = uniform(cut, 1, 1), uniform(LAYERS - cut, 1, 1)
        parts = flags[: cut or LAYERS], flags[cut or LAYERS :]
        stages = tuple(
            stage._replace(recompute=bytes(own)) for stage, own in zip(stages, parts, strict=False)
        )
        if space.legal(micro, stages):
            cost = space.costs.plan(Plan(SUBJECT, micro, stages))
            best = min(best, cost.time) if space.fits(cost) else best
    return best


@pytest.mark.parametrize("cost", ["published", "ours"])
def test_our_plan_of_layers_is_within_a_hundredth_of_the_best_of_all(cost: str) -> None:
    """Where memory is scarce, so that some layers are computed again; the bound is no higher."""
    again = 0
    for seed in range(8):
        free = space_of(seed, cost, 1e6)
        search_ours(found := Outcome(space=free), range(1, 3), Effort(seconds=1e6))
        for part in (0.9, 0.6, 0.4):
            space = space_of(seed, cost, part * found.best.cost.memory)
            best = best_of_all(space)
            search_ours(outcome := Outcome(space=space), range(1, 3), Effort(seconds=1e6))
            assert outcome.fits == (best < float("inf"))
            if outcome.fits:
                assert least_time(space) <= best * (1 + 1e-9)
                assert outcome.best.cost.time <= best * 1.01
                again += any(any(stage.recompute) for stage in outcome.best.plan.stages)
                plan = outcome.best.plan
                assert read_plan(plan.to_json(), "the plan") == plan
    assert again > 4


def test_layers_are_not_divided_by_tp() -> None:
    made = Plan(SUBJECT, 2, (uniform(LAYERS, 2, 1),))
    with pytest.raises(ValueError, match="tp of operator 0 of stage 0 is 2; layers of a module"):
        read_plan(made.to_json(), "the plan")
