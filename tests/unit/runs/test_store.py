"""The store: whole records only, nothing lost, and a table of all of them."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.record import BETWEEN, PARTS, RunRecord
from workbench.core.spec import RunSpec
from workbench.runs import store as store_module
from workbench.runs.store import Store, StoreError, row


def record(key: str, **changes: object) -> RunRecord:
    spec = RunSpec.of(method="stronghold", window=4)
    values = {
        "key": key,
        "method": "stronghold",
        "status": "ok",
        "spec": spec.to_dict(),
        "losses": [3.0, 2.5],
        "step_seconds": [9.0, 0.5],
        "peak_bytes": {"device": 10, "host": 20, "disk": None},
        "moved_bytes": {"load": 1, "store": 2, "read": 3, "write": 4},
        "predicted": {"step_seconds": 0.4, "peak_bytes": {"device": 11}, "binding": "compute"},
        "window": 3,
        "started": "2026-01-01",
    }
    return RunRecord(**{**values, **changes})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def test_a_store_touches_nothing_until_it_is_written(store: Store) -> None:
    assert store.records() == []
    assert store.find("nonesuch") is None
    assert store.table().empty
    assert not store.root.exists()


def test_records_come_back_oldest_first(store: Store) -> None:
    later, earlier = record("b", started="2026-02"), record("c", started="2026-01")
    store.write(later)
    store.write(earlier)

    assert store.records() == [earlier, later]
    assert store.find("b") == later
    assert [p.name for p in store.folder("b").iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 99}',
        '{"schema": "one"}',
        '{"schema": 1, "key": "k"}',
        '{"schema": 1, "losses": 3}',
        "\x00\xff" * 100,
        record("k").to_json()[:-40],
        record("k").to_json().replace('"ok"', '"fine"'),
        record("other").to_json(),
        record("k").to_json().replace('"layers"', '"layerc"'),
        record("k").to_json().replace('"batch": 4', '"batch": "4"'),
        record("k").to_json().replace('"method": "stronghold"', '"method": "l2l"', 1),
        record("k", peak_bytes=[]).to_json(),
        record("k", losses=[None]).to_json(),
        record("k", provenance={"cores": None}).to_json(),
        record("k", predicted={"step_seconds": "soon"}).to_json(),
        record("k", predicted={"settings": json.loads("[" * 90 + "]" * 90)}).to_json(),
        record("k").to_json().replace('"key"', '"key": "k", "key"', 1),
    ],
)
def test_what_is_no_record_is_not_done_and_is_never_lost(store: Store, text: str) -> None:
    store.write(record("good"))
    path = store.folder("k") / "record.json"
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")

    assert [found.key for found in store.records()] == ["good"]
    assert store.find("k") is None
    assert list(store.problems) == [path]

    store.write(record("k"))
    assert store.find("k") == record("k")
    assert store.problems == {}
    assert path.with_name("record.json.corrupt-1").read_text(encoding="latin-1") == text


def test_a_record_of_an_older_version_has_the_defaults_of_what_came_since(store: Store) -> None:
    spec = record("k").spec
    old = {name: value for name, value in spec.items() if name not in ("ranks", "packing")}
    store.write(record("k", spec=old | {"went": [1], "status": "mine"}))

    found = store.find("k")
    assert found.spec == spec | {"went": [1], "status": "mine"}
    assert (row(found)["ranks"], row(found)["went"], row(found)["status"]) == (1, [1], "ok")


def test_a_result_is_replaced_in_one_step(store: Store) -> None:
    store.write(record("k"))
    assert store.find("k").status == "ok"
    newer = record("k", status="oom_host", message="no room")
    store.write(newer)

    assert store.find("k") == newer  # though the earlier one is in memory
    assert [path.name for path in store.folder("k").iterdir()] == ["record.json"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_leaves_the_record_that_was_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store.write(record("k"))

    def refuse(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store_module.os, "fsync", refuse)
    with pytest.raises(StoreError, match=os.strerror(number)) as caught:
        store.write(record("k", status="error"))
    assert "\n" not in str(caught.value)
    assert caught.value.errno == number
    monkeypatch.undo()
    assert store.find("k") == record("k")
    assert [path.name for path in store.folder("k").iterdir()] == ["record.json"]


def test_a_record_is_read_once(store: Store, monkeypatch: pytest.MonkeyPatch, answered) -> None:
    many = 10_000 if answered.asked else 20
    for index in range(many):
        store.folder(f"{index}").mkdir(parents=True)
        (store.folder(f"{index}") / "record.json").write_text(record(f"{index}").to_json())
    read, reads = store_module.read_record, []
    monkeypatch.setattr(store_module, "read_record", lambda path: reads.append(path) or read(path))
    with answered("store: 10,000 records read", 5, "process"):
        assert len(store.records()) == len(reads) == many
    with answered("store: a table of 10,000 that have been read", 3, "process"):
        assert len(store.table()) == len(reads) == many


def test_a_row_has_units_in_its_names_and_says_what_was_asked() -> None:
    columns = row(record("k"))

    assert columns["step_seconds"] == 0.5  # the first step warms up
    assert (columns["window"], columns["asked_window"]) == (3, 4)
    assert (columns["layers"], columns["hidden"]) == (16, 2048)
    assert columns["peak_device_bytes"] == 10
    assert columns["moved_write_bytes"] == 4
    assert columns["predicted_step_seconds"] == 0.4
    assert columns["predicted_peak_device_bytes"] == 11
    assert columns["source"] == "measured"
    assert columns["final_loss"] == 2.5
    unfinished = row(replace(record("k"), losses=[], step_seconds=[], status="error"))
    assert unfinished["step_seconds"] is None


def test_numbers_published_here_are_found_by_hardware(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "REPOSITORY_RESULTS", store.root)
    folder = store.root / "published-here" / "h200"
    folder.mkdir(parents=True)
    (folder / "fig8a.csv").write_text("# measured 2026\nmethod,step_seconds\nl2l,0.5\n")

    assert store.published_here().to_dict("records") == [
        {"method": "l2l", "step_seconds": 0.5, "hardware": "h200"}
    ]


def test_records_are_strict_json() -> None:
    text = record("k", losses=[float("nan"), float("inf")]).to_json()

    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert RunRecord.from_json(text).losses[1] == float("inf")


def test_one_bad_folder_costs_one_record(store: Store) -> None:
    """A folder that cannot be read does not hide the other records."""
    good = RunRecord(key="good", method="fake", status="ok", spec=RunSpec(method="fake").to_dict())
    store.write(good)
    broken = {
        "deep": "[" * 100_000,
        "listed": '{"schema": 1, "key": "listed", "method": "x", "status": "ok", "spec": []}',
        "undated": '{"schema": 1, "key": "undated", "method": "x", "status": "ok", "spec": {}, '
        '"started": null}',
    }
    for key, text in broken.items():
        (store.runs / key).mkdir()
        (store.runs / key / "record.json").write_text(text)
    (store.runs / "loop").symlink_to(store.runs / "loop")
    (store.runs / "pipe").mkdir()
    os.mkfifo(store.runs / "pipe" / "record.json")
    (store.runs / "a file").write_text("")
    assert store.table()["key"].tolist() == ["good"]
    assert {path.parent.name for path in store.problems} == {*broken, "loop", "pipe"}


def test_bytes_by_what_they_are_are_columns_and_old_records_have_none() -> None:
    parts = {part: place for place, part in enumerate(PARTS + BETWEEN)}
    made = record("a", moved_parts=parts, predicted={"moved_parts": parts})
    assert RunRecord.from_json(made.to_json()) == made
    columns = row(made)
    for part, nbytes in parts.items():
        assert columns[f"moved_{part}_bytes"] == nbytes
        assert columns[f"predicted_moved_{part}_bytes"] == nbytes
    old = json.loads(record("b").to_json())
    del old["moved_parts"]
    before = RunRecord.from_json(json.dumps(old))
    assert before.moved_parts == {}
    assert not [name for name in row(before) if "weights_in" in name]
