"""What several devices share costs what was measured, or what one link allows."""

from __future__ import annotations

from tests.unit.harmony.made_up import Layers
from tests.unit.harmony.test_search import SERVER
from workbench.methods.harmony.server import ServerCosts
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Buffer, Schedule
from workbench.schedule.simulate import simulate


def test_stashed_inputs_and_weights_share_a_link():
    """Two copies of 0.6 MB at 0.6 MB/s end after two seconds, and not after one."""
    buffers = {name: Buffer(tier="device", nbytes=600_000) for name in ("w1", "x1.0")}
    schedule = Schedule(
        name="two copies",
        num_units=2,
        num_microbatches=1,
        buffers=buffers,
        actions=(
            Action(kind=Kind.LOAD, unit=1, lane="h2d", nbytes=600_000, takes=("w1",)),
            Action(
                kind=Kind.FETCH, unit=1, microbatch=0, lane="h2d.1", nbytes=600_000,
                takes=("x1.0",),
            ),
            Action(
                kind=Kind.FORWARD, unit=1, microbatch=0, lane="compute",
                after=("L1", "T1.0"), frees=("w1", "x1.0"),
            ),
        ),
    )  # fmt: skip
    costs = ServerCosts(Layers([10, 10]), SERVER, shared_updates=False)
    ends = {event.name: event.end_s for event in simulate(schedule, costs, steps=1).events}
    assert abs(ends["L1"] - 2.0) < 1e-9
    assert abs(ends["T1.0"] - 2.0) < 1e-9


def test_a_message_has_a_latency():
    assert SERVER.message_seconds(10_000_000) == 1.0
