"""Fields of records for people who look at many records: words, units, cells.

Text in records comes from logs and specs. Here it loses the characters that act instead of showing,
and becomes one line; the code that puts it into a page escapes it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workbench.core.bytesize import format_bytes
from workbench.core.methods import known
from workbench.runs.overrides import hints
from workbench.runs.progress import format_seconds

Row = dict[str, Any]
"""A record as `runs.index.Index.rows` gives it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a status is shown, in text and in drawings."""

    words: str
    sign: str
    marker: Any
    """Marker of matplotlib: strokes without an area, which no value's mark is."""


ENDINGS = {
    "ok": Ending("finished", "\u2713", "o"),
    "oom_device": Ending("out of device memory", "\u2715", "x"),
    "oom_host": Ending("out of host memory", "+", "+"),
    "oom_disk": Ending("out of disk", "\u2731", (8, 2, 0)),
    "timeout": Ending("timed out", "\u2026", "1"),
    "cancelled": Ending("cancelled", "\u2212", "_"),
    "diverged": Ending("diverged", "\u2197", "2"),
    "error": Ending("failed", "!", "4"),
}

LABELS = {
    "key": "run",
    "method": "method",
    "step_seconds": "step time",
    "samples_per_second": "throughput",
    "final_loss": "last loss",
    "seconds": "whole run",
    "predicted_step_seconds": "predicted step time",
    "link_bytes_per_s": "link speed",
    "seq": "sequence length",
    "hidden": "hidden size",
    "heads": "attention heads",
    "vocab": "vocabulary",
    "lr": "learning rate",
    "device_class": "machine",
    "asked_window": "window asked for",
    "asked_resident": "resident asked for",
    "has_timeline": "timeline",
}
NOT_SHOWN = frozenset({"predicted_settings", "losses", "all_step_seconds"})
"""Fields that are no single value."""
SENTENCES = frozenset({"key", "message", "notes", "predicted_binding", "commit", "config_digest"})
"""Fields that name or explain one record: for the table, not for an axis."""
FIRST_SETTINGS = (
    "layers", "hidden", "batch", "microbatches", "seq", "window", "resident", "device_memory",
    "host_memory", "activations", "dtype", "steps", "device_class",
)  # fmt: skip
FIRST_RESULTS = (
    "step_seconds", "samples_per_second", "final_loss", "peak_device_bytes", "peak_host_bytes",
)  # fmt: skip
"""First columns of the table and first choices of a plot, where they vary."""

_RESULT = re.compile(
    r"step_seconds|samples_per_second|final_loss|seconds|steps_done|skipped_steps"
    r"|(?:peak|moved)_\w+_bytes"
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A column of the table of records."""

    name: str
    kind: str
    """``number``, ``time`` (seconds since 1970 when drawn) or ``text``."""
    values: int
    """How many different ones there are."""

    @property
    def varies(self) -> bool:
        return self.values > 1

    @property
    def label(self) -> str:
        return label(self.name)


def label(name: str) -> str:
    """The field in words, without its unit."""
    words = LABELS.get(name) or re.sub(r"_(?:bytes|seconds)$", "", name).replace("_", " ")
    return plain(words)


def unit(name: str) -> str:
    """The unit in which records hold the field: ``B``, ``s``, ``B/s``, ...; empty for none."""
    if name.endswith(("_bytes", "_memory")):
        return "B"
    if name == "link_bytes_per_s":
        return "B/s"
    if name == "samples_per_second":
        return "samples/s"
    if name == "final_loss":
        return "nats/token"
    return "s" if name == "seconds" or name.endswith("_seconds") else ""


def is_result(name: str) -> bool:
    """Whether the field is a result of a run; a failed run has no honest value of it."""
    return _RESULT.fullmatch(name) is not None


def settings() -> frozenset[str]:
    """Fields that somebody chose before the run."""
    return frozenset(hints())


def number(value: Any) -> float | None:
    """The value where it is a number and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def moment(text: Any) -> float | None:
    """Seconds since 1970 of an ISO 8601 time."""
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def find_fields(rows: Iterable[Row]) -> list[Field]:
    """All single-valued fields of the rows, those that vary first, well-known ones before others.

    What a run took from its planner counts by its values, like what somebody asked for.
    """
    seen: dict[str, set[Any]] = {}
    broken = set(NOT_SHOWN)
    for row in rows:
        for name, value in row.items():
            if name in broken:
                continue
            if name not in seen:
                seen[name] = set()
            try:  # what is not equal to itself is not a number, and all such are one value
                seen[name].add(value if value == value else "nan")
            except TypeError:  # a list or a dictionary
                broken.add(name)
    first = ["method", *FIRST_SETTINGS, "status", "source", *FIRST_RESULTS]
    rank = {name: place for place, name in enumerate(first)}
    found = []
    for place, (name, values) in enumerate(seen.items()):
        if name in broken:
            continue
        held = [value for value in values if value is not None]
        kind = "time" if name == "started" else "number" if _numeric(held) else "text"
        field = Field(name=name, kind=kind, values=len(values))
        found.append((not field.varies, rank.get(name, len(rank) + place), field))
    return [field for *_, field in sorted(found, key=lambda item: item[:2])]


def _numeric(values: list[Any]) -> bool:
    """Whether the field is one of numbers; JSON writes those that are not finite as text."""
    good = [v for v in values if v not in ("nan", "inf", "-inf")]
    return bool(good) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in good)


