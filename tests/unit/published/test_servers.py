"""Rows measured on servers of several GPUs; how all sheets are read is asked in test_here.py."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.unit.figures.servers import line, runs_of, write
from workbench.published.servers import LABELS, latest, read_servers

GOOD = line("harmony-pp (faithful)", 4, 64, speed=80.0)


def test_a_row_is_read_in_types(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, [GOOD])
    assert (run.method, run.variant) == ("harmony-pp", "faithful")
    assert run.label == "Harmony-PP (faithful)"
    assert (run.ranks, run.layers, run.batch, run.clip) == (4, 48, 64, 1.0)
    assert (run.device_cap_gib, run.host_cap_gib) == (11.0, None)
    assert run.step_seconds_median == pytest.approx(0.8)
    weights = run.parameters * 2 / 2**30
    assert (run.load_gib, run.store_gib) == pytest.approx((2.5 * weights, 1.5 * weights))
    assert run.planned_load_gib == pytest.approx(2.505 * weights)
    assert (run.date, run.hardware) == (date(2026, 11, 21), "Made-up GPU")
    assert (run.device, run.line, run.runs) == ("made-up", 2, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "harmony"}, "method is 'harmony'; known are plain, data-parallel"),
        ({"ranks": "0"}, "ranks is '0'; it must be a whole number of at least 1"),
        ({"method": "plain"}, "ranks is '4', and plain training runs on one GPU"),
        ({"load_gib": "-1"}, "load_gib is '-1'; it must be empty or a number that is not negative"),
        ({"planned_store_gib": "much"}, "planned_store_gib is 'much'"),
    ],
)
def test_a_bad_row_is_one_sentence_with_file_line_and_value(
    changes: dict, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [GOOD, {**GOOD, **changes}])
    with pytest.raises(ValueError, match=r"^made-up/servers\.csv, line 3: ") as raised:
        read_servers(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_run_on_other_gpus_is_another_setting_and_a_repeated_one_counts_once(
    tmp_path: Path,
) -> None:
    rows = [line("harmony-pp", speed=s) for s in (80.0, 90.0, 70.0)]
    runs = runs_of(tmp_path, [*rows, line("harmony-pp", 2, speed=40.0)])
    assert [(run.ranks, run.samples_per_second, run.runs) for run in latest(runs)] == [
        (4, 70.0, 3), (2, 40.0, 1),
    ]  # fmt: skip


def test_what_the_benchmark_writes_can_be_read() -> None:
    from benchmarks.server_cases import METHODS

    assert {name.partition(" (")[0] for name in METHODS} <= set(LABELS)
