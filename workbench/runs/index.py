"""An index of a results folder: ten thousand records listed at once, and again after a change.

A list of runs needs no series, and parsing them is what makes `Store.table` slow. The index keeps a
flat row a record and looks at the folder with ``scandir`` and ``stat`` only; it reads a
``record.json`` when its modification time, size or inode is one it has not read.

``RESULTS/.index.sqlite`` keeps, for the next process, each record without its series. It is never
the truth. An entry carries a seal over the folder's name, the stamp of the record.json it was read
from, and its own bytes: what is torn, forged by a crash, of an earlier record or of another version
of this file does not match, and the record is parsed instead. A file that cannot be read at all is
removed, one that cannot be written is done without. Rows are not kept there but made from the
entries by the running code, so that there are none of yesterday's columns.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.runs.record import SCHEMA, RunRecord, steady_step_seconds
from workbench.runs.store import RECORD, Store, read_record, row

if TYPE_CHECKING:
    import pandas

CACHE = ".index.sqlite"
FORMAT = 1
"""Of an entry in the cache; another number when `_without_series` keeps other things."""

SERIES = ("losses", "all_step_seconds")
"""Columns of `store.row` that a row here does not have."""

SETTLED_NS = 100_000_000
"""A file this long unchanged gets another modification time with its next change: file systems
count time in ticks of some milliseconds. A younger one is read again at the next look."""

AT_ONCE = 250
"""Records between two visits to the cache, so that a rebuild that is killed has kept most of it."""

WAIT_SECONDS = 0.2
"""For another process that writes the cache. Then this look does without it."""

UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What making a row of any JSON that calls itself a record may raise."""

Stamp = tuple[int, int, int]
"""Modification time in ns, size in bytes, inode."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of one record.json. Ten thousand share a few tuples of names."""

    stamp: Stamp | None
    """None where the system would not let it be read: it is tried again at each look."""
    settled: bool
    timeline: bool
    started: str = ""
    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    problem: str | None = None


