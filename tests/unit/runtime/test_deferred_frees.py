"""A bundle that another lane reads last is held until its own lane has waited for that read."""

from __future__ import annotations

import torch

from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from workbench.runtime.memory.deferred_frees import DeferredFrees
from workbench.schedule.action import COMPUTE, Kind
from workbench.schedule.issue import Issue

BEHIND = torch.device("cuda")
"""Reads are issued there, and end later; nothing is made on it."""


def waited_for(schedule):
    """Action -> all that has ended in its step when it starts, found by going back from each."""
    issue, found = Issue(schedule), {}
    for node in issue.order():
        before = {other for back, other in issue.waits[node] if not back}
        found[node] = before.union(*(found[other] for other in before))
    return {a.name: found[i] for i, a in enumerate(schedule.actions)}


def test_a_bundle_is_let_go_when_its_lane_has_waited_for_the_reader_and_not_before():
    schedule = schedule_for(PACKS, spec_for())
    sends = [a for a in schedule.actions if (a.rank, a.kind) == (0, Kind.SEND)]
    passes = [a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE)]
    index = {action.name: i for i, action in enumerate(schedule.actions)}
    waited, deferred = waited_for(schedule), DeferredFrees(schedule, 0, BEHIND)
    for step in range(3):
        for send in sends:
            deferred.hold((send.name,), COMPUTE, send, step)
        held, lengths = deferred._held[COMPUTE][sends[0].lane], []
        for action in passes:
            deferred.release(action, step)
            expected = [s.name for s in sends if index[s.name] not in waited[action.name]]
            assert [name for _, (name,) in held] == expected
            lengths.append(len(held))
        assert (lengths[0], lengths[-1]) == (len(sends), 0)


def test_a_bundle_that_its_own_lane_reads_last_is_not_held():
    schedule = schedule_for(PACKS, spec_for())
    action = next(a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE))
    deferred = DeferredFrees(schedule, 0, BEHIND)
    deferred.hold((object(),), COMPUTE, action, 0)
    assert not any(held for lanes in deferred._held.values() for held in lanes.values())


def test_on_a_cpu_a_read_has_ended_when_its_action_returns():
    schedule = schedule_for(PACKS, spec_for())
    send = next(a for a in schedule.actions if (a.rank, a.kind) == (0, Kind.SEND))
    deferred = DeferredFrees(schedule, 0, torch.device("cpu"))
    deferred.hold((object(),), COMPUTE, send, 0)
    assert not any(held for lanes in deferred._held.values() for held in lanes.values())
