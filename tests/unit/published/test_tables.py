"""The published values are the ones of the artifact, and say what they are worth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from workbench.core.methods import METHODS
from workbench.core.model_spec import ModelSpec
from workbench.published.tables import published

LABELS = {method.label: name for name, method in METHODS.items()}
TABLE = published()


def reference_rows(folder: Path, name: str) -> pd.DataFrame:
    table = pd.read_csv(folder / "stronghold" / name, dtype={"figure": str, "window": "Int64"})
    return table.assign(method=table["method"].map(LABELS))


def test_every_value_of_the_readme_tables_is_there(reference: Path) -> None:
    theirs = reference_rows(reference, "published.csv")
    ours = TABLE[TABLE["origin"] == "README table"]
    keys = ["figure", "method", "layers", "value"]
    pairs = [
        sorted(map(tuple, table[[*keys, "pair"]].fillna("").to_numpy().tolist()))
        for table in (ours, theirs.assign(pair=theirs["pair"].map(LABELS)))
    ]
    assert pairs[0] == pairs[1]


def test_times_are_the_medians_of_the_logs(reference: Path) -> None:
    runs = reference_rows(reference, "runs.csv")
    logs = TABLE[(TABLE["origin"] == "artifact log") & (TABLE["figure"] != "memory")]
    assert len(logs) == 8 + 5 + 9 + 8 + 1
    for row in logs.itertuples():
        same = runs[(runs["method"] == row.method) & (runs["layers"] == row.layers)]
        if row.method == "stronghold":
            same = same[same["window"] == row.window]
        (median_ms,) = same["median_ms"]
        value = row.value if row.unit == "ms" else 4000 / row.value
        assert value == pytest.approx(median_ms, rel=1e-3)


def test_memory_of_every_run_is_there(reference: Path) -> None:
    runs = reference_rows(reference, "runs.csv")
    columns = {
        "allocated": "mem_alloc_mib",
        "max allocated": "mem_max_alloc_mib",
        "reserved": "mem_reserved_mib",
        "max reserved": "mem_max_reserved_mib",
    }
    memory = TABLE[TABLE["figure"] == "memory"]
    assert len(memory) == len(runs) * len(columns)
    for statistic, column in columns.items():
        ours = memory[memory["statistic"] == statistic]["value"]
        assert sorted(ours) == sorted(runs[column])


def test_the_series_of_8b_and_9_are_whole() -> None:
    deep = TABLE[TABLE["figure"] == "8b"]
    wide = TABLE[TABLE["figure"] == "9"]
    assert deep["layers"].tolist() == [16, 24, 32, 40, 48, 56, 64, 78, 92]
    assert wide["window"].tolist() == [2, 4, 6, 8, 10, 12, 14, 15]
    assert set(deep["window"]) == {15}
    assert set(wide["layers"]) == {32}


def test_published_sizes_follow_from_the_layers() -> None:
    sizes = TABLE[TABLE["figure"] == "6a"]
    for row in sizes.itertuples():
        assert ModelSpec(layers=row.layers).parameters / 1e9 == pytest.approx(row.value, abs=5e-4)


def test_every_unsound_value_says_why() -> None:
    figures = TABLE[TABLE["figure"] != "memory"]
    assert (figures[~figures["sound"]]["note"] != "").all()
    assert set(figures[~figures["sound"]]["method"]) == {"l2l", "stronghold"}
    trained = figures[figures["method"].isin(["megatron-lm", "zero-offload", "zero-infinity"])]
    assert trained["sound"].all()
