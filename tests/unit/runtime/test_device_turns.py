"""Who has the device next, with made-up events instead of a GPU's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from tests.runs.helpers import at_once
from workbench.methods.pipeline import ideal
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.runtime.executor.board import Failed
from workbench.runtime.executor.completions import Completions
from workbench.runtime.executor.device_turns import DeviceTurns, device_turns
from workbench.runtime.executor.executor import Executor
from workbench.runtime.executor.lane_threads import lane_threads
from workbench.schedule import Kind
from workbench.schedule.action import COMPUTE, LATER, format_name, parse_name
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import simulate

LANES = (COMPUTE, LATER)
SCHEDULE = ideal.schedule_of("varuna", 3, 4)
QUEUES = {
    lane: [i for i, a in enumerate(SCHEDULE.actions) if (a.rank, a.lane) == (1, lane)]
    for lane in LANES
}
STAGES = 4
ASYNCHRONOUS = [
    schedule(
        Asynchronous(
            label="async-1f1b", positions=[0] * STAGES, depths=[*reversed(range(STAGES))],
            micros=micros, samples=1, sizes=ideal.IdealSizes(),
        )
    )
    for micros in (1, 3)
]  # fmt: skip


class Seconds:
    def seconds(self, action):
        return 1.0 + action.unit / 10

    def slowdown(self, lane, busy):
        return 1.0


class Event:
    """A device's end of an action."""

    def __init__(self, log: list[str], name: str, happened: bool) -> None:
        self._log, self._name, self._happened = log, name, happened

    def query(self) -> bool:
        return self._happened

    def synchronize(self) -> None:
        self._log.append(f"wait for {self._name}")


def walk(
    turns: DeviceTurns, lane: str, completions: Completions, log: list[str], cuda: bool,
    made: Schedule = SCHEDULE, queue: Sequence[int] = (),
) -> None:  # fmt: skip
    """A lane's thread."""
    for i in queue or QUEUES[lane]:
        turns.take(lane)
        name, completion = made.actions[i].name.removeprefix("1:"), completions.of(0)[i]
        log.append(name)
        completion.cuda = Event(log, name, True) if cuda else None
        completion.set()
        turns.told(lane, completion.cuda)


def run_step(late: str, *, cuda: bool) -> list[str]:
    """What rank 1 does in a step in which the gradient `late` is not there."""
    completions, log = Completions(range(len(SCHEDULE.actions))), []
    completions.begin([0])
    for i, action in enumerate(SCHEDULE.actions):
        completion, there = completions.of(0)[i], action.name != late
        if action.kind is Kind.RECV_GRAD and (there or cuda):
            completion.cuda = Event(log, action.name, there) if cuda else None
            completion.set()
    turns = device_turns(SCHEDULE, 1, completions, ())
    at_once(*(partial(walk, turns, lane, completions, log, cuda) for lane in LANES))
    return log


def test_a_gradient_that_is_not_there_lets_the_next_forward_pass_go_first():
    listed = "F2.0 F2.1 F2.2 R2.0 B2.0 R2.1 B2.1 R2.2 B2.2 F2.3 R2.3 B2.3"
    assert " ".join(run_step("none", cuda=False)) == listed
    overtaken = "F2.0 F2.1 F2.2 R2.0 B2.0 F2.3 R2.1 B2.1 R2.2 B2.2 R2.3 B2.3"
    assert " ".join(run_step("1:RECV_GRAD3.1", cuda=False)) == overtaken
    there = [word for word in run_step("1:RECV_GRAD3.1", cuda=True) if "wait" not in word]
    assert " ".join(there) == overtaken


def run_stages() -> list[str]:
    """What a GPU with several stages does in the first step of an asynchronous pipeline."""
    made, log = ASYNCHRONOUS[1], []
    completions = Completions(range(len(made.actions)))
    completions.begin([0])
    waits = lane_threads(made, 0, announces=True, together=True).local
    turns = device_turns(made, 0, completions, waits)
    turns.ask(1)
    queues = {
        lane: [i for i, action in enumerate(made.actions) if action.lane == lane]
        for _, lane in made.lanes
    }
    assert len(queues) == STAGES
    at_once(
        *(
            partial(walk, turns, lane, completions, log, True, made, queue)
            for lane, queue in queues.items()
        )
    )
    return log


