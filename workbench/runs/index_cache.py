"""Cache of a results folder's index (index.py) for the next process: texts of records.

A text is sealed together with the key and the stamp of the record.json it is of: what is torn, of
an earlier record or of another format does not match, and the record is parsed instead. A cache
that cannot be read is made anew, one that cannot be written is done without.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.core.record import SCHEMA

CACHE = ".index.sqlite"
TABLE = "CREATE TABLE records (key BLOB PRIMARY KEY, seal BLOB, text BLOB)"
FORMAT = 3
"""Format of an entry in the cache; another number when the index writes another one."""

WAIT_SECONDS = 0.2
"""For another process that writes the cache. Then this look goes on without it."""

NO_FAULT = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
}  # fmt: skip
"""Errors that say nothing against the cache itself; with any other it is made anew."""

Stamp = tuple[int, int, int]
"""State of a file: modification time in ns, size in bytes, inode."""


class Cache:
    """The file between processes, open for one look. Whatever is wrong with it, nothing is raised.

    Each write is one transaction. What a crash leaves half written is found by SQLite or by the
    seals, so nothing waits for the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._remade = False
        self._db: sqlite3.Connection | None = None
        self._open()

    def read(self, wanted: dict[str, Stamp]) -> dict[str, bytes]:
        """Key -> the text written for a record.json of exactly that stamp, where there is one."""
        names = {os.fsencode(key): key for key in wanted}
        marks = ",".join("?" * len(names))
        query = f"SELECT key, seal, text FROM records WHERE key IN ({marks})"
        return {
            names[name]: text
            for name, seal, text in self._do(query, names)
            if name in names  # SQLite may answer anything from a damaged file
            and isinstance(text, bytes)
            and seal == _seal(name, wanted[names[name]], text)
        }

    def write(self, parsed: dict[str, tuple[Stamp, bytes]]) -> None:
        """Add or replace texts, all or none."""
        values: list[bytes] = []
        for key, (stamp, text) in parsed.items():
            name = os.fsencode(key)
            values += (name, _seal(name, stamp, text), text)
        if parsed:
            marks = ",".join(["(?, ?, ?)"] * len(parsed))
            self._do(f"INSERT OR REPLACE INTO records VALUES {marks}", values)

    def keep_only(self, keys: Iterable[str]) -> None:
        """Drop the texts of folders that are gone."""
        kept = {os.fsencode(key) for key in keys}
        gone = [name for (name,) in self._do("SELECT key FROM records") if name not in kept]
        for start in range(0, len(gone), 1000):  # SQLite counts the marks of a statement
            some = gone[start : start + 1000]
            self._do(f"DELETE FROM records WHERE key IN ({','.join('?' * len(some))})", some)

    def close(self) -> None:
        """Close the file; does nothing the second time."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _open(self) -> None:
        if self._path.is_symlink():  # it would lead out of the results folder
            return
        try:
            self._db = sqlite3.connect(self._path, timeout=WAIT_SECONDS, isolation_level=None)
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute(TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
            found = self._db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
            if found != [(TABLE,)]:  # nor any trigger, which would run with each write
                raise sqlite3.DatabaseError("not the table of this index")
        except sqlite3.Error as error:
            self._fail(error)

    def _do(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """The statement, which is a transaction; nothing where that does not work."""
        try:
            return self._db.execute(statement, list(values)).fetchall() if self._db else []
        except sqlite3.Error as error:
            self._fail(error)
            return []

    def _fail(self, error: sqlite3.Error) -> None:
        """Go on without a cache, or with a new one where this one is no good, but only once."""
        self.close()
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF not in NO_FAULT and not self._remade:
            self._remade = True
            with suppress(OSError):
                self._path.unlink()
                self._path.with_name(f"{CACHE}-journal").unlink(missing_ok=True)
                self._open()


def _seal(name: bytes, stamp: Stamp, text: bytes) -> bytes:
    """Seal that binds a text to its folder, to its record.json, and to this format."""
    bound = repr((FORMAT, SCHEMA, name, stamp)).encode()
    return blake2b(bound + b"\n" + text, digest_size=16).digest()
