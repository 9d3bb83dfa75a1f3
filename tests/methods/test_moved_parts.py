"""Ranks count weights, gradients, activations and sums apart, each as the schedule says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from baselines.swapping.program import build
from tests.methods import test_ranks, test_swapping
from tests.methods.harness import Silent
from workbench.figures.harmony import volumes
from workbench.methods.harmony.crew import Crew
from workbench.methods.harmony.train import outcome
from workbench.methods.plan import Plan
from workbench.runs.record import PARTS
from workbench.runtime.traffic import planned_parts
from workbench.schedule.schedule import Schedule

SPEC = test_ranks.spec_for(ranks=2, steps=3)


def harmony(**changes) -> Schedule:
    return test_ranks.schedule_for(replace(test_ranks.PACKS, **changes), SPEC)


def swapped() -> Schedule:
    spec = test_swapping.spec_for()
    division = replace(test_swapping.PP, minibatch=SPEC.batch)
    return build(division, test_swapping.sizes_for(spec), clipped=True)


SCHEDULES = {
    "harmony-pp": harmony,
    "harmony-dp": lambda: harmony(mode="dp"),
    "layers that stay": lambda: harmony(mirrored=True, resident=frozenset({1, 2})),
    "pp-swap": swapped,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_part_is_that_of_the_schedule(name, tmp_path):
    schedule = SCHEDULES[name]()
    made = Plan(
        method=name, fits=True, schedule=schedule, step_seconds=1.0, peak_bytes={},
        moved_bytes=schedule.moved_bytes(), binding="",
    )  # fmt: skip
    with closing(Crew(SPEC, schedule, tmp_path, device="cpu")) as crew:
        crew.run(Silent())
        found = outcome(crew, made, tmp_path)
    parts = planned_parts(schedule)
    assert found.moved_parts == found.predicted["moved_parts"] == parts
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == sum(found.moved_bytes.values())
    moving = {part for part, nbytes in parts.items() if nbytes}
    sums = {part for part in PARTS if part.startswith("sums")}
    assert moving == (set(PARTS) if name == "pp-swap" else set(PARTS) - sums)
    if name in ("harmony-pp", "harmony-dp"):
        weights = 4 * found.parameters
        tied = 4 * SPEC.model.vocab * SPEC.model.hidden  # come with the head too
        moved = parts["weights_in"] + parts["gradients_out"]
        assert weights < moved <= volumes.bound(name, 2) * (weights + tied)