@pytest.mark.parametrize("run", [partial(run_step, "none", cuda=True), run_stages])
def test_on_a_gpu_a_pass_is_chosen_when_the_one_before_the_running_one_has_ended(run):
    log = run()
    passes = [word for word in log if "wait" not in word]
    for before, running, chosen in zip(passes, passes[1:], passes[2:], strict=False):
        assert log.index(running) < log.index(f"wait for {before}") < log.index(chosen)


def test_who_stops_wakes_whoever_waits_for_the_device():
    turns = device_turns(SCHEDULE, 1, Completions(range(len(SCHEDULE.actions))), ())
    found = []

    def wait() -> None:
        with pytest.raises(Failed):
            turns.take(LATER)
        found.append(LATER)

    waiting = threading.Thread(target=wait)
    waiting.start()
    turns.stop()
    waiting.join()
    assert found == [LATER]
    with pytest.raises(Failed):
        turns.take(COMPUTE)


@pytest.mark.parametrize("asked", ["at once", "one by one"])
@pytest.mark.parametrize("made", ASYNCHRONOUS)
def test_stages_of_a_device_go_in_the_order_that_is_simulated(made, asked):
    steps, done = 6, []
    executor = Executor(
        made, lambda action, step: done.append((action.name, step)), torch.device("cpu")
    )
    if asked == "at once":
        executor.run(0, steps)
        events = sorted(simulate(made, Seconds(), steps=steps).events, key=lambda e: e.start_s)
        assert done == [(event.name, event.step) for event in events]
    else:
        for step in range(steps):
            executor.step(step)
        executor.end()
        assert len(done) == steps * len(made.actions)
    executor.close()
    of_stage = {lane: [a.name for a in own] for (_, lane), own in made.lanes.items()}
    for own in of_stage.values():  # a stage has its own order in any case
        late = {a.name: a.lag for a in made.actions}
        seen = [(name, step + late[name]) for name, step in done if name in own]
        assert seen == sorted(seen, key=lambda each: (each[1], own.index(each[0])))


def test_of_passes_that_are_ready_the_deepest_stages_goes_first():
    made = ASYNCHRONOUS[0]
    events = simulate(made, Seconds(), steps=12).events
    at = {(event.name, event.step): event for event in events}
    waits = {a.name: [parse_name(text) for text in a.after] for a in made.actions}
    before = {}
    for own in made.lanes.values():
        names = [a.name for a in own]
        before |= dict(zip(names, [None, *names], strict=False))
    late = {a.name: a.lag for a in made.actions}
    chosen = 0
    for event in events:
        for other in events:  # one that waits although it could have been chosen
            if other.start_s <= event.start_s or other.unit <= event.unit:
                continue
            ready = [
                at.get((text, other.step + late[other.name] + ref.step - late[text]))
                for ref in waits[other.name]
                for text in [format_name(ref.kind, ref.unit, ref.microbatch, rank=ref.rank)]
            ]
            ready = max((each.end_s for each in ready if each), default=0.0)
            own = [e for e in events if e.unit == other.unit and e.start_s < other.start_s]
            ready = max([ready, *(e.end_s for e in own)])
            assert ready > event.start_s, f"{other} was ready before {event} began"
            chosen += 1
    assert chosen


def test_one_thread_walks_no_lanes_where_an_order_is_open():
    several = ideal.schedule_of("1f1b", 3, 4)
    for made, most in ((SCHEDULE, 1), (several, 3)):
        for rank in range(3):
            found = lane_threads(made, rank, announces=True, together=True).threads
            lanes = max(len({lane for lane, _ in walk}) for walk in found.values())
            assert lanes >= most
            assert most > 1 or lanes == 1
    assert LATER not in device_turns(SCHEDULE, 2, Completions([]), ())
    assert COMPUTE not in device_turns(several, 0, Completions([]), ())
