"""Threads that wait for a completion are woken; completions of passed steps are used again."""

from __future__ import annotations

import threading

from tests.runs.helpers import HANG_S
from workbench.runtime.executor.completions import Completion, Completions


def test_all_who_wait_are_woken():
    completion, woken = Completion(), []
    threads = [
        threading.Thread(target=lambda: (completion.wait(), woken.append(1))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    completion.set()
    for thread in threads:
        thread.join(HANG_S)
    assert len(woken) == 5
    completion.wait()  # what is set waits for nobody


def test_no_wait_is_missed_however_the_two_meet():
    """A chain of actions on two lanes that wait for each other at every one."""
    completions = Completions(range(2000))
    completions.begin([0])
    made = completions.of(0)

    def walk(first: int) -> None:
        for i in range(first, len(made), 2):
            if i and not made[i - 1].issued:
                made[i - 1].wait()
            made[i].set()

    threads = [threading.Thread(target=walk, args=(first,), daemon=True) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert all(completion.issued for completion in made.values())


def test_tokens_of_steps_that_all_have_passed_are_used_again():
    completions = Completions([3, 4])
    completions.begin([0, 1])
    old = completions.of(0)
    old[3].set()
    completions.drop_before(1)
    assert completions.of(0) is None
    completions.add(2)
    assert completions.of(2) is old
    assert not any(completion.issued or completion.cuda for completion in completions.since(0))
    completions.add(2)
    assert completions.of(2) is old, "a step in flight keeps its completions"
    completions.begin([7])
    assert completions.of(1) is completions.of(2) is None
    assert [*completions.of(7)] == [3, 4]
