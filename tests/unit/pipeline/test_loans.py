"""Weights that units on two positions share: what lends them too early or not at all is refused."""

from __future__ import annotations

import pytest

from tests.unit.harmony.made_up import Layers
from tests.unit.schedule.mutate import edit, forget, remove
from tests.varuna.cases import around
from workbench.core.division import packs_of
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.program import Program
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import Schedule
from workbench.schedule.validate import validate

HEAD, FIRST = {3: 0}, {0: 3}
"""The unit that borrows -> whose weights: the last of the first, or the first of the last."""
SIZES = [700, 300, 300, 700]


def schedule_of(positions: tuple[int, ...], tied: dict[int, int], replicas: int = 1) -> Schedule:
    """Stages of 1, 2 and 1 units."""
    depth = 1 + max(positions)
    line = Pipeline(
        method="around", passes=[[*around(at, depth, 2, positions)] for at in range(depth)],
        stages=packs_of([1, 2, 1]), positions=positions, micro_size=1, samples=2,
        replicas=replicas, clipped=True,
    )  # fmt: skip
    return Program(line, Layers(SIZES, tied=tied)).schedule()


GOOD, LENT_BACK = schedule_of((1, 0, 0), HEAD), schedule_of((1, 0, 0), FIRST)
REPLICAS = schedule_of((1, 0, 0), FIRST, 2)


def waits_instead(schedule: Schedule, name: str, lent: str, own: str) -> Schedule:
    """An action waits for what completes a unit's own gradients, not for what lent ones take."""
    after = schedule.by_name[name].after
    assert lent in after
    return edit(schedule, name, after=tuple(own if each == lent else each for each in after))


BROKEN = {
    "a norm without lent gradients": (
        lambda: waits_instead(GOOD, "N0", "1:RECV_GRAD0", "1:B0.1"),
        "N0 may start before 1:RECV_GRAD0 has ended: the norm may lack lent gradients",
    ),
    "gradients lent before they are complete": (
        lambda: forget(LENT_BACK, "1:SEND_GRAD3", "1:B0.1"),
        "1:SEND_GRAD3 may start before 1:B0.0 has ended: the gradients may be incomplete",
    ),
    "gradients lent before replicas add them up": (
        lambda: waits_instead(REPLICAS, "1:SEND_GRAD3", "1:REDUCE0", "1:B0.1"),
        "1:SEND_GRAD3 may start before 1:REDUCE0 has ended: the gradients may be incomplete",
    ),
    "gradients added to incomplete ones": (
        lambda: forget(
            edit(GOOD, "N0", after=(*GOOD.by_name["N0"].after, "1:B0.1")), "1:RECV_GRAD0", "1:B0.1"
        ),
        "1:RECV_GRAD0 may start before 1:B0.0 has ended: the gradients may be incomplete",
    ),
    "weights lent before their update": (
        lambda: forget(GOOD, "1:SEND0", "1:U0"),
        "1:SEND0 may start before 1:U0 has ended: it may send stale weights",
    ),
    "weights updated while they are sent": (
        lambda: forget(LENT_BACK, "U3", "SEND3@-1"),
        "U3 of the next step may start before SEND3 has ended: it changes the weights being sent",
    ),
    "a pass before borrowed weights": (
        lambda: forget(LENT_BACK, "1:F0.0", "1:RECV3@-1"),
        "1:F0.0 of the next step may start before 1:RECV3 has ended: its borrowed weights may be "
        "stale",
    ),
    "no new weights": (
        lambda: remove(GOOD, "1:SEND0", "RECV0"),
        "no message brings new weights of what unit 3 borrows of 0",
    ),
}


@pytest.mark.parametrize("positions", [(1, 0, 0), (0, 0, 1), (1, 2, 0), (2, 1, 0), (0, 1, 2)])
@pytest.mark.parametrize("tied", [HEAD, FIRST])
@pytest.mark.parametrize("replicas", [1, 2])
def test_loans_in_both_directions_are_proved(positions, tied, replicas):
    validate(schedule_of(positions, tied, replicas))


@pytest.mark.parametrize("case", BROKEN)
def test_loans_that_are_incomplete_are_refused(case):
    broken, why = BROKEN[case]
    with pytest.raises(ScheduleError) as refusal:
        validate(broken())
    assert str(refusal.value) == why
