"""The step that the offload benchmark keeps of a run: the right one, with the bytes it moved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import offload_bench
from benchmarks.offload_bench import Bench
from benchmarks.offload_cases import OFFLOAD as CASES
from benchmarks.offload_cases import Entry
from benchmarks.offload_lanes import CEILING, host_memory_rate, keep_lanes, lanes_file, step_of
from benchmarks.offload_sheet import Sheet, describe
from tests.unit.test_offload_bench import record_of as bench_record
from workbench.core.record import RunRecord
from workbench.published.here import Run
from workbench.published.lanes import STEPS, of_lane
from workbench.runs.store import Store
from workbench.runs.timeline import FILE as TIMELINE
from workbench.schedule.simulate import Event

BLOCK = 12 * 2048**2 + 13 * 2048
"""Parameters of a block of the published models."""
SECONDS = [9.0, 2.0, 1.0, 2.4, 3.0]
"""Of the steps; without the first one their median is 2.2, and of the last three 2.4 is nearest."""
PREDICTED = {"step_seconds": 2.0, "peak_bytes": {"device": 1}}


def paper(name: str = "78-b4/stronghold") -> Entry:
    return CASES.entries("paper", warmup=1, measured=4, only=[name])[0]


def record_of(entry: Entry, **changes: Any) -> RunRecord:
    usual = {"key": "0123", "step_seconds": SECONDS, "predicted": PREDICTED}
    return bench_record(entry.spec, **usual | changes)


def event(name: str, lane: str, start_s: float, seconds: float, step: int, nbytes: int = 0) -> dict:
    kind = name.rstrip("0123456789.+")
    unit = int(name.removeprefix(kind).partition(".")[0].partition("+")[0])
    micro = 0 if "." in name else None
    return {
        "name": name, "kind": kind, "unit": unit, "microbatch": micro, "rank": 0, "lane": lane,
        "step": step, "start_s": start_s, "end_s": start_s + seconds, "nbytes": nbytes,
    }  # fmt: skip


def timeline() -> list[dict]:
    """Steps 2 to 4, beginning at 100, 110 and 120 s of the run."""
    return [
        part
        for step, begin in ((2, 100.0), (3, 110.0), (4, 120.0))
        for part in (
            event("F1.0", "compute", begin, 0.5, step),
            event("B1.0", "compute", begin + 1, 1.0, step),
            event("L2", "h2d", begin + 0.25, 0.125, step, 1000),
            event("PULL1+1", "h2d", begin + 1.5, 2e-6, step, 500_000_000),
            event("PULL1+2", "h2d", begin + 2, 0.1, step, 500_000_000),
            event("U3", "host", begin + 1.5, 3e-5, step),
            event("V3", "host", begin + 2.25, 0.5 + step, step),
            event("U1", "visit", begin + 2.1, 0.001, step),
        )
    ]


def run_of(entry: Entry, **changes: Any) -> RunRecord:
    return describe(entry, record_of(entry, **changes))


def step_in(path: Path) -> Run:
    (step,) = STEPS.read(path)
    return step


def read(
    tmp_path: Path, run: RunRecord, rate: float | None = 1.5e11, more: Sequence[dict] = ()
) -> Run:
    file = tmp_path / "record" / TIMELINE
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"events": [*timeline(), *more]}))
    return step_in(keep_lanes(tmp_path / "h200", run, file.parent, rate))


def test_the_step_nearest_to_the_median_is_kept_from_its_first_computing_on(tmp_path):
    step = read(tmp_path, run_of(paper()))
    assert step.step_seconds == 2.4
    assert (step.case, step.method, step.record.key, step.commit) == (
        "78-b4", "stronghold", "0123", "0123456789ab",
    )  # fmt: skip
    assert (step.layers, step.batch, step.clip, step.device_cap_gib) == (78, 4, 1.0, 32.0)
    assert (step.hardware, step.host_memory_bytes_per_s) == ("NVIDIA H200", 1.5e11)
    ends = {event.name: (event.start_s, event.end_s) for event in step.events}
    assert ends["F1.0"] == (0.0, 0.5)
    assert ends["V3"] == (2.25, 5.75), "it reaches past the step's end"
    assert [event.name for event in of_lane(step, "h2d")] == ["L2", "PULL1+1", "PULL1+2"]


def test_bytes_are_those_of_copies_and_host_updates_that_were_made(tmp_path):
    step = read(tmp_path, run_of(paper()))
    moved = {event.name: event.nbytes for event in step.events if event.nbytes}
    assert moved == {"L2": 1000, "PULL1+2": 500_000_000, "V3": 26 * BLOCK}
    small = paper("small-fp32/stronghold")
    moved = {event.name: event.nbytes for event in read(tmp_path, run_of(small)).events}
    assert moved["V3"] == 28 * (12 * 1024**2 + 13 * 1024)
    assert moved["U3"] == 0, "an update in 30 us was not made"
    step = read(tmp_path, run_of(paper()), more=[event("M3", "host", 116.0, 0.5, 3)])
    moved = {event.name: event.nbytes for event in step.events}
    assert moved["V3"] == moved["M3"] == 18 * BLOCK, "weights first, and moments later"


def test_the_file_is_replaced_by_a_later_run(tmp_path):
    run = run_of(paper("78-b4-noclip/stronghold"))
    read(tmp_path, run)
    step = read(tmp_path, replace(run, key="later"), rate=None)
    files = list((tmp_path / "h200" / "lanes").iterdir())
    assert [file.name for file in files] == ["78-b4-noclip-stronghold.jsonl"]
    assert (step.record.key, step.clip, step.host_memory_bytes_per_s) == ("later", None, None)
    assert ("h2d", "L2", 0.25, 0.375, 1000) in step.record.bench["step"]["events"]
    pinned = replace(run, bench=run.bench | {"method": "stronghold (w4 r0 stash)"})
    assert lanes_file(tmp_path, pinned).name == "78-b4-noclip-stronghold-w4-r0-stash.jsonl"


def test_the_ceiling_is_the_profiles_if_it_tells(tmp_path):
    file = tmp_path / "hardware.json"
    assert host_memory_rate(file) is None
    file.write_text(json.dumps({"figures": [{"name": "host to device", "value": 5.5e10}]}))
    assert host_memory_rate(file) is None
    file.write_text(json.dumps({"figures": [{"name": CEILING, "value": 1.56e11}], "format": 2}))
    assert host_memory_rate(file) == 1.56e11
    file.write_text("[]")
    assert host_memory_rate(file) is None


def test_events_of_another_run_are_refused():
    entry = paper()
    other = [{**part, "step": 70} for part in timeline()]
    for events in ([], other, [part for part in timeline() if part["lane"] != "compute"]):
        with pytest.raises((ValueError, LookupError)):
            step_of(run_of(entry), [Event(**part) for part in events], None)


# -- in the loop -----------------------------------------------------------------------------------


def bench_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: RunRecord, text: str) -> Any:
    """A bench whose run ends at once with this record, and leaves a timeline that says `text`."""

    class Instant:
        folder = tmp_path

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def poll(self) -> RunRecord:
            return record

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

    store, told = Store(tmp_path), []
    store.folder(record.key).mkdir(parents=True)
    (store.folder(record.key) / TIMELINE).write_text(text)
    monkeypatch.setattr(offload_bench, "Job", Instant)
    monkeypatch.setattr(offload_bench, "resolve", lambda spec: spec)
    made = Bench(sheet=Sheet(tmp_path / "out"), store=store, echo=told.append)
    made.told = told
    return made


def kept(tmp_path: Path) -> list[str]:
    return sorted(file.name for file in (tmp_path / "out").glob("lanes/*"))


def test_a_run_on_our_own_runtime_leaves_its_step(tmp_path, monkeypatch):
    text = json.dumps({"events": timeline()})
    bench = bench_of(tmp_path, monkeypatch, record_of(paper()), text)
    assert bench.run([paper()]) == []
    assert kept(tmp_path) == ["78-b4-stronghold.jsonl"]
    assert step_in(tmp_path / "out" / "lanes" / "78-b4-stronghold.jsonl").commit == "0123456789ab"


@pytest.mark.parametrize(
    "changes", [{"predicted": {}}, {"status": "oom_device", "step_seconds": [], "message": "full"}]
)
def test_libraries_and_failures_leave_none(tmp_path, monkeypatch, changes):
    text = json.dumps({"events": timeline()})
    bench = bench_of(tmp_path, monkeypatch, record_of(paper(), **changes), text)
    bench.run([paper()])
    assert len(bench.sheet.runs) == 1
    assert kept(tmp_path) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"events": 7}', '{"events": [{"step": 99}]}'])
def test_a_timeline_that_cannot_be_read_fails_no_run(tmp_path, monkeypatch, text):
    bench = bench_of(tmp_path, monkeypatch, record_of(paper()), text)
    assert bench.run([paper()]) == []
    assert [run.status for run in bench.sheet.runs] == ["ok"]
    assert bench.failed == 0
    assert kept(tmp_path) == []
    assert any("no step of it is kept" in line for line in bench.told)


def test_a_real_run_leaves_a_step_that_can_be_right(tmp_path, measured):
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    tiny = CASES.entry(CASES.by_size["tiny"][0], "stronghold", 1, 3)
    entry = replace(
        tiny, method="stronghold (w2 r0)", spec=tiny.spec.with_(window=2, resident=0, pulled=0)
    )
    bench = Bench(
        sheet=Sheet(tmp_path / "out"), store=Store(tmp_path / "results"), echo=lambda _: None
    )
    assert bench.run_once(entry).status == "ok"
    step = step_in(tmp_path / "out" / "lanes" / "tiny-stronghold-w2-r0.jsonl")
    assert step.step_seconds in [round(s, 6) for s in bench.sheet.runs[0].record.step_seconds[1:]]
    updates = [event for event in of_lane(step, "host") if event.kind == "U"]
    assert [event.nbytes for event in updates] == [28 * (12 * 32**2 + 13 * 32)] * len(updates)
    assert len(updates) == entry.spec.model.layers
    assert any(event.nbytes for event in of_lane(step, "h2d"))
