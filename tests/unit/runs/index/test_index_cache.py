"""The cache of the index is never the truth, whatever becomes of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.runs.index.parts import (
    assert_is_table_of,
    put,
    record,
    various,
)
from workbench.runs import index as index_module
from workbench.runs import index_cache
from workbench.runs.index import Index
from workbench.runs.index_cache import CACHE
from workbench.runs.store import Store


def holes(cache: Path) -> None:
    data = bytearray(cache.read_bytes())
    for start in range(1000, len(data), 5000):
        data[start : start + 100] = b"\xa5" * 100
    cache.write_bytes(data)


def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        cache.unlink()
        make(cache)

    return damage


def altered(*statements: str) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        with closing(sqlite3.connect(cache, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return damage


ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS key, i AS seal, i AS text FROM n"
)
DAMAGE = {
    "removed": Path.unlink,
    "empty": replaced(Path.touch),
    "garbage": replaced(lambda cache: cache.write_bytes(b"SQLite format 3\0" * 1000)),
    "a folder": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "holes": holes,
    "swapped": altered(
        "UPDATE records SET text = (SELECT text FROM records r WHERE r.key != records.key LIMIT 1)"
    ),
    "forged": altered("UPDATE records SET text = replace(text, 'ok', 'no')"),
    "of other types": altered("UPDATE records SET text = 1, seal = 'x'"),
    "of another layout": altered("DROP TABLE records", "CREATE TABLE records (key, row)"),
    "an endless view": altered("DROP TABLE records", f"CREATE VIEW records AS {ENDLESS}"),
    "a trigger": altered(
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "DELETE FROM records",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_made_anew_or_done_without(
    filled: Store, parsed: list[str], damage: str
) -> None:
    running = Index(filled)
    running.refresh()
    DAMAGE[damage](filled.root / CACHE)

    assert_is_table_of(Index(filled), filled)
    put(filled, record("plain", status="diverged"))
    put(filled, record("new"))
    assert running.refresh() == {"plain", "new"}
    assert_is_table_of(running, filled)
    assert_is_table_of(Index(filled), filled)
    if damage not in ("a folder", "a pipe"):
        parsed.clear()
        assert_is_table_of(Index(filled), filled)
        assert parsed == []


def test_a_cache_torn_anywhere_makes_no_other_row(filled: Store) -> None:
    for number in range(40):
        put(filled, record(f"{number:02}", seconds=float(number)))
    Index(filled).refresh()
    cache = filled.root / CACHE
    whole = cache.read_bytes()
    expected = repr(Index(filled).rows())
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        cache.write_bytes(whole[:length])
        assert repr(Index(filled).rows()) == expected
        cache.write_bytes(whole[:length] + bytes(len(whole) - length))
        assert repr(Index(filled).rows()) == expected


def test_entries_of_another_version_are_not_taken(
    filled: Store, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index_cache, "FORMAT", -1)
        Index(filled).refresh()
    parsed.clear()
    assert_is_table_of(Index(filled), filled)
    assert sorted(parsed) == sorted(one.key for one in various())


def test_cached_records_get_the_columns_of_the_running_code(
    filled: Store, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Index(filled).refresh()
    parsed.clear()
    row = index_module.row
    monkeypatch.setattr(index_module, "row", lambda one: row(one) | {"host": one.provenance})
    assert all(row["host"]["commit"] == "abc" for row in Index(filled).rows())
    assert parsed == []


def test_the_cache_does_not_lead_out_of_the_results_folder(filled: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    (filled.root / CACHE).symlink_to(outside)
    assert_is_table_of(Index(filled), filled)
    assert outside.read_bytes() == b""


def test_the_cache_forgets_folders_that_are_gone(filled: Store) -> None:
    Index(filled).refresh()
    shutil.rmtree(filled.folder("plain"))
    Index(filled).refresh()
    with closing(sqlite3.connect(filled.root / CACHE)) as db:
        keys = {key.decode() for (key,) in db.execute("SELECT key FROM records")}
    assert keys == {one.key for one in various()} - {"plain"}


def test_nobody_waits_for_a_process_that_holds_the_cache(
    filled: Store, parsed: list[str], monkeypatch: pytest.MonkeyPatch, answered
) -> None:
    Index(filled).refresh()
    with closing(sqlite3.connect(filled.root / CACHE)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        inode = (filled.root / CACHE).stat().st_ino
        connect, waits = sqlite3.connect, []
        ask = lambda path, **how: waits.append(how["timeout"]) or connect(path, **how)  # noqa: E731
        monkeypatch.setattr(sqlite3, "connect", ask)
        with answered("index: a table while another process holds the cache", 2):
            assert_is_table_of(Index(filled), filled)
        assert waits == [index_cache.WAIT_SECONDS], "once for a moment, then without it"
        assert (filled.root / CACHE).stat().st_ino == inode
    parsed.clear()
    assert_is_table_of(Index(filled), filled)
    assert parsed == []