class Index:
    """Rows of all records in a store. Made at once; the first look at the folder comes with
    `refresh`, `rows` or `table`.

    Any thread may call it: one look is made at a time, and `rows` waits for none but the first.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.problems: dict[Path, str] = {}
        """Records that cannot be used, and why, as of the last look; as `Store.problems`."""
        self.pending = 0
        """Records that the last look found and had no time left to read."""
        self._entries: dict[str, _Entry] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._looking = threading.Lock()
        self._looked = self._pruned = False

    def rows(self) -> list[dict[str, Any]]:
        """A row a record as of the last look, oldest first: `store.row` without `SERIES`, and

        * ``steps_done``: steps that have a loss; ``steps`` are the ones asked for,
        * ``skipped_steps``: how many were left out because a gradient was not finite,
        * ``has_timeline``: whether the run's folder holds a ``timeline.json``.

        Text in it comes from logs and specs: it is data, for whoever shows it to escape.
        """
        if not self._looked:
            self.refresh()
        usable = [(e.started, key, e) for key, e in list(self._entries.items()) if not e.problem]
        return [
            {**dict(zip(entry.names, entry.values, strict=True)), "has_timeline": entry.timeline}
            for _, _, entry in sorted(usable, key=lambda item: item[:2])
        ]

    def table(self) -> pandas.DataFrame:
        """`rows` as a table."""
        import pandas

        return pandas.DataFrame(self.rows())

    def refresh(self, limit_seconds: float | None = None) -> set[str]:
        """Look at the folder; the keys whose row is new, other or gone since the last look.

        Nothing is parsed but what changed. With `limit_seconds`, no further record is begun after
        that time, and `pending` says how many are left for the next call; the newest come first,
        and each call reads at least one. A record that changed and is still to be read has no row.
        """
        until = math.inf if limit_seconds is None else time.monotonic() + limit_seconds
        with self._looking:
            before, entries = self._entries.copy(), self._entries
            seen, problems = self._scan()
            for key in entries.keys() - seen.keys():
                del entries[key]
            wanted = []
            for key, (stamp, timeline) in seen.items():
                entry = entries.get(key)
                if entry is None or entry.stamp != stamp or not entry.settled:
                    wanted.append(key)
                    if entry is not None and entry.stamp != stamp:
                        del entries[key]
                elif entry.timeline != timeline:
                    entries[key] = _with_timeline(entry, timeline)
            wanted.sort(key=lambda key: seen[key][0], reverse=True)
            if wanted:
                with closing(_Cache(self.store.root / CACHE)) as cache:
                    self._read(wanted, seen, cache, until)
            self.pending = sum(key not in entries for key in wanted)
            for key, entry in entries.items():
                if entry.problem:
                    problems[self.store.folder(key) / RECORD] = entry.problem
            self.problems = problems
            self._looked = True
            keys = before.keys() | entries.keys()
            return {key for key in keys if before.get(key) != entries.get(key)}

    def _scan(self) -> tuple[dict[str, tuple[Stamp, bool]], dict[Path, str]]:
        """Folders with a record: its stamp, and whether there is a timeline; what hides itself."""
        seen: dict[str, tuple[Stamp, bool]] = {}
        problems: dict[Path, str] = {}
        runs = str(self.store.runs)
        try:
            keys = os.listdir(runs)
        except (FileNotFoundError, NotADirectoryError):
            return seen, problems
        except OSError as error:
            return seen, {self.store.runs: str(error)}
        for key in keys:
            path = f"{runs}/{key}/{RECORD}"
            try:
                facts = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                problems[Path(path)] = str(error)
                continue
            if not stat.S_ISREG(facts.st_mode):  # to open a pipe would wait for ever
                problems[Path(path)] = "not a run record: it is not a file"
                continue
            seen[key] = (_stamp(facts), os.path.exists(f"{runs}/{key}/timeline.json"))
        return seen, problems

    def _read(
        self,
        wanted: list[str],
        seen: dict[str, tuple[Stamp, bool]],
        cache: _Cache,
        until: float,
    ) -> None:
        """Make entries of `wanted`, from the cache or else from the records, until the time."""
        shared: dict[str, str] = {}
        for start in range(0, len(wanted), AT_ONCE):
            keys = wanted[start : start + AT_ONCE]
            kept = cache.read({key: seen[key][0] for key in keys})
            parsed = []
            for number, key in enumerate(keys, start):
                if number and time.monotonic() >= until:
                    cache.write(parsed)
                    return
                stamp, timeline = seen[key]
                entry = self._entry(kept[key], stamp, timeline, shared) if key in kept else None
                if entry is None:
                    entry, text = self._parse(key, timeline, shared)
                    if text is not None:
                        parsed.append((key, entry.stamp, text))
                if entry is None:  # gone, or being written: the next look sees what it is then
                    self._entries.pop(key, None)
                else:
                    self._entries[key] = entry
            cache.write(parsed)
        if not self._pruned:
            cache.keep_only(seen.keys())
            self._pruned = True

    def _entry(
        self, text: bytes, stamp: Stamp, timeline: bool, shared: dict[str, str]
    ) -> _Entry | None:
        """The entry of a cached record, or None where this version makes nothing of it."""
        try:
            started, columns = _columns(text)
        except UNREADABLE:
            return None
        names = tuple(columns)
        values = (shared.setdefault(v, v) if type(v) is str else v for v in columns.values())
        return _Entry(
            stamp=stamp,
            settled=True,
            timeline=timeline,
            started=started,
            names=self._names.setdefault(names, names),
            values=tuple(values),
        )

    def _parse(
        self, key: str, timeline: bool, shared: dict[str, str]
    ) -> tuple[_Entry | None, bytes | None]:
        """The entry of a record.json and, where it may be cached, the text for it."""
        path = self.store.folder(key) / RECORD
        try:
            stamp = _stamp(path.stat())
            settled = not 0 <= time.time_ns() - stamp[0] < SETTLED_NS
            try:
                text = _without_series(read_record(path))
                started, columns = _columns(text)
            finally:
                if _stamp(path.stat()) != stamp:
                    return None, None
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return _Entry(stamp=None, settled=False, timeline=timeline, problem=str(error)), None
        except UNREADABLE as error:
            problem = str(error) or type(error).__name__
            return _Entry(stamp=stamp, settled=settled, timeline=timeline, problem=problem), None
