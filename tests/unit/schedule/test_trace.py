"""Traces keep the rules of the Chrome trace-event format, and say what the events say."""

import json
import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schedule.made_up import Table, random_costs, random_schedule
from tests.unit.schedule.window import pipeline, window_schedule
from workbench.schedule.simulate import Event, memory_timeline, simulate
from workbench.schedule.trace import trace_events, write_trace

SCHEDULE = window_schedule(4, 2, 2, workers=2, norm=True, stash=True, disk=True)


def ns(microseconds):
    """The whole nanoseconds a viewer reads."""
    nanoseconds = round(microseconds * 1000)
    assert microseconds * 1000 == pytest.approx(nanoseconds, abs=1e-3)
    return nanoseconds


def check_format(rows):
    """The rules of the trace-event format, for the phases we write."""
    slices, flows, counters = defaultdict(list), defaultdict(dict), defaultdict(list)
    named = {"process": set(), "thread": set()}
    for row in rows:
        assert {"ph", "name", "pid", "tid"} <= row.keys()
        assert isinstance(row["name"], str)
        assert row["name"]
        assert type(row["pid"]) is int
        assert type(row["tid"]) is int
        if row["ph"] == "M":
            key, value = next(iter(row["args"].items()))
            what, _, field = row["name"].partition("_")
            assert (field, key) in (("name", "name"), ("sort_index", "sort_index"))
            assert type(value) is (str if key == "name" else int)
            named[what].add((row["pid"], row["tid"]) if what == "thread" else row["pid"])
            continue
        assert math.isfinite(row["ts"])
        assert row["ts"] >= 0
        if row["ph"] == "X":
            assert row["dur"] >= 0
            assert isinstance(row["args"], dict)
            assert row["pid"] in named["process"]
            assert (row["pid"], row["tid"]) in named["thread"]
            slices[row["pid"], row["tid"]].append((ns(row["ts"]), ns(row["ts"]) + ns(row["dur"])))
        elif row["ph"] == "C":
            assert all(type(value) is int for value in row["args"].values())
            counters[row["pid"], row["name"]].append(row["ts"])
        else:
            assert row["ph"] in "sf"
            assert row["ph"] not in flows[row["id"]]
            flows[row["id"]][row["ph"]] = row
    for spans in slices.values():  # in time order, and one after the other
        for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
            assert end <= start
    for times in counters.values():
        assert times == sorted(times)
    for ends in flows.values():
        begin, finish = ends["s"], ends["f"]
        assert begin["ts"] <= finish["ts"]
        assert finish["bp"] == "e"
        assert begin["cat"] == finish["cat"]
        assert begin["name"] == finish["name"]
        for row in (begin, finish):  # each end lies in a slice of its thread
            at = ns(row["ts"])
            assert any(a <= at <= b for a, b in slices[row["pid"], row["tid"]])
    return slices, flows, counters


@pytest.mark.parametrize("schedule", [SCHEDULE, pipeline()], ids=["window", "pipeline"])
def test_a_simulation_keeps_the_format(schedule):
    events = simulate(schedule, Table(default_s=1 / 3), steps=3).events
    slices, flows, _ = check_format(trace_events(events, schedule=schedule))
    assert sum(map(len, slices.values())) == len(events)
    assert flows


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_rounding_never_makes_neighbours_overlap(rng):
    schedule = random_schedule(rng, 8, num_ranks=2)
    events = simulate(schedule, random_costs(rng, schedule), steps=4).events
    scaled = [
        Event(*[getattr(e, f) for f in e.__slots__[:7]], e.start_s * 1e-7 / 3, e.end_s * 1e-7 / 3)
        for e in events
    ]
    check_format(trace_events(scaled, schedule=schedule))


def test_rows_say_what_the_events_say():
    events = [
        Event("1:B3.1", "B", 3, 1, 1, "compute", 2, 0.5, 0.75),
        Event("L4", "L", 4, None, 0, "h2d", 2, 1e-6, 3.5e-6, 64),
    ]
    rows = trace_events(events, source="measured")
    names = {(r["pid"], r["args"]["name"]) for r in rows if r["name"] == "process_name"}
    assert names == {(0, "measured rank 0"), (1, "measured rank 1")}
    load, backward = [row for row in rows if row["ph"] == "X"]
    assert (load["name"], load["cat"], load["ts"], load["dur"]) == ("L4", "load", 1.0, 2.5)
    assert load["args"] == {"unit": 4, "step": 2, "nbytes": 64}
    assert backward["args"] == {"unit": 3, "step": 2, "nbytes": 0, "microbatch": 1}
    assert (backward["pid"], backward["ts"], backward["dur"]) == (1, 500_000.0, 250_000.0)


def test_lanes_are_threads_in_their_usual_order():
    rows = trace_events(simulate(SCHEDULE, Table(), steps=1).events[::-1])
    names = {r["tid"]: r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    order = {r["tid"]: r["args"]["sort_index"] for r in rows if r["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(order, key=order.get)] == [
        "compute", "h2d", "d2h", "host", "host.1", "disk-in", "disk-out"
    ]  # fmt: skip


def test_counters_are_the_memory_timeline():
    events = simulate(SCHEDULE, Table(), steps=2).events
    rows = trace_events(events, schedule=SCHEDULE)
    found = [(r["ts"], r["args"]["bytes"]) for r in rows if r["name"] == "device memory"]
    line = memory_timeline(SCHEDULE, events, "device")
    assert found == [(at * 1e6, nbytes) for at, nbytes in line]
    assert "disk memory" not in {row["name"] for row in rows}  # it holds nothing


def test_arrows_are_the_dependencies_between_lanes():
    events = simulate(SCHEDULE, Table(), steps=1).events
    lane = {a.name: a.lane for a in SCHEDULE.actions}
    crossing = sum(
        lane[d] != a.lane for a in SCHEDULE.actions for d in a.after if not d.endswith("@-1")
    )
    rows = trace_events(events, schedule=SCHEDULE)
    assert sum(row["ph"] == "s" for row in rows) == crossing
    assert not [r for r in trace_events(events, schedule=SCHEDULE, arrows=False) if r["ph"] in "sf"]


def test_two_timelines_fit_one_file():
    events = simulate(SCHEDULE, Table(), steps=1).events
    rows = trace_events(events) + trace_events(events, source="measured", first_pid=1)
    slices, _, _ = check_format(rows)
    assert {pid for pid, _ in slices} == {0, 1}


def test_the_file_is_json_and_deterministic(tmp_path):
    events = simulate(SCHEDULE, Table(default_s=0.1), steps=2).events
    path = tmp_path / "trace.json"
    write_trace(path, events, schedule=SCHEDULE)
    first = path.read_bytes()
    data = json.loads(first, parse_constant=pytest.fail)
    assert data["displayTimeUnit"] == "ms"
    check_format(data["traceEvents"])
    write_trace(path, events, schedule=SCHEDULE)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    write_trace(path, [])
    old = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workbench.core.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_trace(path, simulate(SCHEDULE, Table(), steps=1).events)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
