"""Events as an interactive timeline shows them: plain data, which no widget is needed to make.

What is slow or worth a test is done here, once: lanes sorted into rows, times counted in whole
nanoseconds from the start of their block, names put into words, busy shares, the longest idle time
of each lane. The script in the page (timeline.js) finds what is in sight and draws it.

Names come from files that anybody may have written. They stay text all the way; characters that
cannot be printed are shown as escapes, so that none of them can hide or turn around what follows.

The data is one dictionary, JSON-able as it is:

    title     of the whole
    notes     sentences: what a reader should know
    ranks     the ranks there are
    rows      [{rank, lane, words}], the same in every block
    looks     [{words, color, ink}] of the kinds that occur, in the order of legends
    names     [{name, words, unit, look}], one for each different action
    blocks    predicted above measured, those that have events:
              {source, label, span, each, steps, lanes, events, memory}
      span    nanoseconds from its first start to its last end
      each    nanoseconds a step: the mean distance of the steps' starts, None of a single step
      steps   [[number, start]], start being that of the step's first computation
      lanes   one a row: {busy, idle, first, last}; busy is the share of a step in which the lane
              works, idle the longest time between two events as [start, end] or None, and the
              lane's events are those from `first` to before `last`
      events  columns {name, step, start, end, bytes}; by lane, then by start
      memory  [{rank, tier, peak, budget, at, bytes}] where the schedule is known
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workbench.runs.timeline import check_event
from workbench.schedule.action import (
    COMPUTE,
    D2H,
    DISK_IN,
    DISK_OUT,
    GUESS,
    H2D,
    HOST,
    LANES,
    NET_IN,
    NET_OUT,
    VERDICT,
    VISIT,
    Kind,
    lane_kind,
    parse_name,
)
from workbench.schedule.looks import LOOKS, WAITING
from workbench.schedule.schedule import TIERS
from workbench.schedule.simulate import Event, Occupied
from workbench.schedule.waits import told_apart

PREDICTED, MEASURED = "predicted", "measured"
LABELS = {PREDICTED: "predicted (simulated)", MEASURED: "measured"}
"""How a block says where its numbers come from, in the order of blocks."""

PHRASES = {
    Kind.FORWARD: "forward of {unit}",
    Kind.RECOMPUTE: "recompute of {unit}",
    Kind.BACKWARD: "backward of {unit}",
    Kind.INPUT_GRAD: "input gradient of {unit}",
    Kind.WEIGHT_GRAD: "weight gradient of {unit}",
    Kind.LOAD: "weights of {unit} to the device",
    Kind.EVICT: "weights of {unit} to the host",
    Kind.STASH: "activations of {unit} to the host",
    Kind.FETCH: "activations of {unit} back to the device",
    Kind.GRAD_OUT: "gradients of {unit} to the host",
    Kind.SUM_OUT: "gradients of {unit} so far to the host",
    Kind.SUM_IN: "gradients of {unit} so far back to the device",
    Kind.NORM: "global gradient norm",
    Kind.UPDATE: "update of {unit}",
    Kind.SETTLE: "update of {unit} kept, or redone clipped, once the norm is known",
    Kind.MOMENTS: "moments of {unit}, whose weights are updated already",
    Kind.SEND: "message of {unit} sent",
    Kind.RECV: "message of {unit} received",
    Kind.SEND_GRAD: "input gradient of {unit} sent",
    Kind.RECV_GRAD: "input gradient of {unit} received",
    Kind.REDUCE: "gradients of {unit} reduced",
    Kind.PULL: "optimizer states of {unit} to the device",
    Kind.PUSH: "optimizer states of {unit} back to the host",
    Kind.READ: "optimizer states of {unit} from the disk",
    Kind.SPILL: "optimizer states of {unit} to the disk",
    WAITING: "waiting for another rank, to exchange what is of {unit}",
}
LANE_WORDS = {
    COMPUTE: "compute",
    VISIT: "device updates",
    H2D: "host to device",
    D2H: "device to host",
    HOST: "host updates",
    DISK_IN: "from the disk",
    DISK_OUT: "to the disk",
    NET_IN: "from other ranks",
    NET_OUT: "to other ranks",
}
VISITS = {GUESS: "before the norm is known", VERDICT: "once the norm is known"}
LONGEST_TEXT = 200


def timeline_data(
    *,
    measured: Iterable[Event] = (),
    predicted: Iterable[Event] = (),
    title: str = "",
    memory: Occupied | None = None,
    layers: int | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Plain data of the timeline of these events, as the module says.

    `memory` is that of their schedule; bytes which the steps before still had are not in it.
    `layers` tells units that are no layer: unit 0 embeds, and
    the one after the last layer is the head. Raises ValueError where there is no event, or where
    one cannot be shown.
    """
    whole = {PREDICTED: list(predicted), MEASURED: list(measured)}
    if not any(whole.values()):
        raise ValueError("there is no event to show, neither predicted nor measured")
    for event in (event for events in whole.values() for event in events):
        check_event(event)
    given = {source: told_apart(events) for source, events in whole.items()}
    everything = [event for events in given.values() for event in events]
    kinds = {event.kind for event in everything}
    looks = list(dict.fromkeys(look for kind, look in LOOKS.items() if kind in kinds))
    ids = {(event.name, event.kind, event.unit, event.microbatch) for event in everything}
    names = {key: i for i, key in enumerate(sorted(ids, key=str))}
    rows = sorted(
        {(event.rank, event.lane) for event in everything},
        key=lambda key: (key[0], LANES.index(lane_kind(key[1])), key[1]),
    )
    return {
        "title": printable(title),
        "notes": [printable(note) for note in notes],
        "ranks": sorted({rank for rank, _ in rows}),
        "rows": [
            {"rank": rank, "lane": lane, "words": LANE_WORDS[lane_kind(lane)]}
            for rank, lane in rows
        ],
        "looks": [{"words": k.words, "color": k.color, "ink": k.ink} for k in looks],
        "names": [
            {
                "name": printable(name),
                "words": in_words(name, kind, unit, microbatch, layers),
                "unit": unit,
                "look": looks.index(LOOKS[kind]),
            }
            for name, kind, unit, microbatch in names
        ],
        "blocks": [
            _block(source, events, rows, names)
            | {"memory": _memory(memory, whole[source]) if memory is not None else []}
            for source, events in given.items()
            if events
        ],
    }


