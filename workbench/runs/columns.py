"""Fields of records for people who look at many records: words, units, cells.

Text in records comes from logs and specs. Here it loses the characters that act instead of showing,
and becomes one line; the code that puts it into a page escapes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from workbench.core.bytesize import format_bytes
from workbench.core.methods import METHODS, UNLISTED, known
from workbench.core.readable import format_seconds
from workbench.runs.log_tail import printable

Row = dict[str, Any]
"""A record as `runs.index.Index.rows` gives it."""


class Ending(NamedTuple):
    """How a status is shown: in words, with a sign, and in drawings by a marker of matplotlib's,
    strokes without an area, which no value's mark is."""

    words: str
    sign: str
    marker: Any


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
    "key": "run", "step_seconds": "step time", "samples_per_second": "throughput",
    "final_loss": "last loss", "seconds": "whole run", "seq": "sequence length",
    "link_bytes_per_s": "link speed", "microbatches": "micro-batches",
    "hidden": "hidden size", "heads": "attention heads", "vocab": "vocabulary",
    "lr": "learning rate", "device_class": "machine", "asked_window": "window asked for",
    "asked_resident": "resident asked for", "has_timeline": "timeline",
    "moved_p2p_bytes": "moved in messages", "moved_all_reduced_bytes": "moved in sums of devices",
}  # fmt: skip
UNITS = {
    "link_bytes_per_s": "B/s", "samples_per_second": "samples/s", "final_loss": "nats/token",
    "seconds": "s", "held_out_loss": "nats", "held_out_exact": "%", "held_out_f1": "%",
}  # fmt: skip
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
    r"step_seconds|samples_per_second|final_loss|held_out_\w+|seconds|steps_done|skipped_steps"
    r"|(?:peak|moved)_\w+_bytes"
)


class Column(NamedTuple):
    """A column of the table of records."""

    name: str
    kind: str
    """``number``, ``time`` (seconds since 1970 when drawn) or ``text``."""
    values: int
    """How many different ones there are."""

    @property
    def varies(self) -> bool:
        """Whether records differ in it."""
        return self.values > 1

    @property
    def label(self) -> str:
        """Its name in words, without its unit."""
        return label(self.name)


def label(name: str) -> str:
    """The field in words, without its unit."""
    if name.startswith("predicted_") and name not in LABELS:
        return f"predicted {label(name.removeprefix('predicted_'))}"
    words = LABELS.get(name) or re.sub(r"_(?:bytes|seconds)$", "", name).replace("_", " ")
    return plain(words)


def unit(name: str) -> str:
    """The unit in which records hold the field: ``B``, ``s``, ``B/s``, ...; empty for none."""
    if name.endswith(("_bytes", "_memory")):
        return "B"
    return UNITS.get(name, "s" if name.endswith("_seconds") else "")


def is_result(name: str) -> bool:
    """Whether the field is a result of a run; a failed run has no honest value of it."""
    return _RESULT.fullmatch(name) is not None


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


def find_fields(rows: Iterable[Row]) -> dict[str, Column]:
    """Name -> all single-valued fields of the rows, those that vary first, well-known ones before
    others."""
    seen: dict[str, set[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if not isinstance(value, list | dict):
                # What is not equal to itself is not a number, and all such are one value.
                seen.setdefault(name, set()).add(value if value == value else "nan")
    first = ["method", *FIRST_SETTINGS, "status", "source", *FIRST_RESULTS, *seen]
    rank = {name: place for place, name in enumerate(dict.fromkeys(first))}
    found = {}
    for name in sorted(seen.keys() - NOT_SHOWN, key=lambda n: (len(seen[n]) < 2, rank[n])):
        # JSON writes numbers that are not finite as text.
        held = [v for v in seen[name] if v not in (None, "nan", "inf", "-inf")]
        numeric = held and all(type(v) in (int, float) for v in held)
        kind = "time" if name == "started" else "number" if numeric else "text"
        found[name] = Column(name=name, kind=kind, values=len(seen[name]))
    return found


def plain(text: Any, most: int = 200) -> str:
    """Any value as one line of visible text: no control, formatting or half characters.

    >>> plain("a" + chr(27) + "[31mred" + chr(0) + chr(10) + "b")
    'ared b'
    """
    words = printable(" ".join(str(text)[: 4 * most].split()))
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
    if kind in ("B", "B/s"):
        return f"{format_bytes(finite)}{kind[1:]}"
    if kind == "s":
        return format_seconds(finite)
    return f"{int(finite):,}" if finite.is_integer() else f"{finite:.4g} {kind}".rstrip()


def label_of(method: Any) -> str:
    """A method's name as figures write it."""
    found = METHODS.get(method) or (known() | UNLISTED).get(method)
    return found.label if found else plain(method, 60)


def column(name: str, rows: Iterable[Row], *, numeric: bool) -> tuple[str, list[Any]]:
    """(title, a cell a row) of a column of one unit: numbers stay numbers, to be compared; "" for
    none."""
    values = [row.get(name) for row in rows]
    if not numeric:
        return label(name), [cell(name, value) for value in values]
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


def described(row: Mapping[str, Any]) -> str:
    """A record in a few words: what it is, and how it ended."""
    asked = [("layers", "{} layers"), ("batch", "batch {}"), ("window", "window {}")]
    words = [form.format(plain(row[n], 40)) for n, form in asked if row.get(n) is not None]
    told = ", ".join([label_of(row.get("method")), *words, cell("status", row.get("status"))])
    return f"{plain(row.get('key', ''), 40)}: {told}"
