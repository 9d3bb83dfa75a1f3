"""Records for the tests of the index, and what its table must equal."""

from __future__ import annotations

import os
from pathlib import Path

import pandas

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.runs.index import SERIES, Index
from workbench.runs.store import Store

FACTS = ["steps_done", "skipped_steps", "has_timeline"]
HOSTILE = "</td><script>alert(1)</script>\x1b[2J\x00 '); DROP TABLE records; -- \ud800"


def record(key: str, **changes: object) -> RunRecord:
    values = {
        "key": key,
        "method": "stronghold",
        "status": "ok",
        "spec": RunSpec.of(method="stronghold", window=4).to_dict(),
        "losses": [3.0, 2.75, 2.5],
        "step_seconds": [9.0, 0.5, 0.75],
        "grad_norms": [1.0, None, 2.0],
        "skipped_steps": [1],
        "peak_bytes": {"device": 10, "host": 20, "disk": None},
        "moved_bytes": {"load": 1, "store": 2, "read": 3, "write": 4},
        "predicted": {"step_seconds": 0.4, "peak_bytes": {"device": 11}, "settings": {"slots": 2}},
        "window": 3,
        "engine": "workbench",
        "started": "2026-01-01",
        "provenance": {"commit": "abc", "dirty": False, "device_class": "cpu"},
    }
    return RunRecord(**{**values, **changes})


def various() -> list[RunRecord]:
    full = RunSpec(method="stronghold").to_dict()
    later = {"ranks", "packing", "start_from"}
    return [
        record("plain"),
        record("early", started="2025-12-31", window=None, samples_per_second=5.25),
        record("failed", status="error", losses=[], step_seconds=[], message=HOSTILE),
        record("old", spec={k: v for k, v in full.items() if k not in later}, predicted={}),
        record("diverged", status="diverged", losses=[1.0, float("nan"), float("inf")]),
        record("one-step", losses=[1], step_seconds=[2], notes=["a", HOSTILE], parameters=10**18),
        record("foreign", spec=full | {"key": "other", "new": [1]}),
    ]


def settle(path: Path) -> None:
    """Make a file old enough not to be looked at twice; its time stays as fine as it was."""
    before = path.stat().st_mtime_ns - 10**9
    os.utime(path, ns=(before, before))


def put(store: Store, one: RunRecord) -> Path:
    store.write(one)
    path = store.folder(one.key) / "record.json"
    settle(path)
    return path


def assert_is_table_of(index: Index, store: Store) -> None:
    expected, ours = store.table().drop(columns=list(SERIES)), index.table()
    if not (expected.empty and ours.empty):
        pandas.testing.assert_frame_equal(ours.drop(columns=FACTS), expected)
    assert index.problems == store.problems
