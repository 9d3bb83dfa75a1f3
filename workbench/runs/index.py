"""An index of a results folder: ten thousand records listed at once, and again after a change.

A list of runs needs no series, and parsing them is what makes `Store.table` slow. The index keeps a
flat row a record, looks at the folder by listing it and ``stat`` only, and reads a ``record.json``
when its modification time, size or inode is one that it has not read.

``RESULTS/.index.sqlite`` keeps, for the next process, each record without its series. It is never
the truth (index_cache.py). Rows are not in it: the running code makes them, with its own columns.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.core.record import RunRecord, steady_step_seconds
from workbench.runs.index_cache import CACHE, Cache, Stamp
from workbench.runs.store import RECORD, Store, read_record, row, table_of

if TYPE_CHECKING:
    import pandas

SERIES = ("losses", "all_step_seconds")
"""Columns of `store.row` that a row here does not have."""

AT_ONCE = 50
"""Records between two looks at the clock, and at most lost when a rebuild is killed."""

SETTLED_NS = 100_000_000
"""A file this long unchanged gets another modification time with its next change: file systems
count time in ticks of some milliseconds. A younger one is read again at the next look."""


class _Seen(NamedTuple):
    """Facts of a record that its folder shows without reading it."""

    stamp: Stamp | None
    """None where the system would not let it be read: it is tried again at each look."""
    timeline: bool


Found = dict[str, _Seen]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Columns of one record's row, or the reason why there are none."""

    seen: _Seen
    settled: bool = field(default=True, compare=False)
    started: str = ""
    names: tuple[str, ...] = ()
    """One tuple for all records that have these columns."""
    values: tuple[Any, ...] = ()
    problem: str = ""


