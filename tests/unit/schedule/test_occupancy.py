"""Places, deadlocks, memory: what breaks any schedule is refused, and named."""

from dataclasses import replace

import pytest

from tests.unit.schedule.mutate import (
    add,
    edit,
    forget,
    free_early,
    insert,
    nobody_waits_for,
    peak,
    rebuffer,
    rename,
    swap,
    take_late,
)
from tests.unit.schedule.window import pipeline, window_schedule
from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer
from workbench.schedule.validate import validate

GOOD = window_schedule(4, 2)
FULL = window_schedule(4, 2, 2, workers=2, norm=True, stash=True, disk=True)
PIPELINE = pipeline()


BROKEN = {
    # names and places
    "an action twice": (
        lambda: insert(GOOD, GOOD.by_name["R1.0"], after="R1.0"),
        "R1.0 stands twice in the schedule 'window 2 of 4'",
    ),
    "a dependency that does not exist": (
        lambda: edit(GOOD, "F1.0", after=("L9",)),
        "F1.0 waits for L9, which is not in the schedule",
    ),
    "a dependency without a name": (
        lambda: edit(GOOD, "F1.0", after=("L1", "loss")),
        "F1.0 waits for what has no name: 'loss' is no action name; "
        "one looks like F3.0, L3+1 or 2:U7@-1",
    ),
    "a dependency on the future": (
        lambda: edit(GOOD, "F1.0", after=("L1", "U1@1")),
        "F1.0 waits for U1@1, which lies in the future",
    ),
    "a unit too many": (
        lambda: add(GOOD, Kind.FORWARD, 4, "compute", microbatch=0, behind="F3.0"),
        "F4.0 is about unit 4, the schedule's last is 3",
    ),
    "a micro-batch too many": (
        lambda: add(GOOD, Kind.FORWARD, 3, "compute", microbatch=1, behind="F3.0"),
        "F3.1 is about micro-batch 1, the schedule's last is 0",
    ),
    "a rank too many": (
        lambda: rename(GOOD, "U0", rank=1),
        "1:U0 is about rank 1, the schedule's last is 0",
    ),
    "a buffer of a rank too many": (
        lambda: rebuffer(GOOD, "w0", rank=2),
        "buffer 'w0' lies on rank 2, the schedule's last is 0",
    ),
    "the wrong lane": (
        lambda: edit(GOOD, "L2", lane="d2h"),
        "L2 queues on lane d2h, a LOAD runs on h2d",
    ),
    "no micro-batch": (
        lambda: add(GOOD, Kind.FORWARD, 0, "compute", behind="F0.0"),
        "F0 names no micro-batch",
    ),
    # deadlocks
    "two actions of a lane swapped": (
        lambda: swap(GOOD, "R1.0", "B1.0"),
        "the schedule deadlocks: B1.0 waits for R1.0, R1.0 queues behind B1.0",
    ),
    "crossed order of two lanes": (
        lambda: edit(swap(GOOD, "L0", "L1"), "L1", after=("U1@-1", "F0.0")),
        "the schedule deadlocks: L1 waits for F0.0, F0.0 waits for L0, L0 queues behind L1",
    ),
    "waiting for oneself": (
        lambda: edit(GOOD, "G2", after=("G2",)),
        "the schedule deadlocks: G2 waits for G2",
    ),
    # buffers
    "a buffer nobody declared": (
        lambda: edit(GOOD, "R1.0", uses=("w1+1", "x1.0", "q")),
        "R1.0 refers to buffer 'q', which is not declared",
    ),
    "a buffer nobody takes": (
        lambda: edit(GOOD, "F0.0", takes=("x1.0", "t:F0.0")),
        "B0.0 frees buffer 'x0.0', which nobody takes",
    ),
    "a buffer nobody takes or frees": (
        lambda: replace(
            edit(GOOD, "R1.0", uses=("w1+1", "x1.0", "q")),
            buffers={**GOOD.buffers, "q": Buffer(tier=DEVICE, nbytes=1)},
        ),
        "R1.0 uses buffer 'q', which nobody takes",
    ),
    "a buffer nobody frees": (
        lambda: edit(GOOD, "G2", frees=()),
        "B2.0 takes buffer 'g2', which nobody frees",
    ),
    "a buffer taken twice": (
        lambda: edit(GOOD, "R1.0", takes=("k1.0", "t:R1.0", "x1.0")),
        "R1.0 takes buffer 'x1.0', as F0.0 does in the same step",
    ),
    "a buffer freed twice": (
        lambda: edit(GOOD, "G2", frees=("g2", "k2.0")),
        "G2 frees buffer 'k2.0', as B2.0 does in the same step",
    ),
    "a permanent buffer taken": (
        lambda: edit(GOOD, "U2", frees=("hg2", "hw2")),
        "U2 frees 'hw2', a permanent buffer",
    ),
    "a buffer freed before it is taken": (
        lambda: take_late(GOOD, "x3.0", "F2.0", "B2.0"),
        "B3.0 may start before B2.0 has ended: it frees buffer 'x3.0'",
    ),
    "a freed buffer used": (
        lambda: free_early(GOOD, "x2.0", "B2.0", "R2.0"),
        "R2.0 may start before B2.0 has ended: it frees buffer 'x2.0' in use",
    ),
    "a buffer of another device": (
        lambda: replace(rebuffer(GOOD, "x1.0", rank=1), num_ranks=2),
        "F0.0 on rank 0 refers to buffer 'x1.0' on the device of rank 1",
    ),
    "two buffers of one slot at once": (
        lambda: forget(GOOD, "L1+1", "B3.0"),
        "L1+1 may start before B3.0 has ended: both use slot 'w1'",
    ),
    "a slot taken again in the next step": (
        lambda: forget(window_schedule(4, 2, disk=True), "READ3", "SPILL1@-1"),
        "READ3 of the next step may start before SPILL1 has ended: both use slot 's1'",
    ),
    "a buffer taken again in the next step": (
        lambda: nobody_waits_for(GOOD),
        "B3.0 of the next step may start before REDUCE3 has ended: it takes buffer 'q'",
    ),
    # budgets
    "a device budget one byte too small": (
        lambda: replace(GOOD, budgets={DEVICE: peak(GOOD, DEVICE) - 1}),
        "rank 0 may occupy 505 bytes of device memory, 1 more than its budget of 504 "
        "(405 the whole time, 100 in k3.0, d2.0, x0.0, x1.0, ...)",
    ),
    "a host budget one byte too small": (
        lambda: replace(GOOD, budgets={HOST_TIER: peak(GOOD, HOST_TIER) - 1}),
        "rank 0 may occupy 1,600 bytes of host memory, 1 more than its budget of 1,599 "
        "(1,200 the whole time, 400 in hg0, hg1, hg2, hg3)",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_schedule_is_refused_by_name(case):
    broken, sentence = BROKEN[case]
    with pytest.raises(ScheduleError) as error:
        validate(broken())
    assert str(error.value) == sentence
