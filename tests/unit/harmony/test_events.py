"""The event graph: streams in order, transfers in two streams, circles named."""

import pytest

from workbench.methods.harmony.published.events import Deadlock, EventGraph


def test_an_event_waits_for_its_inputs_and_its_stream():
    events = EventGraph()
    load = events.add("in", 2.0, [], "load")
    first = events.add("compute", 3.0, [load], "first")
    events.add("in", 1.0, [], "load 2")
    events.add("compute", 1.0, [], "second")
    events.add("out", 1.0, [first], "store")
    times = events.run()
    assert times.start == [0, 2, 2, 5, 5]
    assert times.end == [2, 5, 3, 6, 6]


def test_a_transfer_between_two_gpus_starts_when_both_sides_can():
    events = EventGraph()
    busy = events.add((1, "compute"), 5.0, [], "busy")
    events.add((1, "in"), 7.0, [], "earlier transfer")
    made = events.add((0, "compute"), 1.0, [], "made")
    sent = events.add((0, "out"), 2.0, [made], "transfer")
    events.join(sent, (1, "in"), [busy])
    used = events.add((1, "compute"), 1.0, [sent], "used")
    times = events.run()
    assert (times.start[sent], times.end[sent], times.start[used]) == (7, 9, 9)


def test_a_reserved_event_may_be_waited_for_before_it_is_added():
    events = EventGraph()
    (later,) = events.reserve(1)
    waiting = events.add("a", 1.0, [later], "waiting")
    events.add("b", 4.0, [], "later", later)
    assert events.run().start[waiting] == 4


def test_a_deadlock_is_told_as_the_circle_of_what_waits():
    events = EventGraph()
    events.add("c", 1.0, [], "fine")
    first, second = events.reserve(2)
    events.add("a", 1.0, [second], "send", first)
    events.add("b", 1.0, [first], "receive", second)
    events.add("b", 1.0, [], "behind")
    circle = "send waits for receive waits for send|receive waits for send waits for receive"
    with pytest.raises(Deadlock, match=f"the schedule deadlocks: ({circle})$"):
        events.run()