class Index:
    """Rows of all records of a store. Making one touches nothing.

    Any thread may use it: one looks at the folder at a time, and `rows` does not wait for it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.problems: dict[Path, str] = {}
        """Records that cannot be used, and why, as of the last look; as in `Store.problems`."""
        self.pending = 0
        """Records that the last look found and did not come to read."""
        self._entries: dict[str, _Entry] = {}
        self._shared: dict[Any, Any] = {}
        """During a look: what many rows have, strings and tuples of names, to be kept once."""
        self._looking = threading.Lock()
        self._looked = self._tidied = False

    def rows(self) -> list[dict[str, Any]]:
        """A row a record, oldest first, as of the last `refresh`; the first call does one.

        A row is `store.row` without `SERIES`, and ``steps_done``: steps that have a loss (``steps``
        are those asked for), ``skipped_steps``: how many were left out because a gradient was not
        finite, ``has_timeline``: whether the run's folder holds a ``timeline.json``.

        Rows may be changed, lists and dicts in them not. Text in them comes from logs and specs: it
        is data, and the code that shows it escapes it.
        """
        if not self._looked:
            self.refresh()
        usable = [(e.started, key, e) for key, e in list(self._entries.items()) if not e.problem]
        return [
            dict(zip(e.names, e.values, strict=True), has_timeline=e.seen.timeline)
            for *_, e in sorted(usable, key=lambda item: item[:2])
        ]

    def table(self) -> pandas.DataFrame:
        """`rows` as a table."""
        return table_of(self.rows())

    def refresh(self, limit_seconds: float | None = None) -> set[str]:
        """Look at the folder; returns the keys of what is new, changed or gone since the last look.

        Only what is new or changed is read, the newest first. With `limit_seconds`, reading stops
        soon after that time, `pending` says how many records are left, and the next call goes on
        with them; each reads some. A record that changed has no row until it is read.
        """
        until = math.inf if limit_seconds is None else time.monotonic() + limit_seconds
        with self._looking:
            self._looked = True
            before = self._entries.copy()
            found, problems = self._scan()
            wanted = self._forget(found)
            if wanted:
                with closing(Cache(self.store.root / CACHE)) as cache:
                    self._read(wanted, found, cache, until)
                self._shared.clear()
            self.pending = sum(key not in self._entries for key in wanted)
            for key, entry in self._entries.items():
                if entry.problem:
                    problems[self.store.folder(key) / RECORD] = entry.problem
            self.problems = problems
            keys = before.keys() | self._entries.keys()
            return {key for key in keys if before.get(key) != self._entries.get(key)}

    def _scan(self) -> tuple[Found, dict[Path, str]]:
        """The records by key, and what cannot even be looked at."""
        found: Found = {}
        problems: dict[Path, str] = {}
        try:
            keys = os.listdir(self.store.runs)
        except (FileNotFoundError, NotADirectoryError):
            return found, problems
        except OSError as error:
            return found, {self.store.runs: str(error)}
        for key in keys:
            folder = f"{self.store.runs}/{key}"
            path = f"{folder}/{RECORD}"
            try:
                facts = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                problems[Path(path)] = str(error)
                continue
            found[key] = _Seen(_stamp(facts), os.path.exists(f"{folder}/timeline.json"))
        return found, problems

    def _forget(self, found: Found) -> list[str]:
        """Drop what is gone or changed; returns the keys to read, the newest first."""
        for key in self._entries.keys() - found.keys():
            del self._entries[key]
        wanted = []
        for key, seen in found.items():
            entry = self._entries.get(key)
            if entry is None or entry.seen.stamp != seen.stamp:
                self._entries.pop(key, None)
                wanted.append(key)
            elif not entry.settled:
                wanted.append(key)
            elif entry.seen != seen:
                self._entries[key] = replace(entry, seen=seen)
        return sorted(wanted, key=lambda key: found[key].stamp, reverse=True)

    def _read(self, wanted: list[str], found: Found, cache: Cache, until: float) -> None:
        """Make the entries of `wanted`, from the cache or else from the records."""
        for start in range(0, len(wanted), AT_ONCE):
            if start and time.monotonic() >= until:
                return
            keys = wanted[start : start + AT_ONCE]
            cached = cache.read({key: found[key].stamp for key in keys})
            parsed: dict[str, tuple[Stamp, bytes]] = {}
            for key in keys:
                entry = None
                if key in cached:
                    entry = self._entry(cached[key], found[key])
                if entry is None:
                    entry, text = self._parse(key, found[key].timeline)
                    if text and entry.settled and not entry.problem:
                        parsed[key] = (entry.seen.stamp, text)
                if entry is None:
                    self._entries.pop(key, None)
                else:
                    self._entries[key] = entry
            cache.write(parsed)
        if not self._tidied:
            cache.keep_only(found)
            self._tidied = True

    def _parse(self, key: str, timeline: bool) -> tuple[_Entry | None, bytes]:
        """The entry of a record.json, and what the cache may keep of it.

        There is neither of a record that was removed or changed meanwhile: the next look will see.
        """
        path = self.store.folder(key) / RECORD
        text = b""
        try:
            seen = _Seen(_stamp(path.stat()), timeline)
            settled = not 0 <= time.time_ns() - seen.stamp[0] < SETTLED_NS
            try:
                text = _without_series(read_record(path))
                entry = replace(self._entry(text, seen), settled=settled)
            except ValueError as error:
                entry = _Entry(seen, settled, problem=str(error))
            return (entry, text) if _stamp(path.stat()) == seen.stamp else (None, b"")
        except FileNotFoundError:
            return None, b""
        except OSError as error:
            return _Entry(_Seen(None, timeline), settled=False, problem=str(error)), b""

    def _entry(self, text: bytes, seen: _Seen) -> _Entry:
        """The entry of a record without its series, which was read before (index_cache.py)."""
        data = json.loads(text)
        record = RunRecord(**data.pop("record"))
        columns = {name: v for name, v in row(record).items() if name not in SERIES} | data
        names, share = tuple(columns), self._shared.setdefault
        values = [share(v, v) if type(v) is str else v for v in columns.values()]
        return _Entry(seen, True, str(record.started), share(names, names), tuple(values))


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _without_series(record: RunRecord) -> bytes:
    """A record as JSON that makes the same row: of losses the last, of step times the steady one.

    The last of one number and the median of one number are that number.
    """
    steady = steady_step_seconds(record.step_seconds)
    short = {
        "losses": record.losses[-1:],
        "step_seconds": [] if steady is None else [steady],
        "grad_norms": [],
        "evaluations": record.evaluations[-1:],
        "skipped_steps": [],
    }
    facts = {"steps_done": len(record.losses), "skipped_steps": len(record.skipped_steps)}
    return json.dumps({"record": vars(record) | short, **facts}).encode()
