"""The index: the store's own table, quickly, whatever becomes of the records."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runs.index.parts import (
    FACTS,
    HOSTILE,
    assert_is_table_of,
    put,
    record,
    settle,
    various,
)
from workbench.core.record import RunRecord
from workbench.core.sealed import read_sealed, sealed
from workbench.runs import index as index_module
from workbench.runs.index import SERIES, Index
from workbench.runs.store import Store


def test_rows_are_those_of_the_store_parsed_or_from_the_cache(
    filled: Store, parsed: list[str]
) -> None:
    index = Index(filled)
    assert_is_table_of(index, filled)
    assert sorted(parsed) == sorted(one.key for one in various())
    assert not set(SERIES) & set(index.table().columns)

    parsed.clear()
    again = Index(filled)
    assert_is_table_of(again, filled)
    assert parsed == []
    assert repr(again.rows()) == repr(index.rows())  # nan is not equal to itself
    for row in again.rows():
        row.clear()  # they are the caller's
    assert_is_table_of(again, filled)


def test_rows_say_how_far_a_run_came(filled: Store) -> None:
    (filled.folder("early") / "timeline.json").touch()
    rows = {row["key"]: row for row in Index(filled).rows()}

    assert [rows["plain"][name] for name in FACTS] == [3, 1, False]
    assert [rows["early"][name] for name in FACTS] == [3, 1, True]
    assert rows["failed"]["steps_done"] == 0
    assert rows["failed"]["message"] == HOSTILE


def test_an_index_of_nothing_touches_nothing(store: Store) -> None:
    index = Index(store)
    assert index.refresh() == set()
    assert index.rows() == []
    assert index.table().empty
    assert not store.root.exists()
    store.root.mkdir()
    store.runs.write_text("not a folder")
    assert index.refresh() == set()


# -- changes -----------------------------------------------------------------------------------
def test_a_look_reads_what_changed_and_nothing_else(filled: Store, parsed: list[str]) -> None:
    index = Index(filled)
    assert index.refresh() == {one.key for one in various()}
    parsed.clear()
    assert index.refresh() == set()
    assert parsed == []

    put(filled, record("new", started="2024"))
    put(filled, record("plain", status="oom_host"))
    shutil.rmtree(filled.folder("early"))
    (filled.folder("failed") / "record.json").unlink()
    (filled.folder("diverged") / "timeline.json").touch()
    (filled.folder("begun")).mkdir()
    (filled.runs / "stray.txt").touch()

    assert index.refresh() == {"new", "plain", "early", "failed", "diverged"}
    assert sorted(parsed) == ["new", "plain"]
    assert_is_table_of(index, filled)
    assert [row["key"] for row in index.rows() if row["has_timeline"]] == ["diverged"]
    assert index.refresh() == set()


def test_a_cached_record_counts_only_for_the_very_file_it_was_read_from(
    filled: Store, parsed: list[str]
) -> None:
    Index(filled).refresh()
    path = filled.folder("plain") / "record.json"
    stat = path.stat()
    other = path.with_name("other")
    text = filled.find("plain").to_json().replace('"ok"', '"error"').replace("abc", "")
    other.write_bytes(sealed(text))
    assert other.stat().st_size == stat.st_size
    os.utime(other, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    other.rename(path)  # the same time and size: only the inode differs
    parsed.clear()

    fresh = Index(filled)
    assert fresh.refresh() == {one.key for one in various()}
    assert parsed == ["plain"]
    assert {row["status"] for row in fresh.rows() if row["key"] == "plain"} == {"error"}


def test_a_record_replaced_while_it_is_read_is_read_again(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = index_module.read_record

    def read(path: Path) -> RunRecord:
        found = real(path)
        if path.parent.name == "plain" and found.status == "ok":
            put(filled, replace(found, status="oom_disk"))
        return found

    monkeypatch.setattr(index_module, "read_record", read)
    index = Index(filled)
    assert "plain" not in index.refresh()
    assert index.pending == 1
    assert index.refresh() == {"plain"}
    assert index.pending == 0
    assert_is_table_of(index, filled)


def test_what_was_written_a_moment_ago_is_looked_at_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "SETTLED_NS", 3600 * 10**9)
    path = put(store, record("k"))
    index = Index(store)
    index.refresh()
    stat = path.stat()
    text = record("k").to_json().replace("2026-01-01", "2026-02-02")
    path.write_bytes(sealed(text))  # within one clock tick
    os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))

    assert Index(store).rows()[0]["started"] == "2026-02-02"
    assert index.refresh() == {"k"}
    assert index.rows()[0]["started"] == "2026-02-02"
    assert index.refresh() == set()


def test_a_rebuild_goes_in_steps_the_newest_first(store: Store, parsed: list[str]) -> None:
    keys = [f"{number:04}" for number in range(120)]
    for number, key in enumerate(keys):
        path = put(store, record(key))
        os.utime(path, ns=(10**18 + number, 10**18 + number))
    for cached in (False, True):
        parsed.clear()
        index = Index(store)
        steps = [index.refresh(limit_seconds=0)]
        assert [row["key"] for row in index.rows()] == sorted(steps[0])
        while index.pending:
            steps.append(index.refresh(limit_seconds=0))
            assert len(index.rows()) + index.pending == 120
        assert [len(step) for step in steps] == [50, 50, 20]
        assert steps[0] == set(keys[-50:])
        assert parsed == ([] if cached else keys[::-1])
        assert_is_table_of(index, store)
        assert index.refresh(limit_seconds=0) == set()


def test_a_record_that_changed_has_no_row_until_it_is_read(store: Store) -> None:
    for number in range(60):
        put(store, record(f"{number}"))
    index = Index(store)
    index.refresh()
    for number in range(60):
        put(store, record(f"{number}", status="diverged"))
    assert index.refresh(limit_seconds=0) == {f"{number}" for number in range(60)}
    assert index.pending == 10
    assert {row["status"] for row in index.rows()} == {"diverged"}
    assert len(index.rows()) == 50


def test_threads_may_share_an_index(filled: Store) -> None:
    index = Index(filled)
    failures = []

    def use() -> None:
        try:
            for _ in range(30):
                index.refresh()
                index.rows()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(20):
        put(filled, record("plain", seconds=float(number)))
    for thread in threads:
        thread.join()
    assert failures == []
    index.refresh()
    assert_is_table_of(index, filled)


# -- records that are none ---------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 99}',
        '{"schema": 1, "key": "k"}',
        "\x00\xff" * 100,
        record("k").to_json()[:-40],
        record("k").to_json().replace('"ok"', '"fine"'),
        record("other").to_json(),
        record("k").to_json().replace('"schema": 2', '"schema": 3, "more": [1]'),
    ],
)
def test_problems_are_those_of_the_store(filled: Store, text: str) -> None:
    index = Index(filled)
    index.refresh()
    path = put(filled, record("k"))
    assert index.refresh() == {"k"}
    path.write_text(text, encoding="latin-1")
    settle(path)

    assert index.refresh() == {"k"}
    assert_is_table_of(index, filled)
    assert list(index.problems) == [path]
    assert index.refresh() == set()
    assert_is_table_of(Index(filled), filled)

    put(filled, record("k"))
    assert index.refresh() == {"k"}
    assert index.problems == {}
    path.unlink()
    assert index.refresh() == {"k"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spec", [1]),
        ("spec", {"model": 3}),
        ("peak_bytes", [1]),
        ("step_seconds", [None, None, None]),
        ("notes", [1]),
        ("step_seconds", [0, 10**400, 10**400]),
    ],
)
def test_a_record_that_makes_no_row_is_a_problem(filled: Store, name: str, value: object) -> None:
    path = filled.folder("plain") / "record.json"
    path.write_text(json.dumps(read_sealed(path, "it") | {name: value}))
    settle(path)
    for _ in range(2):
        index = Index(filled)
        assert len(index.rows()) == len(various()) - 1
        assert list(index.problems) == [path]
        assert index.problems[path].startswith("not a run record: ")


def test_neither_a_pipe_nor_a_tower_of_brackets_stops_the_index(filled: Store) -> None:
    for key in ("pipe", "tower"):
        filled.folder(key).mkdir()
    os.mkfifo(filled.folder("pipe") / "record.json")
    (filled.folder("tower") / "record.json").write_text("[" * 200_000)
    (filled.runs / "loop").symlink_to(filled.runs / "loop")
    index = Index(filled)
    assert len(index.rows()) == len(various())
    assert {path.parent.name for path in index.problems} == {"pipe", "tower", "loop"}


def test_what_the_system_refused_is_tried_again(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> RunRecord:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "read_record", refuse)
        index = Index(filled)
        assert index.rows() == []
        assert len(index.problems) == len(various())
        assert index.refresh() == set()
    index.refresh()
    assert_is_table_of(index, filled)
