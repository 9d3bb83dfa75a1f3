"""Lanes that take turns on one device, where the order of passes is settled while the step runs.

Most schedules give a device one order of passes. There are two rules for those that do not.

*The first that is ready.* A device whose stages are updated by themselves has a lane for each of
them. Of the passes that are ready, whose lane and whose references have ended, it takes that of the
deepest stage, and of a stage a backward pass or an update before a forward pass. Nobody is waited
for, so no device rests while there is something to do, and lanes go from step to step by
themselves. A device that chooses so adds no wait to those that the validator has seen.

*The list, with yields.* Varuna's (EuroSys 2022) leaves some of it open: a
recomputation whose gradient has not come lets the next forward pass go first. So forward passes are
on one lane of a device (`COMPUTE`), recomputations and backward passes on another one (`LATER`).
Each lane keeps its own order. Between the two, the device takes the pass that stands first in the
list, unless that pass yields: then the first one of another lane. The pass that is chosen is waited
for, whatever comes meanwhile, and nothing comes between the units of a stage that it goes through.
A step ends on a device before the next one begins there.

Choosing adds waits to those that the validator has seen, and no device waits for ever. Consider the
passes that devices have chosen and that cannot begin. None of them waits for its own device, which
leaves out what is held back. A forward pass so waits for ranks before its own, up to the first,
which waits for nobody, or for a place that a rank behind it frees by a backward pass. A backward
pass waits for ranks behind its own. Its recomputation was chosen before its gradient had come only
where no forward pass was left, or the next one was held back by backward passes from this one on:
no rank behind it wants a forward pass of this rank first. So some pass on the way always begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workbench.schedule.action import COMPUTE, LATER, Action, Kind, lane_kind

NEVER = -1
"""Instead of an action that is waited for, or of a lane."""
Refs = Sequence[tuple[tuple[int, int], ...]]
"""Action -> (relative step, action) of what it waits for."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Lanes that share devices, and passes that yield. Actions are those of one step, by number;
    their numbers are their order in the list."""

    device_of: Sequence[int]
    """Lane -> its device, or -1 where it shares none."""
    queues: Sequence[Sequence[Sequence[int]]]
    """Device -> its lanes, each with its actions in order."""
    goes_on: Sequence[bool]
    """Action -> whether it is of the pass that the action before it on its lane belongs to."""
    yields_to: Sequence[int]
    """Action -> the action whose end it wants before it takes its turn, or NEVER."""
    held_by: Sequence[Sequence[int]]
    """Action -> actions of other lanes of its device that its pass waits for: until they have ended
    the device does not choose it, for it would wait for itself."""
    places: Sequence[int] = ()
    """Action -> its place among passes that are ready; empty where the list counts. Nothing goes
    on, yields or is held back where devices take what is ready."""


def turns_of(
    actions: Sequence[Action],
    lane_keys: Sequence[tuple[int, str]],
    lane_actions: Sequence[Sequence[int]],
    references: Refs,
    order: Iterable[int],
) -> Turns | None:
    """The turns of a schedule, None where every lane has its device to itself; arguments as of
    graph.py. `order` is one in which the actions of a step can run."""
    if not any(text == LATER for _, text in lane_keys):
        return _ready(actions, lane_keys, lane_actions)
    number = {key: lane for lane, key in enumerate(lane_keys)}
    pairs = [
        (lane, number[rank, LATER])
        for lane, (rank, text) in enumerate(lane_keys)
        if text == COMPUTE and (rank, LATER) in number
    ]
    shared = [lane for pair in pairs for lane in pair]
    clocks = _clocks(shared, lane_actions, references, order)
    device_of, goes_on = [NEVER] * len(lane_keys), [False] * len(actions)
    held_by: list[Sequence[int]] = [()] * len(actions)
    for device, pair in enumerate(pairs):
        for lane, other in (pair, pair[::-1]):
            device_of[lane], at = device, shared.index(other)
            for those in _passes([actions[i] for i in lane_actions[lane]], lane_actions[lane]):
                for i in those[1:]:
                    goes_on[i] = True
                held = max(clocks[i][at] for i in those)
                held_by[those[0]] = lane_actions[other][:held][-1:]
    return Turns(
        device_of=device_of,
        queues=[[lane_actions[lane] for lane in pair] for pair in pairs],
        goes_on=goes_on,
        yields_to=_yields(actions),
        held_by=held_by,
    )


def _ready(
    actions: Sequence[Action],
    lane_keys: Sequence[tuple[int, str]],
    lane_actions: Sequence[Sequence[int]],
) -> Turns | None:
    """Turns of ranks with several lanes of passes, each of which takes what is ready."""
    of_rank: dict[int, list[int]] = {}
    for lane, (rank, text) in enumerate(lane_keys):
        if lane_kind(text) == COMPUTE:
            of_rank.setdefault(rank, []).append(lane)
    shared = [lanes for lanes in of_rank.values() if len(lanes) > 1]
    if not shared:
        return None
    device_of = [NEVER] * len(lane_keys)
    for device, lanes in enumerate(shared):
        for lane in lanes:
            device_of[lane] = device
    return Turns(
        device_of=device_of,
        queues=[[lane_actions[lane] for lane in lanes] for lanes in shared],
        goes_on=[False] * len(actions),
        yields_to=[NEVER] * len(actions),
        held_by=[()] * len(actions),
        places=places(actions),
    )


def places(actions: Sequence[Action]) -> list[int]:
    """The place of each action among those that are ready, 0 being the first."""
    units = 1 + max(action.unit for action in actions)
    return [2 * (units - 1 - a.unit) + (a.kind is Kind.FORWARD) for a in actions]


def first_ready(
    turns: Turns, device: int, begun: Sequence[int], ready: Callable[[int, int], bool]
) -> int:
    """The lane, counted among those of the device, whose next action comes first among those that
    are ready; NEVER where none is. `begun`: lane -> its actions that have begun, in all steps;
    `ready` tells of a step, counted from the first, and an action of it."""
    heads = []
    for lane, actions in enumerate(turns.queues[device]):
        step, at = divmod(begun[lane], len(actions))
        if ready(step, actions[at]):
            heads.append((turns.places[actions[at]], lane))
    return min(heads)[1] if heads else NEVER


def _clocks(
    shared: Sequence[int],
    lane_actions: Sequence[Sequence[int]],
    references: Refs,
    order: Iterable[int],
) -> list[list[int]]:
    """Action -> how many actions of each shared lane have ended in its step when it starts."""
    waits = [[other for back, other in those if not back] for those in references]
    place: dict[int, tuple[int, int]] = {}
    for lane, own in enumerate(lane_actions):
        for before, i in zip(own, own[1:], strict=False):
            waits[i].append(before)
        if lane in shared:
            place |= {i: (shared.index(lane), k + 1) for k, i in enumerate(own)}
    clocks: list[list[int]] = [[]] * len(waits)
    for i in order:
        clock = [0] * len(shared)
        for other in waits[i]:
            clock = [*map(max, clock, clocks[other])]
            if other in place:
                lane, ended = place[other]
                clock[lane] = max(clock[lane], ended)
        clocks[i] = clock
    return clocks


def _passes(own: Sequence[Action], numbers: Sequence[int]) -> list[list[int]]:
    """The actions of a lane, pass by pass through units that follow each other."""
    found: list[list[int]] = []
    before: Action | None = None
    for action, i in zip(own, numbers, strict=True):
        alike = before and (before.kind, before.microbatch) == (action.kind, action.microbatch)
        if not alike or abs(before.unit - action.unit) > 1:
            found.append([])
        before = action
        found[-1].append(i)
    return found


def _yields(actions: Sequence[Action]) -> list[int]:
    """A recomputation yields to the gradient that its stage waits for: of its micro-batch, into the
    next unit that another rank has."""
    came: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
    for i, action in enumerate(actions):
        if action.kind is Kind.RECV_GRAD:
            came.setdefault((action.rank, action.microbatch), []).append((action.unit, i))
    return [
        min(
            (each for each in came.get((a.rank, a.microbatch), ()) if each[0] > a.unit),
            default=(0, NEVER),
        )[1]
        if (a.kind, a.lane) == (Kind.RECOMPUTE, LATER)
        else NEVER
        for a in actions
    ]


def next_lane(turns: Turns, device: int, begun: Sequence[int], ended: Callable[[int], bool]) -> int:
    """The lane, counted among those of the device, that begins its next action; NEVER where all
    that is left of the step is held back. `begun`: lane -> its actions of this step that have
    begun; `ended` tells of an action of this step whether it has."""
    heads: list[tuple[int, int]] = []
    for lane, actions in enumerate(turns.queues[device]):
        if begun[lane] == len(actions):
            continue
        action = actions[begun[lane]]
        if turns.goes_on[action]:
            return lane
        if all(map(ended, turns.held_by[action])):
            heads.append((action, lane))
    if not heads:
        return NEVER
    heads.sort()
    wanted = turns.yields_to[heads[0][0]]
    yields = len(heads) > 1 and wanted != NEVER and not ended(wanted)
    return heads[yields][1]


class Devices:
    """The turns of a run of several steps."""

    def __init__(self, turns: Turns, num_actions: int, num_nodes: int) -> None:
        self._turns, self._actions, self._nodes = turns, num_actions, num_nodes
        self._first = [0] * len(turns.queues)
        """Device -> the first node of its step."""
        self._begun = [[0] * len(lanes) for lanes in turns.queues]
        """Device -> lane -> its actions of that step that have begun."""
        self._chosen = [NEVER] * len(turns.queues)
        """Device -> the node that it waits for."""
        self._busy = [False] * len(turns.queues)
        self.free = [*range(len(turns.queues))]
        """Devices that may begin something now."""

    def device(self, lane: int) -> int:
        """The device of a lane, or -1."""
        return self._turns.device_of[lane]

    def end(self, device: int) -> None:
        """The action that runs there has ended."""
        self._busy[device] = False
        self.free.append(device)

    def begin(self, missing: Sequence[int], ended: Sequence[bool]) -> list[int]:
        """Nodes that begin now. `missing`: node -> how many it waits for; `ended`: node -> whether
        it has."""
        nodes = []
        for device in dict.fromkeys(self.free):
            if self._busy[device]:
                continue
            if self._turns.places:
                self._chosen[device] = self._choose_ready(device, missing)
            elif self._chosen[device] == NEVER:
                self._chosen[device] = self._choose(device, ended)
            node = self._chosen[device]
            if node != NEVER and not missing[node]:
                self._chosen[device], self._busy[device] = NEVER, True
                nodes.append(node)
        self.free.clear()
        return nodes

    def _choose_ready(self, device: int, missing: Sequence[int]) -> int:
        def ready(step: int, action: int) -> bool:
            node = step * self._actions + action
            return node < self._nodes and not missing[node]

        begun = self._begun[device]
        lane = first_ready(self._turns, device, begun, ready)
        if lane == NEVER:
            return NEVER
        queue = self._turns.queues[device][lane]
        step, at = divmod(begun[lane], len(queue))
        begun[lane] += 1
        return step * self._actions + queue[at]

    def _choose(self, device: int, ended: Sequence[bool]) -> int:
        queues, begun = self._turns.queues[device], self._begun[device]
        if begun == [*map(len, queues)]:
            self._first[device] += self._actions
            begun[:] = [0] * len(begun)
        first = self._first[device]
        if first >= self._nodes:
            return NEVER
        lane = next_lane(self._turns, device, begun, lambda action: ended[first + action])
        if lane == NEVER:
            return NEVER
        begun[lane] += 1
        return first + queues[lane][begun[lane] - 1]
