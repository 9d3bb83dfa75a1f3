"""Rounds of a job whose hosts and workers come and go, with a clock that the test holds."""

from __future__ import annotations

import re
from threading import Event
from unittest.mock import Mock

import pytest

from tests.runs.helpers import wait_for
from workbench.elastic import membership
from workbench.elastic.membership import Membership
from workbench.elastic.messages import Message, Start
from workbench.elastic.placement import Ready, Shape, fixed, in_thread
from workbench.elastic.rounds import Terms, pays

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Held:
    """Members of a job of two slots a host, and a clock."""

    def __init__(self, *hosts: str, batch: int = 8, **more: object) -> None:
        self.now, self.said = 100.0, []
        given = {"morph": "gain", "batch": batch, "per_host": 2, "choose": fixed(2, 1, batch)}
        own = {"hosts": dict.fromkeys(hosts, 2), **more}
        prepare = own.pop("prepare", None)
        self.members = Membership(
            Terms(**(given | own)), now=self.now, say=self.said.append, prepare=prepare
        )

    def after(self, seconds: float, *alive: str) -> list[tuple[str, object]]:
        """Let time pass, in which these hosts are heard; what is to be done then."""
        for _ in range(max(1, round(seconds / 0.5))):
            self.now += min(seconds, 0.5)
            for host in alive:
                self.tell(host, "beat")
            self.members.tick(self.now)
        done, self.members.out = self.members.out, []
        return done

    def tell(self, host: str, kind: str, **fields: object) -> None:
        fields.setdefault("round", self.members.number)
        self.members.take(host, Message(kind=kind, **fields), self.now)

    def come(self, *hosts: str) -> None:
        for host in hosts:
            assert self.members.connected(host, self.now)
            self.tell(host, "ready")

    def begun(self, *hosts: str) -> dict[str, Start]:
        """Let all be called and come; what each is to start."""
        self.after(0.1)
        self.come(*hosts)
        return starts(self.after(0.1))

    def step(self, step: int, ranks: int, seconds: float = 1.0) -> None:
        for rank in range(ranks):
            self.tell(A, "step", rank=rank, step=step, seconds=seconds)

    def leave(self, ranks: int) -> None:
        for rank in range(ranks):
            self.tell(A, "ended", rank=rank)

    def over(self, *hosts: str) -> dict[str, Start]:
        for host in hosts:
            self.tell(host, "over")
        return starts(self.after(0.1))

    def commit(self, host: str, round: int) -> bool:
        return self.members.may(host, Message(kind="ask", round=round, step=5))


def running(*hosts: str, **more: object) -> Held:
    """Members whose first round has begun."""
    held = Held(*hosts, **more)
    held.begun(*hosts)
    return held


def starts(messages: list[tuple[str, Message | None]]) -> dict[str, Start]:
    return {host: m.start for host, m in messages if m is not None and m.start is not None}


def save(round: int) -> tuple[str, Message]:
    return A, Message(kind="save", round=round)


def test_a_round_begins_when_all_are_there_and_names_what_it_leaves() -> None:
    held = Held(A, B, C, choose=fixed(4, 1, 8))
    assert held.after(0.1) == [(A, None), (B, None), (C, None)]
    held.come(A, B)
    assert held.after(30, A, B) == [], "one may still come"
    held.come(C)
    begun = starts(held.after(0.1))
    assert [(begun[h].first, begun[h].count) for h in (A, B)] == [(0, 2), (2, 2)]
    assert C not in begun
    assert held.said[-1].endswith(f"spare slots {C}:2")


def test_a_host_that_is_silent_at_the_start_is_gone_without() -> None:
    held = Held(A, B)
    held.after(0.1)
    held.come(A)
    assert [*starts(held.after(70, A))] == [A]
    assert any(text.startswith(f"{B} does not come: silent") for text in held.said)


def test_a_silent_host_ends_the_round_and_cannot_commit_any_more() -> None:
    held = running(A, B)
    held.step(1, 4)
    assert held.commit(B, 1)
    held.tell(A, "committed", step=1)
    messages = held.after(4.5, A)
    assert (A, Message(kind="end", round=1)) in messages
    assert (B, Message(kind="bye")) in messages
    assert not held.commit(B, 1), "its host was given up"
    assert not held.commit(A, 1), "the round is over"
    again = held.over(A)
    assert (again[A].hosts, again[A].resume_step, again[A].began) == (1, 1, 0)
    assert held.commit(A, 2)
    assert not held.commit(A, 1), "a later round has begun"
    assert not held.members.connected(B, held.now), "it was not called again yet"
    assert (B, None) in held.after(membership.RETRY_S, A)


def test_nobody_is_lost_while_the_manager_itself_stood_still() -> None:
    held = running(A)
    held.now += 60
    held.members.tick(held.now)
    assert held.members.round.phase == "running"


def test_a_dead_worker_ends_the_round_and_three_without_a_step_the_job() -> None:
    held = running(A)
    for _ in range(3):
        assert held.members.outcome is None
        held.tell(A, "ended", rank=1, failure="died")
        held.tell(A, "ended", rank=0, failure="died")  # its peers fail, too
        held.over(A)
    assert "rank 1 on 10.0.0.1 died" in held.members.outcome


