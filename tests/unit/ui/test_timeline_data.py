"""Events become what the timeline shows: rows, times, words, shares, idle times and memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.ui.made_up import event, two_steps
from workbench.published.lanes import measured_steps, of_lane
from workbench.runs.store import REPOSITORY_RESULTS
from workbench.schedule.action import LANES, Action, Kind
from workbench.schedule.looks import LOOKS, WAITING
from workbench.schedule.schedule import Buffer, Schedule
from workbench.schedule.simulate import Occupied
from workbench.ui.timeline import data as module
from workbench.ui.timeline.data import PHRASES, in_words, printable, timeline_data


def block_of(data: dict, source: str) -> dict:
    return next(block for block in data["blocks"] if block["source"] == source)


def rows_of(data: dict, source: str) -> dict[str, dict]:
    """Lane -> what its row holds, of a timeline of one rank."""
    lanes = block_of(data, source)["lanes"]
    return {row["lane"]: lane for row, lane in zip(data["rows"], lanes, strict=True)}


# -- blocks and rows -------------------------------------------------------------------------
def test_predicted_is_above_measured_and_both_say_what_they_are() -> None:
    data = timeline_data(measured=two_steps(), predicted=two_steps())
    assert [block["label"] for block in data["blocks"]] == ["predicted (simulated)", "measured"]


def test_one_source_alone_is_one_block() -> None:
    assert [b["source"] for b in timeline_data(measured=two_steps())["blocks"]] == ["measured"]
    assert [b["source"] for b in timeline_data(predicted=two_steps())["blocks"]] == ["predicted"]


def test_both_blocks_have_the_same_rows_in_the_order_of_print() -> None:
    extra = [event("G1", "d2h", 8, 9), event("1:F1.0", "compute", 0, 1)]
    data = timeline_data(measured=two_steps(), predicted=[*extra, *two_steps()])
    rows = [(row["rank"], row["lane"]) for row in data["rows"]]
    assert rows == [(0, "compute"), (0, "h2d"), (0, "d2h"), (0, "host"), (1, "compute")]
    assert data["ranks"] == [0, 1]
    measured = block_of(data, "measured")
    assert [lane["last"] - lane["first"] for lane in measured["lanes"]] == [4, 2, 0, 2, 0]


def test_times_are_nanoseconds_from_the_first_start_of_the_block() -> None:
    data = timeline_data(measured=two_steps(origin=5e6), predicted=two_steps())
    measured, predicted = block_of(data, "measured"), block_of(data, "predicted")
    assert measured["events"] == predicted["events"]
    assert measured["span"] == 24_000_000
    assert predicted["events"]["start"][:4] == [2_000_000, 4_000_000, 12_000_000, 14_000_000]
    assert predicted["events"]["end"][:4] == [4_000_000, 8_000_000, 14_000_000, 18_000_000]


def test_events_are_sorted_by_lane_and_start_and_keep_their_fields() -> None:
    events = block_of(timeline_data(measured=reversed(two_steps())), "measured")["events"]
    assert events["step"] == [0, 0, 1, 1, 0, 1, 0, 1]
    assert events["bytes"] == [0, 0, 0, 0, 8_000_000, 8_000_000, 0, 0]


def test_the_same_action_has_one_name_in_both_blocks() -> None:
    data = timeline_data(measured=two_steps(2.0), predicted=two_steps())
    assert [name["name"] for name in data["names"]] == ["B1.0", "F1.0", "L1", "U1"]
    names = {tuple(block["events"]["name"]) for block in data["blocks"]}
    assert len(names) == 1


def test_colours_are_those_of_print() -> None:
    data = timeline_data(measured=two_steps())
    assert [look["words"] for look in data["looks"]] == [
        "forward",
        "backward",
        "update",
        "weights",
    ]
    backward = next(name for name in data["names"] if name["name"] == "B1.0")
    assert data["looks"][backward["look"]]["color"] == LOOKS[Kind.BACKWARD].color


# -- steps, busy shares, idle times ----------------------------------------------------------
def test_steps_start_with_their_computation() -> None:
    block = block_of(timeline_data(measured=two_steps()), "measured")
    assert block["steps"] == [[0, 2_000_000], [1, 12_000_000]]
    assert block["each"] == 10_000_000


def test_a_step_without_computation_starts_with_its_first_event() -> None:
    events = [event("L1", "h2d", 3, 4), event("L2", "h2d", 5, 6, step=1)]
    block = block_of(timeline_data(measured=events), "measured")
    assert block["steps"] == [[0, 0], [1, 2_000_000]]


def test_the_busy_share_is_that_of_a_step_though_work_reaches_into_the_next() -> None:
    rows = rows_of(timeline_data(measured=two_steps()), "measured")
    assert {lane: row["busy"] for lane, row in rows.items()} == {
        "compute": 0.6,
        "h2d": 0.2,
        "host": 0.6,
    }


def test_the_busy_share_of_a_single_step_is_of_its_span() -> None:
    events = [event("F1.0", "compute", 0, 1), event("B1.0", "compute", 3, 4)]
    block = block_of(timeline_data(measured=events), "measured")
    assert block["each"] is None
    assert block["lanes"][0]["busy"] == 0.5


def test_overlapping_events_are_busy_once() -> None:
    events = [event("F1.0", end=4), event("F2.0", start=1, end=2), event("F3.0", start=3, end=8)]
    lane = block_of(timeline_data(measured=events), "measured")["lanes"][0]
    assert (lane["busy"], lane["idle"]) == (1.0, None)


def test_the_longest_idle_time_lies_between_two_events_of_the_lane() -> None:
    rows = rows_of(timeline_data(measured=two_steps()), "measured")
    assert rows["compute"]["idle"] == [8_000_000, 12_000_000]
    assert rows["h2d"]["idle"] == [2_000_000, 10_000_000]
    assert rows["host"]["idle"] == [14_000_000, 18_000_000]


def test_an_event_of_no_duration_is_kept() -> None:
    block = block_of(timeline_data(measured=[event(end=0)]), "measured")
    assert (block["span"], block["lanes"][0]["busy"]) == (0, 0.0)


# -- words -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("B12.0", "backward of layer 12, micro-batch 0"),
        ("F0.1", "forward of the embedding, micro-batch 1"),
        ("U25", "update of the head"),
        ("L3", "weights of layer 3 to the device"),
        ("L3+1", "weights of layer 3 to the device, time 2 in the step"),
        ("PULL4+1", "optimizer states of layer 4 to the device, before the norm is known"),
        ("PUSH4+2", "optimizer states of layer 4 back to the host, once the norm is known"),
        ("2:G7", "gradients of layer 7 to the host"),
        ("N0", "global gradient norm"),
    ],
)
def test_names_in_words(name: str, words: str) -> None:
    e = event(name)
    assert in_words(e.name, e.kind, e.unit, e.microbatch, layers=24) == words


def test_without_the_number_of_layers_every_unit_is_a_layer() -> None:
    assert in_words("F0.0", "F", 0, 0) == "forward of layer 0, micro-batch 0"


def test_every_kind_and_lane_has_words() -> None:
    assert set(PHRASES) == {*Kind, WAITING}
    assert set(module.LANE_WORDS) == set(LANES)


def test_waiting_in_a_receive_is_no_work_of_the_network() -> None:
    """Rank 1 waits 96 of 100 ms for a message of 4 ms, and rank 0 as long for its part of a sum."""
    ran = [
        event("F0.0", "compute", 0, 96), event("SEND1.0", "net-out", 96, 100, nbytes=7),
        event("1:RECV1.0", "net-in", 0, 100, nbytes=7), event("1:F1.0", "compute", 100, 196),
        event("REDUCE1", "net-out", 100, 200), event("1:REDUCE1", "net-out", 196, 200),
    ]  # fmt: skip
    (block,) = (data := timeline_data(measured=ran))["blocks"]
    rows = [(row["rank"], row["lane"]) for row in data["rows"]]
    lanes = dict(zip(rows, block["lanes"], strict=True))
    assert lanes[1, "net-in"]["busy"] == lanes[1, "net-out"]["busy"] == 4 / 200
    assert lanes[0, "net-out"]["busy"] == 8 / 200
    received = slice(lanes[1, "net-in"]["first"], lanes[1, "net-in"]["last"])
    looks = [data["names"][n]["look"] for n in block["events"]["name"][received]]
    assert [data["looks"][n]["words"] for n in looks] == ["waiting for others", "messages"]
    assert block["events"]["end"][received] == [96e6, 100e6]
    assert block["events"]["bytes"][received] == [0, 7]


def test_a_name_that_does_not_parse_is_described_by_its_fields() -> None:
    strange = replace(event("F3.0"), name="<b>not a name</b>")
    data = timeline_data(measured=[strange], layers=8)
    assert data["names"][0]["name"] == "<b>not a name</b>"
    assert data["names"][0]["words"] == "forward of layer 3, micro-batch 0"


def test_text_cannot_hide_or_turn_around() -> None:
    hostile = "F\x1b[2J\n\u202ex\0"
    assert printable(hostile) == "F\\x1b[2J\\n\\u202ex\\x00"
    assert len(printable("x" * 10_000)) == 200
    data = timeline_data(measured=[event()], title=hostile, notes=[hostile])
    assert data["title"] == data["notes"][0] == printable(hostile)


# -- what cannot be shown --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "X"}, "is of kind 'X' on lane 'compute', which this version lacks"),
        ({"lane": "gpu"}, "on lane 'gpu', which this version lacks"),
        ({"unit": -1}, "has a negative number"),
        ({"microbatch": -1}, "has a negative number"),
        ({"start_s": float("nan")}, "is from nan s to"),
        ({"end_s": float("inf")}, "is from 0.0 s to inf s"),
        ({"end_s": -1.0}, "it must end after it starts"),
        ({"name": "F1.0\x1b", "kind": "X"}, r"event 'F1.0\x1b' is of kind 'X'"),
    ],
)
def test_an_event_that_cannot_be_shown_is_refused_in_a_sentence(
    changes: dict, sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^event 'F1\.0") as refusal:
        timeline_data(measured=[event(), replace(event(), **changes)])
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(ValueError, match="no event to show, neither predicted nor measured"):
        timeline_data()


# -- memory ----------------------------------------------------------------------------------
def loads_and_computes(budgets: dict[str, int]) -> Schedule:
    act = {"unit": 1}
    return Schedule(
        name="made up",
        num_units=2,
        num_microbatches=1,
        actions=(
            Action(kind=Kind.LOAD, lane="h2d", takes=("w",), nbytes=8_000_000, **act),
            Action(kind=Kind.FORWARD, lane="compute", microbatch=0, uses=("w",), **act),
            Action(kind=Kind.BACKWARD, lane="compute", microbatch=0, frees=("w",), **act),
            Action(kind=Kind.UPDATE, lane="host", **act),
        ),
        buffers={
            "w": Buffer(tier="device", nbytes=100),
            "head": Buffer(tier="device", nbytes=20, permanent=True),
            "states": Buffer(tier="host", nbytes=500, permanent=True),
        },
        budgets=budgets,
    )


def test_memory_of_the_schedule_at_the_times_of_the_events() -> None:
    schedule = loads_and_computes({"device": 150})
    data = timeline_data(measured=two_steps(), memory=Occupied.of(schedule))
    (strip,) = block_of(data, "measured")["memory"]
    assert (strip["tier"], strip["peak"], strip["budget"]) == ("device", 120, 150)
    assert strip["at"] == [0, 8_000_000, 10_000_000, 18_000_000]
    assert strip["bytes"] == [120, 20, 120, 20]


def test_memory_that_never_changes_is_shown_beside_its_budget_only() -> None:
    data = timeline_data(
        measured=two_steps(), memory=Occupied.of(loads_and_computes({"host": 600}))
    )
    strips = {s["tier"]: s for s in block_of(data, "measured")["memory"]}
    assert (strips["host"]["peak"], strips["host"]["budget"]) == (500, 600)
    assert strips["device"]["budget"] is None


# -- a real one ------------------------------------------------------------------------------
def test_measured_steps_of_the_project_are_shown_whole() -> None:
    steps = measured_steps([REPOSITORY_RESULTS])
    if not steps:
        pytest.skip("no measured step is committed")
    for step in steps:
        data = timeline_data(measured=step.events, title=step.case, layers=step.layers)
        block = block_of(data, "measured")
        assert len(block["events"]["start"]) == len(step.events)
        compute = sum(e.end_s - e.start_s for e in of_lane(step, "compute"))
        assert rows_of(data, "measured")["compute"]["busy"] == pytest.approx(
            compute / (block["span"] * 1e-9), abs=1e-3
        )
        assert json.loads(json.dumps(data, allow_nan=False)) == data