def plain(text: Any, most: int = 200) -> str:
    """Any value as one line of visible text: no control, formatting or half characters.

    >>> plain("a" + chr(27) + "[31mred" + chr(0) + chr(10) + "b")
    'ared b'
    """
    words = str(text)[: 4 * most]
    if len(words) <= most and words.isprintable():
        return words
    words = _ESCAPES.sub("", words)
    words = re.sub(r"[\t\r\n\x0b\x0c]+", " ", words)
    words = "".join(c for c in words if unicodedata.category(c)[0] != "C")
    return words if len(words) <= most else words[: most - 1] + "\u2026"


def cell(name: str, value: Any) -> str:
    """A value with its unit, as a table shows it; empty for none."""
    if value is None:
        return ""
    if name == "method":
        return label_of(value)
    if name == "status":
        ending = ENDINGS.get(value)
        return f"{ending.sign} {ending.words}" if ending else plain(value)
    if name == "started" and moment(value) is not None:
        return datetime.fromtimestamp(moment(value), UTC).strftime("%Y-%m-%d %H:%M")
    if isinstance(value, bool):
        return "yes" if value else "no"
    finite = number(value)
    if finite is None:
        return plain(value, 60)
    kind = unit(name)
    if kind == "B":
        return format_bytes(finite)
    if kind == "B/s":
        return f"{format_bytes(finite)}/s"
    if kind == "s":
        return format_seconds(finite)
    if finite.is_integer() and abs(finite) < 1e15:
        return f"{int(finite)}" if abs(finite) < 1e6 else f"{int(finite):,}"
    return f"{finite:.4g}"


def label_of(method: Any) -> str:
    """A method's name as figures write it."""
    found = known().get(method)
    return found.label if found else plain(method, 60)


def column(name: str, rows: Iterable[Row], *, numeric: bool) -> tuple[str, list[Any]]:
    """(title, a cell a row) of a column of one unit: numbers stay numbers, to be compared; "" for
    none."""
    values = [row.get(name) for row in rows]
    if not numeric:
        cells = {value: cell(name, value) for value in set(values)}
        return label(name), [cells[value] for value in values]
    found = [number(value) for value in values]
    factor, words = scaled(name, max((abs(v) for v in found if v is not None), default=0.0))
    shown = ["" if v is None else float(f"{v * factor:.5g}") for v in found]
    return f"{label(name)} ({words})" if words else label(name), shown


def scaled(name: str, largest: float) -> tuple[float, str]:
    """(factor, unit) in which an axis up to `largest` is easy to read."""
    kind = unit(name)
    if kind in ("B", "B/s"):
        for power, prefix in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
            if largest >= 2**power:
                return 2.0**-power, f"{prefix}{kind}"
    if kind == "s" and 0 < largest < 1:
        return (1e3, "ms") if largest >= 1e-3 else (1e6, "us")
    return 1.0, kind


def sort_key(value: Any) -> tuple[int, float, str]:
    """Sort key of values of any type."""
    finite = number(value)
    if finite is not None:
        return 0, finite, ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value).lower())


def described(row: Mapping[str, Any]) -> str:
    """A record in a few words, for a list of choices: what it is, and how it ended."""
    parts = [
        label_of(row.get("method")),
        f"{row.get('layers', '?')} layers",
        f"batch {row.get('batch', '?')}",
    ]
    if row.get("window") is not None:
        parts.append(f"window {row['window']}")
    words = ", ".join(plain(part, 40) for part in parts)
    return f"{plain(row.get('key', ''), 40)}: {words}, {cell('status', row.get('status'))}"