def test_before_a_host_goes_all_save_and_the_next_round_is_without_it() -> None:
    held = running(A, B)
    held.members.notice(B, held.now + 300, held.now)
    assert held.after(200, A, B) == [], "it is early yet"
    assert save(1) in held.after(80, A, B)
    assert held.commit(B, 1)
    held.leave(4)
    assert [*held.over(A, B)] == [A]
    with pytest.raises(ValueError, match="none of the hosts"):
        held.members.notice("10.0.0.9", held.now, held.now)
    held.members.notice(A, held.now - 999, held.now)
    assert save(2) in held.after(0.1, A), "a past one is due"


def test_training_that_ends_is_done_and_a_wanted_save_goes_on() -> None:
    held = running(A)
    held.tell(A, "wanted", rank=1)
    held.leave(2)
    assert held.over(A)
    held.leave(2)
    assert held.members.outcome == "done"


@pytest.mark.parametrize("at_once", [False, True])
def test_a_job_that_is_stopped_saves_unless_it_is_to_end_at_once(at_once: bool) -> None:
    held = running(A, B)
    held.step(1, 4)
    held.members.stop(held.now, at_once=at_once)
    end, told = Message(kind="end", round=1), held.after(0.1, A, B)
    assert (save(1) in told, (A, end) in told) == (not at_once, at_once)
    if not at_once:
        assert held.commit(B, 1)
        held.leave(3)
        assert (A, end) not in held.after(100, A, B), "one still saves"
        held.tell(B, "ended", rank=3)
    assert not held.over(A, B)
    assert (held.members.outcome, held.members.round) == ("stopped", None)


def test_a_host_that_is_lost_while_a_stopped_job_saves_is_named() -> None:
    held = running(A, B)
    held.step(1, 4)
    held.members.stop(held.now)
    assert (A, Message(kind="end", round=1)) in held.after(4.5, A)
    assert held.said[-1].startswith(f"{B} is lost: silent")


def test_a_job_that_is_stopped_twice_or_before_a_step_ends_at_once() -> None:
    for steps in (0, 1):
        held = running(A)
        for step in range(steps):
            held.step(step + 1, 2)
            held.members.stop(held.now)
            assert save(1) in held.after(0.1, A)
        held.members.stop(held.now)
        assert (A, Message(kind="end", round=1)) in held.after(0.1, A)


def test_the_list_shrinks_and_grows() -> None:
    held = running(A, B, morph="always")
    held.members.listed({A: 2}, held.now)
    assert save(1) in held.after(0.1, A, B)
    held.leave(4)
    assert [*held.over(A, B)] == [A]
    held.members.listed({A: 2, C: 2}, held.now)
    assert (C, None) in held.after(0.1, A)
    held.come(C)
    assert save(2) in held.after(0.1, A, C)


@pytest.mark.parametrize(("horizon", "morphs"), [(3, False), (5000, True)])
def test_a_gain_must_exceed_what_it_costs(horizon: float, morphs: bool) -> None:
    held = running(A, horizon_s=horizon)
    held.after(20, A)
    held.step(1, 2)  # the first one came after 20 s
    held.members.listed({A: 2, B: 2}, held.now)
    held.after(0.1, A)
    held.come(B)
    assert (save(1) in held.after(0.1, A, B)) == morphs


def test_what_pays() -> None:
    assert pays(10, 12, horizon_s=61, cost_s=10)
    assert not pays(10, 12, horizon_s=60, cost_s=10)
    assert not pays(0, 100, horizon_s=5, cost_s=10)


def test_predictions_decide_where_there_are_any() -> None:
    def choose(slots: int, per_host: int) -> Shape:
        return Shape(stages=slots, replicas=1, chunk=1, seconds=1.0 + slots)

    held = running(A, choose=choose, horizon_s=1e6)
    held.step(1, 2)
    held.members.listed({A: 2, B: 2}, held.now)
    held.after(0.1, A)
    held.come(B)
    assert held.after(0.1, A, B) == [], "four stages would be slower"


def test_a_round_that_profiles_comes_first() -> None:
    known, shape = Event(), Shape(stages=2, replicas=1, chunk=4, cut="3 1")
    choose = in_thread(lambda *_: known.wait(240) and shape)
    held = Held(A, B, choose=choose, profiling="/p")
    begun = held.begun(A, B)
    assert (held.members.number, begun[B].first, begun[B].profiling) == (0, 2, "/p")
    held.tell(A, "ended", rank=1, failure="died")
    assert held.over(A, B)[A].profiling == "/p", "once more"
    held.members.notice(B, held.now, held.now)
    held.after(0.1, A, B)
    assert held.over(A, B)[A].count == 2, "nothing is to be saved"
    held.leave(2)
    assert not held.over(A), "a thread still searches"
    known.set()
    start = wait_for(lambda: starts(held.after(0.1, A)))[A]
    assert (start.profiling, start.cut, start.resume_step) == ("", "3 1", None)


