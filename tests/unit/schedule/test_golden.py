"""A window schedule of four units, simulated, stays what it is.

After an intended change, look at the new text and keep it:

    python -m tests.unit.schedule.test_golden > tests/golden/schedule_window.txt
"""

from pathlib import Path

from tests.unit.schedule.made_up import Table
from tests.unit.schedule.window import window_schedule
from workbench.schedule.action import Kind
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

GOLDEN = Path(__file__).parents[2] / "golden" / "schedule_window.txt"
SECONDS = {Kind.BACKWARD: 2.0, Kind.LOAD: 1.5, Kind.GRAD_OUT: 0.75, Kind.UPDATE: 1.25}


def printed():
    schedule = window_schedule(4, 2, workers=2)
    costs = Table({a.name: SECONDS.get(a.kind, 1.0) for a in schedule.actions})
    costs.slowdowns = {("compute", "host"): 1.25, ("h2d", "d2h"): 1.5}
    simulation = simulate(schedule, costs, steps=2)
    lines = [f"{schedule.name}, 2 host workers, one micro-batch", ""]
    lines.append("simulated seconds, compute slowed by host updates and loads by stores")
    lines += [
        f"{e.lane:<8} step {e.step}  {e.name:<5} {e.start_s:9.5f} {e.end_s:9.5f}"
        for e in sorted(simulation.events, key=lambda e: (e.lane, e.start_s))
    ]
    lines += ["", f"step ends {simulation.step_ends_s}", f"simulated {simulation.peak_bytes[0]}"]
    lines.append(f"at most   {validate(schedule).peak_bytes[0]}")
    return "\n".join(lines) + "\n"


def test_schedule_and_times_are_the_golden_ones():
    assert printed() == GOLDEN.read_text()


if __name__ == "__main__":
    print(printed(), end="")
