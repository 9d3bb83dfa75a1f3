"""Schedules as JSON, which loses nothing. (csv_table.py writes what people edit by hand.)

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
from collections.abc import Iterable
from typing import Any

from workbench.core.jsonfile import parse_json
from workbench.schedule.action import Action, Kind, format_name, parse_name
from workbench.schedule.schedule import Buffer, Schedule

FORMAT, VERSION = "workbench schedule", 2
OLD = 1
"""Version in which a message of turn 1 was one of gradients."""
OLD_GRADIENTS = {Kind.SEND: Kind.SEND_GRAD, Kind.RECV: Kind.RECV_GRAD}
LISTS = ("after", "takes", "uses", "frees")
ACTION_FIELDS: dict[str, type] = {
    "name": str,
    "lane": str,
    "nbytes": int,
    **dict.fromkeys(LISTS, list),
    "samples": list,
}
BUFFER_FIELDS: dict[str, type] = {
    "tier": str,
    "nbytes": int,
    "rank": int,
    "slot": str,
    "offset": int,
    "permanent": bool,
}
SCHEDULE_FIELDS: dict[str, type] = {
    "format": str,
    "version": int,
    "name": str,
    "num_units": int,
    "num_microbatches": int,
    "num_ranks": int,
    "replicas": int,
    "settings": dict,
    "budgets": dict,
    "buffers": dict,
    "actions": list,
}


def to_json(schedule: Schedule) -> str:
    """The whole schedule, always in the same words.

    Raises ValueError for a setting that JSON cannot hold (a number that is not finite).
    """
    for name, value in schedule.settings.items():
        if not _finite(value):
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
        f"{json.dumps(k)}: {json.dumps(_buffer_data(b))}" for k, b in schedule.buffers.items()
    ]
    actions = [json.dumps(_action_data(action)) for action in schedule.actions]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    lines.append(_block("buffers", "{}", buffers) + ",")
    lines.append(_block("actions", "[]", actions))
    return "{\n" + "\n".join(lines) + "\n}\n"


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _block(key: str, brackets: str, lines: list[str]) -> str:
    inside = "\n " + ",\n ".join(lines) + "\n" if lines else ""
    return f'"{key}": {brackets[0]}{inside}{brackets[1]}'


def _action_data(action: Action) -> dict[str, Any]:
    data: dict[str, Any] = {"name": action.name, "lane": action.lane}
    if action.nbytes:
        data["nbytes"] = action.nbytes
    if action.samples is not None:
        data["samples"] = list(action.samples)
    return data | {key: list(getattr(action, key)) for key in LISTS if getattr(action, key)}


def _buffer_data(buffer: Buffer) -> dict[str, Any]:
    data: dict[str, Any] = {"tier": buffer.tier, "nbytes": buffer.nbytes}
    if buffer.rank:
        data["rank"] = buffer.rank
    if buffer.slot is not None:
        data["slot"] = buffer.slot
    if buffer.offset:
        data["offset"] = buffer.offset
    if buffer.permanent:
        data["permanent"] = True
    return data


def from_json(text: str) -> Schedule:
    """Inverse of `to_json`; raises ValueError when the text is no schedule of a known version."""
    data = parse_json(text, "not a schedule: it")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'not a schedule: it does not say "format": "{FORMAT}"')
    version = data.get("version")
    if version not in (OLD, VERSION) or isinstance(version, bool):
        known = f"{OLD} and {VERSION}"
        raise ValueError(f"the schedule has version {version!r}, this program reads {known}")
    required = [field for field in SCHEDULE_FIELDS if field != "replicas"]
    _check_fields(data, SCHEDULE_FIELDS, "the schedule", required=required)
    for name, limit in data["budgets"].items():
        _check_fields({"budget": limit}, {"budget": int}, f"tier {name!r}")
    for name, value in data["settings"].items():
        if isinstance(value, list | dict) or not _finite(value):
            raise ValueError(f"setting {name!r} is {value!r}; it must be a single finite value")
    buffers = {}
    for name, fields in data["buffers"].items():
        where = f"buffer {name!r}"
        _check_fields(fields, BUFFER_FIELDS, where, required=("tier", "nbytes"))
        buffers[name] = made(where, Buffer, **fields)
    rows = enumerate(data["actions"], start=1)
    actions = (action_from(f"action {i}", row, version) for i, row in rows)
    return Schedule(
        name=data["name"],
        num_units=data["num_units"],
        num_microbatches=data["num_microbatches"],
        num_ranks=data["num_ranks"],
        replicas=data.get("replicas", 1),
        settings=data["settings"],
        budgets=data["budgets"],
        buffers=buffers,
        actions=tuple(actions),
    )


def _check_fields(
    data: Any, types: dict[str, type], where: str, required: Iterable[str] = ()
) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {data!r}; it must be an object")
    for key, value in data.items():
        if key not in types:
            raise ValueError(f"{where} has the unknown field {key!r}; known are {', '.join(types)}")
        wanted = types[key]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise ValueError(f"{where}: {key} is {value!r}; it must be of type {wanted.__name__}")
        if wanted is list and key in LISTS and not all(isinstance(item, str) for item in value):
            raise ValueError(f"{where}: {key} is {value!r}; it must be a list of names")
    for key in required:
        if key not in data:
            raise ValueError(f"{where} has no {key}")


def made(where: str, make: type, **fields: Any) -> Any:
    """``make(**fields)``, whose errors begin with `where`."""
    try:
        return make(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _of_today(name: str, version: int) -> str:
    """A name as this version writes it. Raises ValueError for what is none."""
    was = parse_name(name)
    if version != OLD or was.turn != 1 or was.kind not in OLD_GRADIENTS:
        return name
    kind = OLD_GRADIENTS[was.kind]
    return format_name(kind, was.unit, was.microbatch, rank=was.rank, step=was.step)


def action_from(where: str, fields: Any, version: int = VERSION) -> Action:
    """An action from its fields as a version writes them; errors begin with `where`."""
    _check_fields(fields, ACTION_FIELDS, where, required=("name", "lane"))
    try:
        name = _of_today(fields["name"], version)
        parsed = parse_name(name)
        lists = {key: tuple(fields.get(key, ())) for key in LISTS}
        lists["after"] = tuple([_of_today(text, version) for text in lists["after"]])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    samples = fields.get("samples")
    if samples is not None and not (len(samples) == 2 and all(type(n) is int for n in samples)):
        raise ValueError(f"{where}: samples is {samples!r}; it must be the first and the end")
    if parsed.step:
        raise ValueError(f"{where}: {name!r} names a step; only references to actions do")
    action = made(
        where,
        Action,
        kind=parsed.kind,
        unit=parsed.unit,
        microbatch=parsed.microbatch,
        turn=parsed.turn,
        rank=parsed.rank,
        lane=fields["lane"],
        nbytes=fields.get("nbytes", 0),
        samples=None if samples is None else tuple(samples),
        **lists,
    )
    if action.name != name:
        raise ValueError(f"{where}: {name!r} must be written {action.name}")
    return action