def test_a_job_whose_disk_stays_full_ends_and_one_that_loses_workers_goes_on() -> None:
    for failure, outcome in (
        ("died", None),
        ("failed: RuntimeError: Connection closed by peer", None),
        ("failed: OSError: full", f"3 rounds .* without a new step: rank 0 on {A} failed: .*full"),
        ("failed: KeyError: 5", f"3 rounds .* without a new step: rank 0 on {A} failed: .*5"),
        ("failed: RuntimeError: shape", f"3 rounds .* one error after step 1: rank 0 on {A} .*pe"),
    ):
        held = running(A)
        for _ in range(4):  # the first does a new step
            held.step(1, 2)
            held.tell(A, "ended", rank=0, failure=failure)
            held.over(A)
        assert re.fullmatch(str(outcome), str(held.members.outcome))


def test_errors_that_may_be_a_lost_peers_end_no_job_unless_they_are_equal() -> None:
    held = running(A)
    for step, port in ((4, 1), (4, 2), (4, 3), (3, 1), (4, 1), (5, 1), (5, 1)):  # at 5, a new step
        held.step(step, 2)
        held.tell(A, "ended", rank=1, failure=f"failed: RuntimeError: Broken pipe [::1]:{port}")
        held.over(A)
    assert held.members.outcome is None
    assert held.members.began == 3


def test_a_round_goes_on_from_what_the_folder_has() -> None:
    """A worker or a manager may have died before it told of a checkpoint."""
    found = [None, Ready(newest=None), Ready(newest=8), Ready(newest=4), Ready(lacking="gone")]
    held = Held(A, prepare=lambda number: found[0])
    assert held.begun(A) == {}, "nobody knows yet"
    del found[0]
    assert held.over(A)[A].resume_step is None
    held.tell(A, "loaded", step=3)
    assert (held.members.newest, held.members.began) == (3, 3), "the script alone knew of it"
    held.tell(A, "committed", step=7)
    for newest in (8, 4):
        held.step(newest, 2)
        del found[0]
        held.tell(A, "ended", rank=0, failure="died")
        assert (held.over(A)[A].resume_step, held.members.newest) == (newest, newest)
        assert f": resumed to config 2x1 at step {newest} on" in held.said[-1]
    del found[0]
    held.tell(A, "ended", rank=0, failure="died")
    assert (held.over(A), held.members.outcome, held.members.refused) == ({}, "gone", True)


@pytest.mark.parametrize("steps", [0, 1])
def test_input_that_no_worker_takes_ends_a_job_at_once_unless_steps_were_done(steps: int) -> None:
    held = running(A)
    for _ in range(steps):
        held.step(1, 2)
    held.tell(A, "ended", rank=1, failure="failed: ValueError: 6 stages of 5 slices")
    assert held.members.refused == (not steps)
    assert str(held.members.outcome).endswith("6 stages of 5 slices") == (not steps)


def test_a_cut_that_was_measured_stays_with_its_shape() -> None:
    held = Held(A, B)
    assert held.begun(A, B)[A].cut == ""
    held.tell(A, "cut", cut="3 5", nbytes=640)
    held.tell(B, "ended", rank=2, failure="died")
    start = held.over(A, B)[B]
    assert (start.cut, start.nbytes) == ("3 5", 640)
    held.members.notice(B, held.now, held.now)
    held.after(0.1, A, B)
    held.leave(4)
    assert held.over(A, B)[A].cut == "", "of another shape"


def test_a_profile_that_is_not_there_and_one_by_which_nothing_fits_end_the_job() -> None:
    for chosen, outcome in (
        (OSError("no profile"), "no profile: given --profiling=DIR, .* or give --nstages and .*"),
        (ValueError("nothing fits"), "nothing fits"),
    ):
        held = running(A, choose=Mock(side_effect=chosen), profiling="/p")
        held.leave(2)
        held.over(A)
        assert re.fullmatch(outcome, held.members.outcome)
        assert held.members.refused


def test_slow_machines_are_named() -> None:
    held = running(A, B, C)
    for step in range(5):
        for rank in range(6):
            forward_s = 0.12 if rank == 4 else 0.1
            held.tell(A, "step", rank=rank, step=step, seconds=1.0, forward_s=forward_s)
    assert held.members.slow == {f"rank 4 on {C}": pytest.approx(1.2)}
    assert f"rank 4 on {C} is slow" in held.said[-1]


@pytest.mark.parametrize(("unit_s", "slow"), [(1e-5, {}), (0.1, {f"rank 0 on {A}": 2.0})])
def test_of_two_replicas_the_slower_one_is_named_and_passes_of_microseconds_are_not(
    unit_s: float, slow: dict[str, float]
) -> None:
    held = running(A, B)
    for step in range(5):
        for rank in range(4):
            forward_s = unit_s * (1 + (rank == 0))
            held.tell(A, "step", rank=rank, step=step, seconds=1.0, forward_s=forward_s)
    assert held.members.slow == pytest.approx(slow)
