"""Schedules as JSON, which loses nothing.

An action is one line and states what differs from the defaults; its name holds kind, unit,
micro-batch, turn and rank. Lines keep the schedule's order, so a diff of two files shows what a
planner changed. Files name their format and version, and are read strictly: whatever is unknown,
missing or of the wrong type is a ValueError that says where.

    >>> from workbench.schedule import Action, Kind, Schedule
    >>> update = Action(kind=Kind.UPDATE, unit=0, lane="host", after=("B0.0",))
    >>> one = Schedule(name="one", num_units=1, num_microbatches=1, actions=(update,))
    >>> print(to_json(one).splitlines()[-3])
     {"name": "U0", "lane": "host", "after": ["B0.0"]}
    >>> from_json(to_json(one)) == one
    True
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from workbench.core.jsonfile import parse_json
from workbench.core.schema import read_as
from workbench.schedule.action import Action, Kind, format_name, parse_name
from workbench.schedule.schedule import Buffer, Schedule

FORMAT, VERSION = "workbench schedule", 2
OLD = 1
"""Version in which a message of turn 1 was one of gradients."""
OLD_GRADIENTS = {Kind.SEND: Kind.SEND_GRAD, Kind.RECV: Kind.RECV_GRAD}
PLACE = ("kind", "unit", "microbatch", "turn", "rank")
"""Fields of an action that its name holds."""
Setting = int | float | str | bool | None


@dataclass(kw_only=True)
class _Row:
    """An action as files have it."""

    name: str
    lane: str
    nbytes: int = 0
    samples: tuple[int, int] | None = None
    lag: int = 0
    stale: int = 0
    after: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _File:
    """A schedule as a file has it."""

    format: Literal["workbench schedule"]
    version: Literal[1, 2]
    name: str
    num_units: int
    num_microbatches: int
    num_ranks: int
    replicas: int = 1
    settings: dict[str, Any]
    budgets: dict[str, int]
    buffers: dict[str, Buffer]
    actions: list[_Row]

    def __post_init__(self) -> None:
        for name, value in self.settings.items():  # whole numbers of any size
            if not isinstance(value, Setting):
                raise ValueError(f"settings.{name} is {value!r}; it must be one value")


def to_json(schedule: Schedule) -> str:
    """The whole schedule, always in the same words.

    Raises ValueError for a setting that JSON cannot hold (a number that is not finite).
    """
    for name, value in schedule.settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"setting {name!r} is {value}, which JSON cannot hold")
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": schedule.name,
        "num_units": schedule.num_units,
        "num_microbatches": schedule.num_microbatches,
        "num_ranks": schedule.num_ranks,
        **({"replicas": schedule.replicas} if schedule.replicas > 1 else {}),
        "settings": schedule.settings,
        "budgets": schedule.budgets,
    }
    buffers = [
        f"{json.dumps(name)}: {json.dumps(_stated(Buffer, buffer))}"
        for name, buffer in schedule.buffers.items()
    ]
    actions = [json.dumps(_stated(_Row, action)) for action in schedule.actions]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    lines.append(_block("buffers", "{}", buffers) + ",")
    lines.append(_block("actions", "[]", actions))
    return "{\n" + "\n".join(lines) + "\n}\n"


def _block(key: str, brackets: str, lines: list[str]) -> str:
    inside = "\n " + ",\n ".join(lines) + "\n" if lines else ""
    return f'"{key}": {brackets[0]}{inside}{brackets[1]}'


def _stated(kind: type, made: Action | Buffer) -> dict[str, Any]:
    """The fields of a row of this kind that differ from their defaults."""
    named = ((field, getattr(made, field.name)) for field in fields(kind))
    return {field.name: value for field, value in named if value != field.default}


def from_json(text: str) -> Schedule:
    """Inverse of `to_json`; raises ValueError when the text is no schedule of a known version."""
    file = read_as(_File, parse_json(text, "not a schedule: it"), "the schedule")
    told = {key: value for key, value in vars(file).items() if key not in ("format", "version")}
    rows = enumerate(file.actions)
    actions = [_action_from(row, file.version, f"the schedule: actions[{i}]") for i, row in rows]
    return Schedule(**told | {"actions": tuple(actions)})


def _of_today(name: str, version: int) -> str:
    """A name as this version writes it. Raises ValueError for what is none."""
    was = parse_name(name)
    if version != OLD or was.turn != 1 or was.kind not in OLD_GRADIENTS:
        return name
    kind = OLD_GRADIENTS[was.kind]
    return format_name(kind, was.unit, was.microbatch, rank=was.rank, step=was.step)


def _action_from(row: _Row, version: int, where: str) -> Action:
    """An action from its row as a version writes it; errors begin with `where`."""
    try:
        name = _of_today(row.name, version)
        named = parse_name(name)
        if named.step:
            raise ValueError(f"{name!r} names a step; only references to actions do")
        after = tuple([_of_today(text, version) for text in row.after])
        told = {key: value for key, value in vars(row).items() if key != "name"} | {"after": after}
        place = {key: getattr(named, key) for key in PLACE}
        action = Action(**place, **told)
        if action.name != name:
            raise ValueError(f"{name!r} must be written {action.name}")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return action
