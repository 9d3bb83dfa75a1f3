"""A schedule as a table of text: a column a lane, a row a tick, for error messages and debugging.

Every action takes one tick and starts as soon as its lane is free and what it waits for is over,
steps before this one being done. Unlike the simulator this works on schedules that deadlock: what
never starts stands below a line, in the order of its lane.

    >>> from workbench.schedule import Action, Kind, Schedule
    >>> print(text_table(Schedule(name="one", num_units=1, num_microbatches=1, actions=(
    ...     Action(kind=Kind.LOAD, unit=0, lane="h2d"),
    ...     Action(kind=Kind.FORWARD, unit=0, microbatch=0, lane="compute", after=("L0",)))),
    ...     mark="F0.0"))
       | compute | h2d
     0 |         | L0
     1 | >F0.0<  |
"""

from __future__ import annotations

from workbench.schedule.action import LANES, lane_kind, parse_name
from workbench.schedule.schedule import Schedule


def text_table(schedule: Schedule, mark: str | None = None, around: int | None = None) -> str:
    """The table, with action `mark` in angle brackets and only the rows `around` it, if given.

    Raises ValueError when `mark` is no action of the schedule.
    """
    if mark is not None and mark not in schedule.by_name:
        raise ValueError(f"{mark} is no action of the schedule {schedule.name!r}")
    lanes = sorted(schedule.lanes, key=lambda key: (key[0], LANES.index(lane_kind(key[1])), key[1]))
    ticks, stuck = _run(schedule, lanes)
    shown = {} if mark is None else {mark: f">{mark}<"}
    heads = ["", *(f"{rank}:{lane}" if schedule.num_ranks > 1 else lane for rank, lane in lanes)]
    rows = [
        [str(number), *(shown.get(tick.get(lane), tick.get(lane, "")) for lane in lanes)]
        for number, tick in [*enumerate(ticks), *(("-", tick) for tick in stuck)]
    ]
    if around is not None and mark is not None:
        at = next(i for i, row in enumerate(rows) if shown[mark] in row)
        rows = rows[max(0, at - around) : at + around + 1]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    widths[0] = max(2, widths[0])
    lines = []
    for row in [heads, *rows]:
        if row[0] == "-" and not lines[-1].lstrip().startswith("-"):
            lines.append("--- what follows never starts")
        cells = [row[0].rjust(widths[0]), *map(str.ljust, row[1:], widths[1:])]
        lines.append(" | ".join(cells).rstrip())
    return "\n".join(lines)


Tick = dict[tuple[int, str], str]
"""(rank, lane) -> the action it runs."""


def _run(schedule: Schedule, lanes: list[tuple[int, str]]) -> tuple[list[Tick], list[Tick]]:
    """What runs in each tick, and what is left on each lane when nothing moves any more."""
    waits = {
        action.name: [t.partition("@")[0] for t in action.after if parse_name(t).step >= 0]
        for action in schedule.actions
    }
    queues = {lane: [action.name for action in schedule.lanes[lane]] for lane in lanes}
    heads = dict.fromkeys(lanes, 0)
    ended: set[str] = set()
    ticks: list[Tick] = []
    while True:
        tick = {
            lane: queue[heads[lane]]
            for lane, queue in queues.items()
            if heads[lane] < len(queue) and ended.issuperset(waits[queue[heads[lane]]])
        }
        if not tick:
            break
        ticks.append(tick)
        ended.update(tick.values())
        for lane in tick:
            heads[lane] += 1
    left = {lane: queue[heads[lane] :] for lane, queue in queues.items()}
    depth = max(map(len, left.values()), default=0)
    stuck = [
        {lane: names[row] for lane, names in left.items() if row < len(names)}
        for row in range(depth)
    ]
    return ticks, stuck
