"""One measured step of a run on named hardware: what every lane did, and what it moved.

``results/published-here/<device>/lanes/<case>-<method>.csv`` holds a step of a run of the offload
benchmark, which keeps one for each case. Comments at its head say whose step it is, a row is an
action. A file that cannot be right is refused in one sentence, as a row of offload.csv is.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole
from workbench.published import sheet
from workbench.published.here import LABELS
from workbench.schedule.action import COMPUTE, LANES, lane_kind, parse_name
from workbench.schedule.simulate import Event

FOLDER = "lanes"
HEAD = (
    "case", "method", "key", "started", "commit", "hardware", "step_seconds", "layers", "batch",
    "clip", "device_cap_gib", "host_memory_bytes_per_s",
)  # fmt: skip
"""The comments, in order. `host_memory_bytes_per_s`: what the machine's profile says that host
memory gives to copies both ways and updates, all at once."""
COLUMNS = (
    "lane", "kind", "unit", "microbatch", "turn", "name", "start_s", "end_s", "host_bytes",
)  # fmt: skip
"""`microbatch` is empty for work done once a step; `turn` counts equal actions of a step."""
AGREE = 0.05
"""Compute may fill this much more than the step, which another clock measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """A step in types. None stands for an empty field."""

    case: str
    method: str
    """As in offload.csv, a variant in parentheses."""
    key: str
    """Key of the run's record."""
    started: date
    commit: str
    hardware: str
    step_seconds: float
    """From the first action of this step to that of the next, in a run that goes on."""
    layers: int
    batch: int
    clip: float | None
    device_cap_gib: float | None
    host_memory_bytes_per_s: float | None
    events: tuple[Event, ...]
    """Seconds count from the first compute action; updates and copies may reach past the step's
    end, into the next. `nbytes` is what an action moved through host memory."""
    device: str
    """The machine's folder."""

    @property
    def label(self) -> str:
        """The method as a figure writes it."""
        base, _, variant = self.method.partition(" (")
        words = f" ({sheet.in_words(variant.removesuffix(')'))})" if variant else ""
        return LABELS[base] + words

    def of_lane(self, kind: str) -> list[Event]:
        """The events on all lanes of a kind."""
        return [event for event in self.events if lane_kind(event.lane) == kind]


def measured_steps(roots: Iterable[Path]) -> list[Lanes]:
    """The steps in ``<root>/published-here/*/lanes/*.csv`` of every root; of equal cases and
    methods on a machine the last root's.

    Empty where there is no such file. Raises ValueError as `read_lanes` does.
    """
    steps = map(read_lanes, sheet.files(roots, f"{FOLDER}/*.csv"))
    return list({(step.device, step.case, step.method): step for step in steps}.values())


def read_lanes(path: Path) -> Lanes:
    """The step in a file.

    Raises ValueError naming file, line, column and value for what cannot be right.
    """
    file = "/".join(path.parts[-3:])  # as people find it: device folder, folder and name
    head: dict[str, Any] = {}
    rows: list[tuple[str, list[str]]] = []
    for line, text in enumerate(read_whole(path, file).decode().splitlines(), 1):
        where = f"{file}, line {line}"
        if text.startswith("#"):
            head |= _entry(where, text, head)
        elif text.strip():
            rows.append((where, next(csv.reader([text]))))
    absent = [name for name in HEAD if name not in head]
    if absent:
        raise ValueError(f"{file}: no line says {', '.join(f'# {name}:' for name in absent)}")
    where, names = rows[0] if rows else (file, [])
    if tuple(names) != COLUMNS:
        raise ValueError(f"{where}: the columns must be {','.join(COLUMNS)}")
    events = tuple(_event(where, values) for where, values in rows[1:])
    step = Lanes(**head, events=events, device=path.parent.parent.name)
    if wrong := _contradiction(step):
        raise ValueError(f"{file}: {wrong}")
    return step


def _entry(where: str, text: str, head: dict[str, Any]) -> dict[str, Any]:
    """``# name: value`` as an entry of the head."""
    name, colon, value = (part.strip() for part in text.removeprefix("#").partition(":"))
    if not colon or name not in _HEAD_READERS or name in head:
        raise ValueError(
            f"{where}: {text!r} is unknown or twice there; the comments are {', '.join(HEAD)}"
        )
    return sheet.cells(where, [name], [value], _HEAD_READERS)[1]


def _event(where: str, values: list[str]) -> Event:
    texts, read = sheet.cells(where, COLUMNS, values, _READERS)
    start, end = read["start_s"], read["end_s"]
    wrong = [
        f"{name} is {texts[name]!r}, and the name is {texts['name']!r}"
        for name in ("kind", "unit", "microbatch", "turn")
        if read[name] != getattr(read["name"], name)
    ]
    if end < start:
        wrong.append(f"end_s is {texts['end_s']!r}, before start_s {texts['start_s']!r}")
    if read["host_bytes"] and end == start:
        wrong.append(f"host_bytes is {texts['host_bytes']!r}, moved in no time")
    if wrong:
        raise ValueError(f"{where}: {wrong[0]}")
    return Event(
        texts["name"], texts["kind"], read["unit"], read["microbatch"], 0, texts["lane"], 0,
        start, end, read["host_bytes"],
    )  # fmt: skip


def _contradiction(step: Lanes) -> str:
    """Contradiction of the rows among each other or with the head; empty where they agree."""
    compute = step.of_lane(COMPUTE)
    if not compute:
        return f"lane is never {COMPUTE!r}, and every step computes"
    first = min(event.start_s for event in compute)
    if first != 0:
        return f"start_s of the first compute action is {first}; times count from it"
    busy = sum(event.end_s - event.start_s for event in compute)
    if busy > step.step_seconds * (1 + AGREE):
        return f"step_seconds is {step.step_seconds}, and compute alone takes {busy:.6g} s"
    return ""


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        raise ValueError("it must begin with a date such as 2026-11-21") from None


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("it must be a whole number, not negative")
    return int(text)


def _lane(text: str) -> str:
    if lane_kind(text) not in LANES:
        raise ValueError(f"lanes are {', '.join(LANES)}")
    return text


_HEAD_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("case", "key", "commit", "hardware"), sheet.some),
    "method": lambda text: sheet.method_of(LABELS)(text) and text,
    "started": _day,
    "step_seconds": sheet.positive,
    **dict.fromkeys(("layers", "batch"), sheet.count),
    **dict.fromkeys(
        ("clip", "device_cap_gib", "host_memory_bytes_per_s"), sheet.or_none(sheet.positive)
    ),
}
_READERS: dict[str, Callable[[str], Any]] = {
    "lane": _lane,
    "kind": sheet.some,
    **dict.fromkeys(("unit", "turn", "host_bytes"), _whole),
    "microbatch": sheet.or_none(_whole),
    "name": parse_name,
    **dict.fromkeys(("start_s", "end_s"), sheet.number),
}
