"""Ranks count weights, gradients, activations, sums and messages apart, as the schedule says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from baselines.swapping.division import build, divided
from tests.methods import test_ranks, test_swapping
from tests.methods.harness import Silent
from tests.methods.rank_server import process
from workbench.core.record import BETWEEN, PARTS
from workbench.exhibits.harmony import volumes
from workbench.runtime.memory.traffic import planned_parts
from workbench.schedule.action import SENDS, Kind
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import Schedule
from workbench.training.rank_processes import RankTraining
from workbench.training.ranks import outcome

SPEC = test_ranks.spec_for(ranks=2, steps=3)


def harmony(**changes) -> Schedule:
    return test_ranks.schedule_for(replace(test_ranks.PACKS, **changes), SPEC)


def swapped(**changes) -> Schedule:
    spec = test_swapping.spec_for()
    line = divided(**test_swapping.PP | {"minibatch": SPEC.batch} | changes)
    return build(line, test_swapping.sizes_for(spec))


SCHEDULES = {
    "harmony-pp": harmony,
    "harmony-dp": lambda: harmony(mode="dp"),
    "layers that stay": lambda: harmony(mirrored=True, resident=frozenset({1, 2})),
    "pp-swap": swapped,
    "dp-swap": lambda: swapped(mode="dp", size=1, stages=test_swapping.EACH * 2, own=()),
}
EXCHANGED = {"harmony-dp": {"all_reduced"}, "dp-swap": {"all_reduced"}}
"""By replicas; stages send messages."""


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_part_is_that_of_the_schedule(name, tmp_path):
    schedule = SCHEDULES[name]()
    made = Plan(
        method=name, fits=True, schedule=schedule, step_seconds=1.0, peak_bytes={},
        moved_bytes=schedule.moved_bytes(), binding="",
    )  # fmt: skip
    how = {"device": "cpu", "process": process("")}
    with closing(RankTraining(SPEC, schedule, tmp_path, **how)) as crew:
        crew.run(Silent())
        found = outcome(crew, made, tmp_path)
        results = crew.results()
    parts = planned_parts(schedule, SPEC.batch)
    assert found.moved_parts == found.predicted["moved_parts"] == parts
    assert tuple(parts) == PARTS + BETWEEN
    assert sum(parts[part] for part in PARTS) == sum(found.moved_bytes.values())
    moving = {part for part in PARTS if parts[part]}
    assert moving >= {part for part in PARTS if not part.startswith("sums")}
    assert (moving == set(PARTS)) == name.endswith("swap")
    assert {part for part in BETWEEN if parts[part]} == EXCHANGED.get(name, {"p2p"})
    for rank, result in enumerate(results):
        for kinds, part in ((SENDS, "p2p"), ((Kind.REDUCE,), "all_reduced")):
            own = [a.nbytes for a in schedule.actions if a.rank == rank and a.kind in kinds]
            assert result["moved_parts"].get(part, 0) == sum(own) * SPEC.steps
    if name in ("harmony-pp", "harmony-dp"):
        weights = 4 * found.parameters
        tied = 4 * SPEC.model.vocab * SPEC.model.hidden  # come with the head too
        moved = parts["weights_in"] + parts["gradients_out"]
        assert weights < moved <= volumes.bound(name, 2) * (weights + tied)
