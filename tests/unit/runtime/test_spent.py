"""What is read for the last time on another lane than it was made on is held until that is over."""

from __future__ import annotations

from tests.methods.test_ranks import PACKS, schedule_for, spec_for
from workbench.runtime.spent import Spent
from workbench.schedule.action import COMPUTE, D2H, Kind


def test_it_is_let_go_when_its_lane_has_waited_for_the_reader():
    """Not before, however often the lane begins something else; and not in the step after only."""
    schedule = schedule_for(PACKS, spec_for())
    stashes = [a for a in schedule.actions if (a.rank, a.kind) == (0, Kind.STASH)]
    passes = [a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE)]
    spent = Spent(schedule, 0)
    for step in range(2):
        made = [(object(),) for _ in stashes]
        for stash, bundle in zip(stashes, made, strict=True):
            spent.hold(bundle, COMPUTE, stash, step)
        held = spent._held[COMPUTE][D2H]
        assert len(held) == len(stashes)
        for action in passes:
            before = len(held)
            spent.release(action, step)
            waited = {s.name for s in stashes} & {*action.after}
            if waited:
                last = max(k for k, s in enumerate(stashes) if s.name in waited)
                assert len(held) <= len(stashes) - last - 1
            elif len(held) < before:  # what it waits for has waited
                assert action.after
        assert not held


def test_what_its_own_lane_reads_last_is_not_held():
    schedule = schedule_for(PACKS, spec_for())
    action = next(a for a in schedule.actions if (a.rank, a.lane) == (0, COMPUTE))
    spent = Spent(schedule, 0)
    spent.hold((object(),), COMPUTE, action, 0)
    assert not any(held for lanes in spent._held.values() for held in lanes.values())