def in_words(
    name: str, kind: str, unit: int, microbatch: int | None, layers: int | None = None
) -> str:
    """Work of an action, for readers who do not read names.

    >>> in_words("B12.0", "B", 12, 0)
    'backward of layer 12, micro-batch 0'
    >>> in_words("L3+1", "L", 3, None), in_words("F5.0", "F", 5, 0, layers=4)
    ('weights of layer 3 to the device, time 2 in the step', 'forward of the head, micro-batch 0')
    """
    whose = f"layer {unit}"
    if layers is not None:
        whose = {0: "the embedding", layers + 1: "the head"}.get(unit, whose)
    words = PHRASES[kind].format(unit=whose)
    if microbatch is not None:
        words += f", micro-batch {microbatch}"
    try:
        turn = parse_name(name).turn
    except ValueError:  # a name of somebody else's; its fields are all there is to say
        turn = 0
    if turn and kind in (Kind.PULL, Kind.PUSH):
        return f"{words}, {VISITS.get(turn, f'time {turn + 1} in the step')}"
    return f"{words}, time {turn + 1} in the step" if turn else words


def printable(text: str) -> str:
    """The text on one line, cut where it is very long, without characters that act instead of
    showing.

    >>> printable("F3.0" + chr(27) + "[31m")
    'F3.0\\\\x1b[31m'
    """
    cut = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def _block(
    source: str, events: list[Event], rows: list[tuple[int, str]], names: dict[tuple, int]
) -> dict[str, Any]:
    """One timeline, in nanoseconds from its own start."""
    origin = min(event.start_s for event in events)

    def ns(seconds: float) -> int:
        return round((seconds - origin) * 1e9)

    place = {key: i for i, key in enumerate(rows)}
    columns: dict[str, list[int]] = {"name": [], "step": [], "start": [], "end": [], "bytes": []}
    of_row: list[list[tuple[int, int, bool]]] = [[] for _ in rows]
    for event in sorted(events, key=lambda e: (place[e.rank, e.lane], e.start_s, e.end_s)):
        start, end = ns(event.start_s), ns(event.end_s)
        of_row[place[event.rank, event.lane]].append((start, end, event.kind == WAITING))
        key = (event.name, event.kind, event.unit, event.microbatch)
        for column, value in zip(
            columns, (names[key], event.step, start, end, event.nbytes), strict=True
        ):
            columns[column].append(value)
    span = max(columns["end"])
    starts = _step_starts(events)
    each = (ns(starts[-1][1]) - ns(starts[0][1])) / (len(starts) - 1) if len(starts) > 1 else None
    # Updates of a step reach into the next one, so that the recorded time has less than its work at
    # one end and more at the other; work and time of a step have neither.
    whole = span if each is None else each * len(starts)
    lanes, first = [], 0
    for spans in of_row:
        busy, idle = _busy_and_idle([(start, end) for start, end, waits in spans if not waits])
        share = min(1.0, busy / whole) if whole else 0.0
        last = first + len(spans)
        lanes.append({"busy": round(share, 4), "idle": idle, "first": first, "last": last})
        first = last
    return {
        "source": source,
        "label": LABELS[source],
        "span": span,
        "each": None if each is None else round(each),
        "steps": [[step, ns(start)] for step, start in starts],
        "lanes": lanes,
        "events": columns,
    }


