"""Schedules survive JSON, and what is not a schedule is refused with the place."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schedule.window import pipeline, window_schedule
from workbench.schedule.action import LANES, Action, Kind, format_name, parse_name
from workbench.schedule.schedule import TIERS, Buffer, Schedule
from workbench.schedule.serialize import from_json, to_json
from workbench.schedule.validate import validate

FULL = window_schedule(4, 2, 2, workers=2, norm=True, stash=True, disk=True, budgets={"host": 2000})

counts = st.integers(0, 12)
references = st.builds(
    format_name,
    st.sampled_from(Kind),
    counts,
    st.none() | counts,
    turn=counts,
    rank=counts,
    step=st.integers(-3, 0),
)
words = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=6)


def lists(of):
    return st.lists(of, max_size=3).map(tuple)


actions = st.builds(
    Action,
    kind=st.sampled_from(Kind),
    unit=counts,
    lane=st.sampled_from(LANES) | st.sampled_from(LANES).map("{}.1".format),
    microbatch=st.none() | counts,
    turn=counts,
    rank=counts,
    after=lists(references),
    nbytes=st.integers(0, 2**60),
    takes=lists(words),
    uses=lists(words),
    frees=lists(words),
)


def buffers(slots):
    shared = st.builds(
        Buffer, tier=st.sampled_from(TIERS), nbytes=st.integers(0, 2**60), rank=counts, slot=slots
    )
    own = st.builds(
        Buffer, tier=st.sampled_from(TIERS), nbytes=st.integers(0, 2**60), permanent=st.booleans()
    )
    return shared | own


@st.composite
def schedules(draw, names, slots):
    work = tuple(draw(st.lists(actions, min_size=1, max_size=5)))
    return Schedule(
        name=draw(st.text(max_size=8)),
        num_units=1 + max(a.unit for a in work),
        num_microbatches=1 + max(a.microbatch or 0 for a in work),
        num_ranks=1 + max(a.rank for a in work),
        actions=work,
        buffers=draw(st.dictionaries(names, buffers(slots), max_size=4)),
        budgets=draw(st.dictionaries(st.sampled_from(TIERS), st.integers(0, 2**60))),
        settings=draw(
            st.dictionaries(
                st.text(max_size=5),
                st.none()
                | st.booleans()
                | st.integers()
                | st.text()
                | st.floats(allow_nan=False, allow_infinity=False),
                max_size=4,
            )
        ),
    )


@given(references)
def test_names_parse_back(name):
    ref = parse_name(name)
    assert name == format_name(
        ref.kind, ref.unit, ref.microbatch, turn=ref.turn, rank=ref.rank, step=ref.step
    )


@settings(max_examples=120, deadline=None)
@given(schedules(names=st.text(max_size=6), slots=st.none() | st.text(max_size=4)))
def test_json_loses_nothing(schedule):
    text = to_json(schedule)
    back = from_json(text)
    assert back == schedule
    assert list(back.buffers) == list(schedule.buffers)
    assert to_json(back) == text
    assert text.isascii()
    for key, value in schedule.settings.items():  # 1, 1.0 and True are equal, and differ
        assert type(back.settings[key]) is type(value)


@pytest.mark.parametrize("schedule", [FULL, pipeline()], ids=["window", "pipeline"])
def test_what_comes_back_is_proved_again(schedule):
    assert validate(from_json(to_json(schedule))) == validate(schedule)


def test_one_changed_action_is_one_changed_line():
    before = to_json(FULL).splitlines()
    changed = tuple(replace(a, nbytes=7) if a.name == "L2" else a for a in FULL.actions)
    after = to_json(replace(FULL, actions=changed)).splitlines()
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(differing) == 1
    assert '"name": "L2"' in differing[0][1]
    assert len(before) == len(FULL.actions) + len(FULL.buffers) + 14


def test_gradients_were_messages_of_turn_1():
    schedule = pipeline()
    text = re.sub(r"(SEND|RECV)_GRAD(\d+\.\d+)", r"\1\2+1", to_json(schedule))
    assert from_json(text.replace('"version": 2', '"version": 1')) == schedule
    assert "RECV1.0+1" in from_json(text).by_name


# -- what is refused -------------------------------------------------------------------------------


def data():
    return json.loads(to_json(window_schedule(2, 1)))


def changed(*path, to):
    """The JSON of a schedule with one value replaced."""
    whole = data()
    place = whole
    for key in path[:-1]:
        place = place[key]
    if to is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return json.dumps(whole)


BAD_JSON = {
    "empty": ("", "not a schedule: it is not JSON: Expecting value"),
    "cut": (to_json(FULL)[:-20], "not a schedule: "),
    "deep": ("[" * 100_000, "not a schedule: "),
    "a list": ("[]", "the schedule is []; it must be an object"),
    "another format": (changed("format", to="x"), "format is 'x'; it must be workbench schedule"),
    "no version": (changed("version", to=KeyError), "the field 'version' is missing"),
    "version": (changed("version", to=3), "version is 3; it must be 1 or 2"),
    "true version": (changed("version", to=True), "version is True; it must be 1 or 2"),
    "unknown field": (changed("colour", to=1), "the schedule: unknown field 'colour'"),
    "no actions": (changed("actions", to=KeyError), "the field 'actions' is missing"),
    "no units": (
        changed("num_units", to=0),
        "at least one unit, micro-batch, rank and replica, got 0, 1, 1, 1",
    ),
    "units": (changed("num_units", to="2"), "num_units is '2'; it must be a whole number"),
    "true units": (changed("num_units", to=True), "num_units is True; it must be a whole number"),
    "a tier": (changed("budgets", to={"tape": 1}), "budget for unknown tier 'tape'"),
    "a budget": (
        changed("budgets", to={"host": 1.5}),
        "budgets.host is 1.5; it must be",
    ),
    "a setting": (changed("settings", "window", to=[1]), "settings.window is [1]; it must be"),
    "not a number": (changed("settings", "window", to=float("nan")), "NaN is no number of JSON"),
    "too large": (
        changed("settings", "window", to=9).replace('"window": 9', '"window": 1e999'),
        "1e999 is too large for a number",
    ),
    "twice": ('{"format": "x", "format": "y"}', "'format' stands twice in one object"),
    "not an action": (
        changed("actions", 2, to="F0.0"),
        "actions[2] is 'F0.0'; it must be",
    ),
    "no name": (
        changed("actions", 2, "name", to=KeyError),
        "the field 'name' is missing",
    ),
    "a kind": (changed("actions", 0, "name", to="Q0"), "actions[0]: 'Q0' is no action name"),
    "a step": (changed("actions", 0, "name", to="L0@-1"), "actions[0]: 'L0@-1' names a step"),
    "zeros": (changed("actions", 0, "name", to="L00"), "actions[0]: 'L00' must be written L0"),
    "a lane": (changed("actions", 0, "lane", to="gpu"), "actions[0]: lane 'gpu' is unknown"),
    "a worker": (
        changed("actions", 0, "lane", to="host.x"),
        "lane 'host.x' is unknown",
    ),
    "a reference": (changed("actions", 0, "after", to=["Q"]), "actions[0]: 'Q' is no action name"),
    "no list": (
        changed("actions", 0, "after", to="L0"),
        "actions[0].after is 'L0'; it must",
    ),
    "numbers": (changed("actions", 0, "uses", to=[1]), "actions[0].uses[0] is 1; it must be text"),
    "bytes": (
        changed("actions", 0, "nbytes", to=-1),
        "actions[0]: L0: unit, micro-batch, turn, rank",
    ),
    "fields": (changed("actions", 0, "unit", to=0), "actions[0]: unknown field 'unit'"),
    "a buffer": (changed("buffers", "w0", to=3), "buffers.w0 is 3; it must be an object"),
    "a size": (changed("buffers", "w0", "nbytes", to=-3), "buffers.w0: a buffer of -3 bytes"),
    "no tier": (
        changed("buffers", "w0", "tier", to=KeyError),
        "the field 'tier' is missing",
    ),
    "a memory": (changed("buffers", "w0", "tier", to="gpu"), "buffers.w0: tier 'gpu' is unknown"),
    "a slot": (
        changed("buffers", "hw0", "slot", to="s"),
        "buffers.hw0: a permanent buffer has no",
    ),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_malformed_json_is_refused_with_the_place(case):
    text, sentence = BAD_JSON[case]
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the sentence is compared below
        from_json(text)
    assert sentence in str(error.value)


def test_json_says_what_it_cannot_hold():
    with pytest.raises(ValueError, match="setting 'x' is nan, which JSON cannot hold"):
        to_json(replace(FULL, settings={"x": float("nan")}))
