"""A bundle that another lane reads last is held until its own lane has waited for that read."""

from __future__ import annotations

from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from workbench.runtime.memory.deferred_frees import DeferredFrees
from workbench.schedule.action import COMPUTE, D2H, Kind
from workbench.schedule.issue import Issue


def waited_for(schedule):
    """Action -> all that has ended in its step when it starts, found by going back from each."""
    issue, found = Issue(schedule), {}
    for node in issue.order():
        before = {other for back, other in issue.waits[node] if not back}
        found[node] = before.union(*(found[other] for other in before))
    return {a.name: found[i] for i, a in enumerate(schedule.actions)}


def test_a_bundle_is_let_go_when_its_lane_has_waited_for_the_reader_and_not_before():
    schedule = schedule_for(PACKS, spec_for())
    stashes = [a for a in schedule.actions if (a.rank, a.kind) == (0, Kind.STASH)]
    passes = [a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE)]
    index = {action.name: i for i, action in enumerate(schedule.actions)}
    waited, deferred = waited_for(schedule), DeferredFrees(schedule, 0)
    for step in range(3):
        for stash in stashes:
            deferred.hold((stash.name,), COMPUTE, stash, step)
        held, lengths = deferred._held[COMPUTE][D2H], []
        for action in passes:
            deferred.release(action, step)
            expected = [s.name for s in stashes if index[s.name] not in waited[action.name]]
            assert [name for _, (name,) in held] == expected
            lengths.append(len(held))
        assert (lengths[0], lengths[-1]) == (len(stashes), 0)


def test_a_bundle_that_its_own_lane_reads_last_is_not_held():
    schedule = schedule_for(PACKS, spec_for())
    action = next(a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE))
    deferred = DeferredFrees(schedule, 0)
    deferred.hold((object(),), COMPUTE, action, 0)
    assert not any(held for lanes in deferred._held.values() for held in lanes.values())
