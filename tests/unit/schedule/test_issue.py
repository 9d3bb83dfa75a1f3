"""One order in which threads may issue a schedule, and what they surely know to have ended."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.methods.test_ranks import PACKS, UNEVEN, schedule_for, spec_for
from workbench.core.division import packs_of
from workbench.runtime.executor.lane_threads import PUBLISH, lane_threads
from workbench.schedule.action import COMPUTE, RECEIVES, SENDS, Kind
from workbench.schedule.graph import resolve
from workbench.schedule.issue import ANNOUNCED, Issue

CASES = {
    "pp": PACKS,
    "many messages": replace(PACKS, forward_size=1, backward_size=1),
    "three ranks": UNEVEN,
    "dp": replace(PACKS, mode="dp", forward=packs_of([3]), backward=packs_of([3, 3])),
    "one rank": replace(PACKS, ranks=1),
}


@pytest.fixture(params=CASES)
def schedule(request):
    return schedule_for(CASES[request.param], spec_for())


def named(schedule):
    """Action -> what it names, as (relative step, action)."""
    index = {action.name: i for i, action in enumerate(schedule.actions)}
    return [[resolve(a, text, index) for text in a.after] for a in schedule.actions]


def test_nothing_is_issued_before_what_it_waits_for(schedule):
    issue = Issue(schedule)
    place = {node: k for k, node in enumerate(issue.order())}
    assert sorted(place) == [*range(len(schedule.actions) + len(issue.announcements))]
    for i, waits in enumerate(named(schedule)):
        assert all(place[other] < place[i] for back, other in waits if not back)
    messages = {}
    for i, action in enumerate(schedule.actions):
        if action.kind in (*SENDS, *RECEIVES):
            messages.setdefault(action.meeting, {})[action.kind in RECEIVES] = i
    for sides in messages.values():
        receive = sides[True]
        announced = issue.announcements[receive]
        assert place[announced] < place[sides[False]] < place[receive]
        for back, other in named(schedule)[receive]:
            assert back or place[other] < place[announced]
    lanes = {}
    for i, action in enumerate(schedule.actions):
        lanes.setdefault((action.rank, action.lane), []).append(place[i])
    assert all(places == sorted(places) for places in lanes.values())


def test_a_message_is_waited_for_when_something_needs_it(schedule):
    issue = Issue(schedule)
    kinds = {i: action.kind for i, action in enumerate(schedule.actions)}
    for rank in range(schedule.num_ranks):
        mine = [i for i in issue.order() if i in kinds and schedule.actions[i].rank == rank]
        for at, i in enumerate(mine):
            if kinds[i] in RECEIVES:
                then = next(j for j in mine[at + 1 :] if kinds[j] not in RECEIVES)
                passed = {(0, j) for j in mine[at : mine.index(then)]}
                assert passed & {*issue.waits[then]}, schedule.actions[i]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_to_have_ended_has_ended_however_late_others_are(schedule, seed):
    """In three steps of random durations, in which nothing waits for more than it must."""
    issue, choose = Issue(schedule), random.Random(seed)
    order = issue.order()
    ends: dict[tuple[int, int], float] = {}
    starts: dict[tuple[int, int], float] = {}
    for step in range(3):
        for node in order:
            waits = [(step + back, other) for back, other in issue.waits[node] if step + back >= 0]
            starts[step, node] = max((ends[wait] for wait in waits), default=0.0)
            late = choose.choice([0.0, 1.0, 30.0])
            ends[step, node] = starts[step, node] + choose.random() * late
    for rank in range(schedule.num_ranks):
        lanes: dict[str, list[int]] = {}
        for i, action in enumerate(schedule.actions):
            if action.rank == rank:
                lanes.setdefault(action.lane, []).append(i)
        clocks, known = issue.clocks(rank), 0
        for i in (i for actions in lanes.values() for i in actions):
            for lane, number in clocks[schedule.actions[i].name].items():
                for step in range(3):
                    last = step * len(lanes[lane]) + number - 1
                    if last >= 0:
                        at, position = divmod(last, len(lanes[lane]))
                        assert ends[at, lanes[lane][position]] <= starts[step, i] + 1e-9
                        known += 1
        assert known or not lanes


def test_an_action_knows_at_least_what_it_names(schedule):
    for rank in range(schedule.num_ranks):
        clocks = Issue(schedule).clocks(rank)
        lanes: dict[str, list[str]] = {}
        for action in schedule.actions:
            if action.rank == rank:
                lanes.setdefault(action.lane, []).append(action.name)
        for action, waits in zip(schedule.actions, named(schedule), strict=True):
            for back, j in waits if action.rank == rank else ():
                other = schedule.actions[j]
                if other.rank == rank:
                    at = lanes[other.lane].index(other.name) + back * len(lanes[other.lane])
                    assert clocks[action.name][other.lane] > at


def test_one_thread_walks_what_is_only_issued(schedule):
    for rank in range(schedule.num_ranks):
        found = lane_threads(schedule, rank, announces=True, together=True)
        walked = [pair for thread in found.threads.values() for pair in thread]
        assert len(walked) == len({*walked}), "a lane is walked twice"
        assert {*walked} == {(lane, i) for lane, those in found.lanes.items() for i in those}
        mine = {lane for lane, _ in found.threads[COMPUTE]} - {COMPUTE}
        sums = any(action.kind is Kind.REDUCE for action in schedule.actions)
        assert mine or sums, "nothing but compute, and no sums over ranks to wait for"
        apart = {*found.lanes} - mine - {COMPUTE}
        assert not any(lane.startswith(("host", "visit")) for lane in mine)
        for lane in mine:
            for i in found.lanes[lane]:
                assert lane.endswith(ANNOUNCED) or not found.remote[i], "it would wait on the host"
                assert not {schedule.actions[other].lane for _, other in found.local[i]} & apart
        beside = {i for lane in found.publishing for i in found.lanes[lane]}
        walked_here = {*mine, COMPUTE}
        assert beside == {i for i in found.published if schedule.actions[i].lane in walked_here}, (
            "the thread that issues would wait for the device"
        )
        assert all(lane.endswith(PUBLISH) for lane in found.publishing)


def test_without_a_device_each_lane_has_a_thread(schedule):
    found = lane_threads(schedule, 0, announces=True, together=False)
    assert {*found.threads} == {*found.lanes}
    assert not found.publishing
