"""Varuna's predictions beside measurements: which runs are shown, and when bounds are missed."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.pipeline_cases import BATCH, MICROS, SHAPES
from tests.unit.figures import offload, servers
from tests.unit.figures.records import out_of_memory, record
from tests.unit.figures.test_varuna_exhibits import judged, words_in
from workbench.exhibits import find, open_exhibit
from workbench.exhibits.harmony import sizes
from workbench.figures.rows import MEASURED, pick
from workbench.figures.verdict import FAILS, HOLDS, MISSING, UNTESTED
from workbench.published.here import PIPELINES

pytestmark = pytest.mark.usefixtures("nothing_committed")


def line(p, d, m, seconds, off=0.02, **changes):
    """A made-up row of a shape; `off`: the error of its prediction."""
    told = servers.line("varuna", p * d, cap=None, speed=seconds and 64 / seconds)
    told |= {"replicas": d, "micro": m, "predicted_peak_device_gib": 30.3}
    said = {"predicted_step_seconds": seconds * (1 + off), "error": off} if seconds else {}
    return told | said | changes


LINES = [line(4, 1, 2, 0.6), line(4, 1, 1, 0.5), line(2, 1, 2, 1.0), line(2, 1, 8, None)]
MORE = [
    ([line(2, 2, 1, 1.2, 0.5, method="zb-h1"), line(2, 2, 1, 1.2, 0.5, device_cap_gib=11)], []),
    ([line(2, 2, 1, 1.2, 0.13)], [1]),
    ([line(2, 2, m, 1.2, 0.10) for m in (1, 2, 4)], [0]),
    ([line(2, 2, 1, 1.2, peak_device_gib=33.0)], [2]),
    ([line(2, 2, 1, 0.52, -0.06)], [3]),
]
"""Other rows, and which bounds are missed with them."""


@pytest.mark.parametrize(("more", "missed"), MORE)
def test_committed_runs_are_held_against_the_bounds(tmp_path, more, missed):
    offload.write(tmp_path, LINES + more, form=PIPELINES)
    session = open_exhibit("varuna_accuracy", "paper", tmp_path)
    rows = session.rows([])
    told = judged(session, pick(rows, variant="made-up"))
    assert told == [FAILS if place in missed else HOLDS for place in range(4)]
    assert "out of device memory" in words_in(session.draw(rows))
    beside = pick(open_exhibit("varuna_scaling", "paper", tmp_path).rows(), source=MEASURED)
    assert dict(zip(beside["x"], beside["value"], strict=True)) == {2: 64.0, 4: 128.0}


def test_shapes_are_those_of_the_benchmark(monkeypatch):
    monkeypatch.setattr(sizes, "gpus", lambda: ["made-up"] * 4)
    exhibit = find("varuna_accuracy")
    every = {(p * d, d, BATCH // d // m) for p, d in SHAPES for m in MICROS}
    for size in (sizes.named("small"), sizes.named("paper")):
        specs = exhibit.specs(size)
        assert {(s.ranks, s.options.copies, s.microbatches) for s in specs} == every
    assert [spec.ranks for spec in exhibit.specs(sizes.named("smoke"))] == [1, 2, 2, 2]


def test_on_a_processor_the_printed_range_is_judged(tmp_path):
    session = open_exhibit("varuna_accuracy", "smoke", tmp_path)
    first, *specs = session.exhibit.specs(session.size)
    assert judged(session, session.rows([])) == [MISSING] * 4
    for off, verdict in ((0.3, HOLDS), (-0.2, HOLDS), (0.5, FAILS), (-0.25, FAILS)):
        plan = {"step_seconds": 0.5 * (1 + off), "spread": 0.3, "peak_bytes": {"device": 2**20}}
        made = [record(spec, predicted=plan) for spec in specs]
        rows = session.rows([*made, out_of_memory(first, "device")])
        assert judged(session, rows) == [verdict, UNTESTED]
    assert "out of device memory" in words_in(session.draw(rows))


@pytest.mark.slow
@pytest.mark.thorough
def test_shapes_run_as_they_are_planned(tmp_path, measured):
    shutil.copytree(measured, tmp_path / "profiles")
    rows = open_exhibit("varuna_accuracy", "tiny", tmp_path).run()
    assert rows["value"].gt(0).sum() == 4 * 4
