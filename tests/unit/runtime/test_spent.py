"""What is read for the last time on another lane than it was made on is held until that is over."""

from __future__ import annotations

from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from workbench.runtime.spent import Spent
from workbench.schedule.action import COMPUTE, D2H, Kind
from workbench.schedule.issue import Issue


def waited_for(schedule):
    """Action -> all that has ended in its step when it starts, found by going back from each."""
    issue, found = Issue(schedule), {}
    for node in issue.order():
        before = {other for back, other in issue.waits[node] if not back}
        found[node] = before.union(*(found[other] for other in before))
    return {a.name: found[i] for i, a in enumerate(schedule.actions)}


def test_it_is_let_go_when_its_lane_has_waited_for_the_reader_and_not_before():
    schedule = schedule_for(PACKS, spec_for())
    stashes = [a for a in schedule.actions if (a.rank, a.kind) == (0, Kind.STASH)]
    passes = [a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE)]
    index = {action.name: i for i, action in enumerate(schedule.actions)}
    waited, spent = waited_for(schedule), Spent(schedule, 0)
    for step in range(3):
        for stash in stashes:
            spent.hold((stash.name,), COMPUTE, stash, step)
        held, lengths = spent._held[COMPUTE][D2H], []
        for action in passes:
            spent.release(action, step)
            expected = [s.name for s in stashes if index[s.name] not in waited[action.name]]
            assert [name for _, (name,) in held] == expected
            lengths.append(len(held))
        assert (lengths[0], lengths[-1]) == (len(stashes), 0)


def test_what_its_own_lane_reads_last_is_not_held():
    schedule = schedule_for(PACKS, spec_for())
    action = next(a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE))
    spent = Spent(schedule, 0)
    spent.hold((object(),), COMPUTE, action, 0)
    assert not any(held for lanes in spent._held.values() for held in lanes.values())
