"""Lanes of a rank, divided among threads.

A lane whose actions are only issued, to a device that does them later, needs no thread of its own,
and is better off without: threads of one interpreter pass its lock around, and some ten of them
took 0.4 ms an action, longer than the passes of a small GPU. So where a device works the lanes off,
one thread walks the compute lane and all lanes that wait for nothing but each other, in the order
of schedule/issue.py. Lanes that wait on the host, for updates or for other ranks' host memory, keep
a thread each. So do all lanes where passes of any rank have no fixed order (schedule/turns.py).

Two things that lanes do beside their actions are lanes too. Room for a message is announced as soon
as it is there, whatever messages are received before it. An action that other ranks wait for is
published to them when the device has done it, by a thread of its own: the thread that issued it
goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch

from workbench.runtime.executor import stream_pool
from workbench.schedule.action import (
    COMPUTE,
    D2H,
    H2D,
    LATER,
    MEETING,
    NET_IN,
    NET_OUT,
    VISIT,
    Kind,
    lane_kind,
)
from workbench.schedule.graph import unroll
from workbench.schedule.issue import ANNOUNCED, Issue
from workbench.schedule.schedule import Schedule

PUBLISH = ".publish"
"""Ends the name of the lane that publishes to other ranks what has ended on another lane."""
STREAMS = (COMPUTE, VISIT, H2D, D2H, NET_IN, NET_OUT)
"""Kinds of lanes that have a stream each on CUDA."""
ISSUED = (H2D, D2H, NET_IN, NET_OUT)
"""Kinds of lanes that the compute lane's thread may walk, too."""

Items = list[tuple[str, int]]
"""(lane, action) in their order."""
Refs = list[tuple[tuple[int, int], ...]]
"""Action -> (relative step, action) of each action that it waits for."""


@dataclass(frozen=True, kw_only=True)
class LaneThreads:
    """The threads of one rank."""

    local: Refs
    """Waits of each action for its own rank."""
    remote: Refs
    """Waits of each action for others."""
    published: Set[int]
    """Actions that others wait for."""
    lanes: Mapping[str, list[int]]
    """Lane -> its actions."""
    threads: Mapping[str, Items]
    """Thread, named by its first lane -> the actions of all its lanes."""
    announcing: Set[str]
    """Lanes that announce room for messages."""
    publishing: Set[str]
    """Lanes that publish to other ranks what has ended on another lane."""

    def streams(
        self, device: torch.device, compute: torch.cuda.Stream | None
    ) -> dict[str, torch.cuda.Stream]:
        """Lane -> its stream; `compute`: that of the compute lane, where there is one already."""
        lanes = [lane for lane in self.lanes if lane_kind(lane) in STREAMS]
        passes = compute or stream_pool.take(device)
        """Of all lanes of passes, which take turns where there are several."""
        return {
            lane: passes if lane_kind(lane) == COMPUTE else stream_pool.take(device, lane)
            for lane in lanes
            if lane not in self.publishing
        }


def lane_threads(schedule: Schedule, rank: int, *, announces: bool, together: bool) -> LaneThreads:
    """Divide a rank's lanes among threads. `together`: a device works the lanes off."""
    actions = schedule.actions
    local, remote = _divided(schedule)
    published = {
        other
        for i, waits in enumerate(remote)
        for _, other in waits
        if actions[other].rank == rank != actions[i].rank
    }
    if schedule.replicas > 1:  # the first replica's is waited for by the others
        published |= {i for i, a in enumerate(actions) if (a.kind, a.rank) == (Kind.NORM, rank)}
    lanes: dict[str, list[int]] = {COMPUTE: []}
    for i, action in enumerate(actions):
        if action.rank == rank:
            lanes.setdefault(action.lane, []).append(i)
    fixed = unroll(schedule).turns is None
    joined = _joined(schedule, lanes, local, remote) if together and fixed else {COMPUTE}
    publishing = {
        lane + PUBLISH: [i for i in lanes[lane] if i in published]
        for lane in lanes
        if together and lane in {*joined, LATER}
    }
    publishing = {lane: those for lane, those in publishing.items() if those}
    receiving = [lane for lane in lanes if announces and lane_kind(lane) == NET_IN]
    announced = {lane + ANNOUNCED: lanes[lane] for lane in receiving}
    everything = {**lanes, **publishing, **announced}
    found = {lane: [(lane, i) for i in those] for lane, those in everything.items()}
    if len(joined) > 1:
        issue = Issue(schedule)
        of_node = {i: (lane, i) for lane in joined for i in lanes[lane]}
        for lane in joined & {*receiving}:
            of_node |= {issue.announcements[i]: (lane + ANNOUNCED, i) for i in lanes[lane]}
        for lane in {lane for lane, _ in of_node.values()}:
            del found[lane]
        found[COMPUTE] = [of_node[node] for node in issue.order() if node in of_node]
    return LaneThreads(
        local=local,
        remote=remote,
        published=published,
        lanes=everything,
        threads=found,
        announcing={*announced},
        publishing={*publishing},
    )


def _divided(schedule: Schedule) -> tuple[Refs, Refs]:
    """Waits of each action for its own rank, and for others."""
    local, remote, actions = [], [], schedule.actions
    for action, waits in zip(actions, unroll(schedule).references, strict=True):
        mine = [wait for wait in waits if actions[wait[1]].rank == action.rank]
        local.append(tuple(mine))
        meets = action.kind in MEETING  # they wait for each other by themselves
        remote.append(() if meets else tuple(wait for wait in waits if wait not in mine))
    return local, remote


def _joined(
    schedule: Schedule, lanes: Mapping[str, list[int]], waits: Refs, remote: Refs
) -> set[str]:
    """Lanes that the compute lane's thread walks, itself among them."""
    actions = schedule.actions

    def may(lane: str) -> bool:
        return lane_kind(lane) in ISSUED and not any(
            remote[i] or actions[i].kind is Kind.REDUCE for i in lanes[lane]
        )

    joined = {COMPUTE, *filter(may, lanes)}
    while True:
        blocked = {
            actions[i].lane
            for lane in joined - {COMPUTE}
            for i in lanes[lane]
            if any(actions[other].lane not in joined for _, other in waits[i])
        }
        if not blocked:
            return joined
        joined -= blocked