def _busy_and_idle(spans: list[tuple[int, int]]) -> tuple[int, list[int] | None]:
    """Nanoseconds in which at least one of a lane's events runs, and the longest gap between two;
    to wait for others is a gap.

    A lane works in order, so nothing that was not recorded lies between two events; before the
    first and after the last one it may.
    """
    busy, until, idle = 0, None, None
    for start, end in spans:
        if until is not None and start - until > (0 if idle is None else idle[1] - idle[0]):
            idle = [until, start]
        busy += max(0, end - (start if until is None else max(start, until)))
        until = end if until is None else max(until, end)
    return busy, idle


def _step_starts(events: list[Event]) -> list[tuple[int, float]]:
    """(step, seconds) where each step's computation starts, in time order; of a step without any,
    where its first event does."""
    first: dict[int, tuple[bool, float]] = {}
    for event in events:
        candidate = (lane_kind(event.lane) != COMPUTE, event.start_s)
        first[event.step] = min(candidate, first.get(event.step, candidate))
    return sorted(((step, at) for step, (_, at) in first.items()), key=lambda pair: pair[1])


def _memory(memory: Occupied, events: list[Event]) -> list[dict[str, Any]]:
    """Bytes of each tier of each rank, where they change or have a budget."""
    origin = min((event.start_s for event in events), default=0.0)
    strips = []
    for rank in sorted({event.rank for event in events}):
        for tier in TIERS:
            line = memory.line(events, tier, rank)
            budget = memory.budgets.get(tier)
            if len(line) == 1 and not (line[0][1] and budget is not None):
                continue
            strips.append(
                {
                    "rank": rank,
                    "tier": tier,
                    "peak": max(nbytes for _, nbytes in line),
                    "budget": budget,
                    "at": [max(0, round((at - origin) * 1e9)) for at, _ in line],
                    "bytes": [nbytes for _, nbytes in line],
                }
            )
    return strips
