"""Stages that never wait for each other borrow weights in the version that they declare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ftpipe.stages import brings
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous, Loan
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import Schedule
from workbench.schedule.validate import validate


def pipeline(positions: tuple[int, ...], borrower: int, micros: int) -> Schedule:
    return schedule(
        Asynchronous(
            label="tied",
            positions=positions,
            depths=[*reversed(range(len(positions)))],
            micros=micros,
            samples=1,
            sizes=IdealSizes(),
            loans=[Loan(0, borrower, 8)],
        )  # fmt: skip
    )


@pytest.mark.parametrize("micros", [1, 2, 4])
@pytest.mark.parametrize(
    ("positions", "borrower"),
    [((0, 1), 1), ((0, 1, 0), 2), ((0, 1, 1, 0), 3), ((0, 1, 2, 0), 2), ((0, 1, 2, 3), 3)],
)
def test_every_other_version_of_a_borrowed_weight_is_refused(positions, borrower, micros):
    made = pipeline(positions, borrower, micros)
    validate(made)
    late = max(a.stale for a in made.actions if brings(a, borrower))
    behind = len(positions) - 1
    assert late == -(-behind // micros) + (borrower - behind) // micros
    apart = positions[0] != positions[borrower]
    for change in (-1, 1) if late else (1,):
        actions = tuple(
            replace(a, stale=a.stale + change)
            if brings(a, borrower) and (a.kind is not Kind.UPDATE or not apart)
            else a
            for a in made.actions
        )
        with pytest.raises(ScheduleError, match="U0|SEND0|may"):
            validate(replace(made, actions=actions))


def test_an_owner_behind_its_borrower_is_refused():
    line = Asynchronous(
        label="tied", positions=(0, 1), depths=(1, 0), micros=1, samples=1, sizes=IdealSizes(),
        loans=[Loan(1, 0, 8)],
    )  # fmt: skip
    with pytest.raises(ValueError, match="stage 0 borrows a weight of stage 1 behind it"):
        schedule(line)
